package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Accounts knows the system's users and groups, and what a policy says of them. What
// it has read holds until a file changes; what other sources than files say (getent(1)),
// for a minute. Its methods may be called at once.
type Accounts struct {
	// Policy is the file of the policy, and Service the uid of the service.
	Policy  string
	Service int

	mu     sync.Mutex
	stamps [3]stamp   // guarded by mu, as are:
	local  *directory // what the files say
	found  map[string]found
}

// directory is what the files say. It is never changed.
type directory struct {
	policy policy
	users  []account         // of /etc/passwd
	groups map[string]uint32 // of /etc/group
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// found is a line that getent has printed, "" if none.
type found struct {
	line string
	at   time.Time
}

// elsewhereFor is how long holds what other sources than files have said.
const elsewhereFor = time.Minute

// stamp tells whether a file has changed.
type stamp struct {
	ino   uint64
	size  int64
	mtime syscall.Timespec
}

func stampOf(path string) (s stamp, err error) {
	var st syscall.Stat_t
	err = syscall.Stat(path, &st)
	return stamp{st.Ino, st.Size, st.Mtim}, err
}

// of is the account with a uid, if the policy lets its jobs run.
func (a *Accounts) of(uid uint32) (account, error) {
	local, err := a.refresh()
	if err != nil {
		return account{}, err
	}
	known, err := a.find(local, uid)
	if err != nil {
		return account{}, err
	}
	return a.allowed(local, known)
}

func (a *Accounts) find(local *directory, uid uint32) (account, error) {
	i := slices.IndexFunc(local.users, func(u account) bool { return u.uid == uid })
	if i >= 0 {
		return local.users[i], nil
	}
	known, ok := parseUser(a.elsewhere("passwd", strconv.FormatUint(uint64(uid), 10)))
	if !ok || known.uid != uid {
		return account{}, fmt.Errorf("uid %d has no account here", uid)
	}
	return a.grouped(known), nil
}

// named is the account with a name, if the policy lets its jobs run.
func (a *Accounts) named(name string) (account, error) {
	local, err := a.refresh()
	if err != nil {
		return account{}, err
	}
	i := slices.IndexFunc(local.users, func(u account) bool { return u.name == name })
	if i >= 0 {
		return a.allowed(local, local.users[i])
	}
	known, ok := parseUser(a.elsewhere("passwd", name))
	if !ok {
		return account{}, fmt.Errorf("there is no account %q", name)
	}
	return a.allowed(local, a.grouped(known))
}

// Refuses says why no job of a uid is run, "" if it is, or if that cannot be told: the
// runner decides.
func (a *Accounts) Refuses(uid uint32) string {
	local, err := a.refresh()
	if err != nil {
		return ""
	}
	known, err := a.find(local, uid)
	if err != nil {
		return ""
	}
	return local.policy.refuses(&known, a.Service, a.groupNamed(local))
}

// allowed is the account if the policy lets its jobs run.
func (a *Accounts) allowed(local *directory, known account) (account, error) {
	if why := local.policy.refuses(&known, a.Service, a.groupNamed(local)); why != "" {
		return account{}, errors.New(why)
	}
	return known, nil
}

// groupNamed finds the gid of a group.
func (a *Accounts) groupNamed(local *directory) func(name string) (uint32, bool) {
	return func(name string) (uint32, bool) {
		if gid, ok := local.groups[name]; ok {
			return gid, true
		}
		f := strings.Split(a.elsewhere("group", name), ":")
		if len(f) < 3 {
			return 0, false
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		return uint32(gid), err == nil
	}
}

// grouped is an account of another source than files, with its groups.
func (a *Accounts) grouped(known account) account {
	known.groups = []uint32{known.gid}
	fields := strings.Fields(a.elsewhere("initgroups", known.name)) // its name comes first
	for _, f := range fields[min(1, len(fields)):] {
		if gid, err := strconv.ParseUint(f, 10, 32); err == nil && !slices.Contains(known.groups, uint32(gid)) {
			known.groups = append(known.groups, uint32(gid))
		}
	}
	return known
}

// elsewhere asks the system's name service for one entry, "" if there is none.
func (a *Accounts) elsewhere(database, key string) string {
	name := database + " " + key
	a.mu.Lock()
	f, ok := a.found[name]
	a.mu.Unlock()
	if ok && time.Since(f.at) < elsewhereFor {
		return f.line
	}
	line := getent(database, key)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.found) >= maxFound {
		clear(a.found)
	}
	a.found[name] = found{line, time.Now()}
	return line
}

// maxFound bounds what is remembered of other sources.
const maxFound = 10_000

// refresh reads again what has changed.
func (a *Accounts) refresh() (*directory, error) {
	a.mu.Lock()
	defer a.mu.Unlock() // held over reading: who comes meanwhile needs what is read
	var now [3]stamp
	for i, path := range []string{a.Policy, passwdFile, groupFile} {
		var err error
		if now[i], err = stampOf(path); err != nil && (i > 0 || err != syscall.ENOENT) {
			return nil, fmt.Errorf("look at %s: %w", path, err)
		}
	}
	if now == a.stamps && a.local != nil {
		return a.local, nil
	}
	allowed, err := readPolicy(a.Policy)
	if err != nil {
		return nil, err
	}
	passwd, err := os.ReadFile(passwdFile)
	if err != nil {
		return nil, err
	}
	group, err := os.ReadFile(groupFile)
	if err != nil {
		return nil, err
	}
	users, groups := parseAccounts(string(passwd), string(group))
	a.stamps, a.local, a.found = now, &directory{allowed, users, groups}, map[string]found{}
	return a.local, nil
}

// parseAccounts reads passwd(5) and group(5). Of several lines with one number or name
// the first counts, as for getpwuid(3).
func parseAccounts(passwd, group string) (users []account, groups map[string]uint32) {
	groups = map[string]uint32{}
	members := map[string][]uint32{}
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if _, twice := groups[f[0]]; !twice {
			groups[f[0]] = uint32(gid)
		}
		for member := range strings.SplitSeq(f[3], ",") {
			members[member] = append(members[member], uint32(gid))
		}
	}
	for line := range strings.Lines(passwd) {
		u, ok := parseUser(line)
		if !ok {
			continue
		}
		u.groups = []uint32{u.gid}
		for _, gid := range members[u.name] {
			if !slices.Contains(u.groups, gid) {
				u.groups = append(u.groups, gid)
			}
		}
		users = append(users, u)
	}
	return users, groups
}

// parseUser reads a line of passwd(5).
func parseUser(line string) (a account, ok bool) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
	if len(f) != 7 || f[0] == "" {
		return a, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	a = account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
	if a.home == "" {
		a.home = "/"
	}
	if a.shell == "" {
		a.shell = "/bin/sh"
	}
	return a, err1 == nil && err2 == nil
}

// getentFor bounds the answer of another source than files.
const getentFor = 5 * time.Second

// getent asks the system's name service, which may be a directory on the network, for
// one entry. It runs a program because this one is not linked with libc.
func getent(database, key string) string {
	ctx, cancel := context.WithTimeout(context.Background(), getentFor)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/getent", "--", database, key)
	cmd.Env, cmd.Dir = []string{}, "/"
	out, err := cmd.Output()
	if err != nil {
		return "" // there is no such entry, or nobody to ask
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// readPolicy reads a policy. A file that others than root can change is refused; one
// that does not exist lets nobody's jobs run.
func readPolicy(path string) (policy, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if os.IsNotExist(err) {
		return policy{file: path}, nil
	}
	if err != nil {
		return policy{}, fmt.Errorf("read the runner's policy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return policy{}, fmt.Errorf("read the runner's policy: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return policy{}, fmt.Errorf("the runner's policy %s is no file", path)
	case !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0:
		return policy{}, fmt.Errorf("the runner's policy %s can be changed by others than root; run: chown root:root %[1]s && chmod go-w %[1]s", path)
	case info.Size() > maxPolicy:
		return policy{}, fmt.Errorf("the runner's policy %s is larger than %d bytes", path, maxPolicy)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxPolicy))
	if err != nil {
		return policy{}, fmt.Errorf("read the runner's policy: %w", err)
	}
	return parsePolicy(path, string(raw))
}
