package accounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Resolver looks up the system's users and groups. It parses /etc/passwd and /etc/group, and parses them again when
// they change. For accounts that are not in these files, it runs the program getent(1), because queuectl does not link
// libc. It caches each result of getent for a minute, even if the result is that an account does not exist.
//
// The zero value is ready for use. The methods may be called concurrently. See docs/decisions/0077.
type Resolver struct {
	// AlwaysQueryRemote makes every lookup query the sources outside the files, such as LDAP. By default, a lookup that
	// times out makes all further lookups in these sources fail immediately for a minute. So a caller that only displays
	// names waits for a slow source only once a minute.
	AlwaysQueryRemote bool
	// GetentFunc is called instead of the program getent if it is not nil.
	GetentFunc func(database, key string) (line string, err error)

	remoteLookupCache lookupCache[string] // output lines of getent; "" for an account that does not exist

	parsedFiles atomic.Pointer[accountFiles] // nil until the files have been read

	readFilesMu sync.Mutex // held while a goroutine reads the files
}

// accountFiles is the parsed content of /etc/passwd and /etc/group. It is immutable.
type accountFiles struct {
	fileStamps      [2]FileStamp // stamps of passwdFile and groupFile, taken just before the files were read
	users           []Account
	gidsByName      map[string]uint32 // gids of groups, by name
	groupNamesByGID map[uint32]string // names of groups, by gid
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// UserByUID returns the account with a uid.
func (d *Resolver) UserByUID(uid uint32) (Account, error) {
	files, err := d.loadAccountFiles()
	if err != nil {
		return Account{}, err
	}
	if i := slices.IndexFunc(files.users, func(a Account) bool { return a.UID == uid }); i >= 0 {
		return files.users[i], nil
	}
	line, err := d.queryRemoteSources("passwd", strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return Account{}, err
	}
	a, ok := parsePasswdLine(line)
	if !ok || a.UID != uid {
		return Account{}, NoAccountError(fmt.Sprintf("uid %d has no account on this machine", uid))
	}
	return a, nil
}

// UserByName returns the account with a name.
func (d *Resolver) UserByName(name string) (Account, error) {
	files, err := d.loadAccountFiles()
	if err != nil {
		return Account{}, err
	}
	if i := slices.IndexFunc(files.users, func(a Account) bool { return a.Name == name }); i >= 0 {
		return files.users[i], nil
	}
	line, err := d.lookupRemoteByName("passwd", name)
	if err != nil {
		return Account{}, err
	}
	a, ok := parsePasswdLine(line)
	if !ok {
		return Account{}, NoAccountError(fmt.Sprintf("there is no account %q", name))
	}
	return a, nil
}

// WithGroups returns the account with its groups filled in.
func (d *Resolver) WithGroups(a Account) (Account, error) {
	if a.Groups != nil {
		return a, nil
	}
	line, err := d.queryRemoteSources("initgroups", a.Name)
	if err != nil {
		return a, err
	}
	a.Groups = []uint32{a.GID}
	fields := strings.Fields(line) // the first field is the name of the account, the others are its groups
	for _, f := range fields[min(1, len(fields)):] {
		if gid, err := strconv.ParseUint(f, 10, 32); err == nil && !slices.Contains(a.Groups, uint32(gid)) {
			a.Groups = append(a.Groups, uint32(gid))
		}
	}
	return a, nil
}

// GroupIDByName returns the gid of a group.
func (d *Resolver) GroupIDByName(name string) (uint32, bool) {
	files, err := d.loadAccountFiles()
	if err != nil {
		return 0, false
	}
	if gid, ok := files.gidsByName[name]; ok {
		return gid, true
	}
	line, _ := d.lookupRemoteByName("group", name)
	_, gid, ok := parseGroupLine(line)
	return gid, ok
}

// groupNameByGID returns the name of the group with a gid.
func (d *Resolver) groupNameByGID(gid uint32) (string, bool) {
	files, err := d.loadAccountFiles()
	if err != nil {
		return "", false
	}
	if name, ok := files.groupNamesByGID[gid]; ok {
		return name, true
	}
	line, _ := d.queryRemoteSources("group", strconv.FormatUint(uint64(gid), 10))
	name, is, ok := parseGroupLine(line)
	return name, ok && is == gid
}

// lookupRemoteByName queries the sources outside the files for the account or group with a name. If a name consists
// only of digits, signs and spaces, getent would take it for a number, so lookupRemoteByName returns "" for such a
// name.
func (d *Resolver) lookupRemoteByName(database, name string) (string, error) {
	if strings.Trim(name, "+-0123456789 \t\n\v\f\r") == "" {
		return "", nil
	}
	return d.queryRemoteSources(database, name)
}

// queryRemoteSources queries the sources outside the files, such as LDAP, for one entry. It returns the output line of
// getent, or "" if the entry does not exist.
func (d *Resolver) queryRemoteSources(database, key string) (string, error) {
	return d.remoteLookupCache.getOrQuery(database+" "+key, d.AlwaysQueryRemote, func() (string, error) {
		if d.GetentFunc != nil {
			return d.GetentFunc(database, key)
		}
		return getent(database, key)
	})
}

// FileStamp identifies the state of a file. If two stamps of a file differ, the file has changed. The stamp
// contains the change time (ctime), which also changes with the owner and the mode of the file.
type FileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// FileStampOf returns the stamp of a file, or the zero stamp if the file does not exist.
func FileStampOf(path string) (FileStamp, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil && !errors.Is(err, os.ErrNotExist) {
		return FileStamp{}, fmt.Errorf("cannot check %s: %w", path, err)
	}
	return FileStamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// loadAccountFiles returns the content of /etc/passwd and /etc/group, and reads the files again if they have changed.
// Every request on the socket looks up accounts, so while the files are unchanged, loadAccountFiles takes no lock.
func (d *Resolver) loadAccountFiles() (*accountFiles, error) {
	stamps, err := readFileStamps()
	if err != nil {
		return nil, err
	}
	if l := d.parsedFiles.Load(); l != nil && l.fileStamps == stamps {
		return l, nil
	}
	d.readFilesMu.Lock() // if several callers wait for the lock, the first one reads the files for all of them
	defer d.readFilesMu.Unlock()
	if l := d.parsedFiles.Load(); l != nil && l.fileStamps == stamps {
		return l, nil
	}
	passwd, err1 := os.ReadFile(passwdFile)
	group, err2 := os.ReadFile(groupFile)
	for _, err := range []error{err1, err2} {
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a container image may lack both files
			return nil, err
		}
	}
	l := parseAccountFiles(string(passwd), string(group))
	l.fileStamps = stamps
	d.parsedFiles.Store(l)
	d.remoteLookupCache.clear()
	return l, nil
}

// readFileStamps returns the current stamps of passwdFile and groupFile.
func readFileStamps() ([2]FileStamp, error) {
	passwd, err1 := FileStampOf(passwdFile)
	group, err2 := FileStampOf(groupFile)
	return [2]FileStamp{passwd, group}, errors.Join(err1, err2)
}

// parseAccountFiles parses the contents of passwd(5) and group(5). If several lines have the same number or name, it
// uses the first line, like getpwuid(3).
func parseAccountFiles(passwdText, groupText string) *accountFiles {
	l := &accountFiles{gidsByName: map[string]uint32{}, groupNamesByGID: map[uint32]string{}}
	members := map[string][]uint32{}
	for line := range strings.Lines(groupText) {
		name, gid, ok := parseGroupLine(line)
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if !ok || len(f) < 4 {
			continue
		}
		if _, twice := l.gidsByName[name]; !twice {
			l.gidsByName[name] = gid
		}
		if _, twice := l.groupNamesByGID[gid]; !twice {
			l.groupNamesByGID[gid] = name
		}
		for member := range strings.SplitSeq(f[3], ",") {
			members[member] = append(members[member], gid)
		}
	}
	for line := range strings.Lines(passwdText) {
		a, ok := parsePasswdLine(line)
		if !ok {
			continue
		}
		a.Groups = []uint32{a.GID}
		for _, gid := range members[a.Name] {
			if !slices.Contains(a.Groups, gid) {
				a.Groups = append(a.Groups, gid)
			}
		}
		l.users = append(l.users, a)
	}
	return l
}

// parsePasswdLine parses a line of passwd(5).
func parsePasswdLine(line string) (a Account, ok bool) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
	if len(f) != 7 || f[0] == "" {
		return a, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	a = Account{Name: f[0], UID: uint32(uid), GID: uint32(gid), HomeDir: f[5], Shell: f[6]}
	a.HomeDir = cmp.Or(a.HomeDir, "/")
	a.Shell = cmp.Or(a.Shell, "/bin/sh")
	return a, err1 == nil && err2 == nil
}

// parseGroupLine parses a line of group(5), without its members.
func parseGroupLine(line string) (name string, gid uint32, ok bool) {
	f := strings.Split(line, ":")
	if len(f) < 3 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(f[2], 10, 32)
	return f[0], uint32(n), err == nil
}

// getent looks up one entry with the program getent(1), which asks the system's name service. The name service may
// query a directory server on the network.
func getent(database, key string) (string, error) {
	if strings.Contains(key, "\x00") {
		return "", nil // neither an argument nor the name of an account can contain NUL
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/getent", "--", database, key)
	// If child processes of getent keep its output open, WaitDelay bounds how long cmd waits for them.
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, "/", lookupTimeout/10
	out, err := cmd.Output()
	var exitErr *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", errLookupTimeout
	case errors.Is(err, os.ErrNotExist), errors.As(err, &exitErr) && exitErr.Exited():
		return "", nil // getent is not installed, or the entry does not exist
	case err != nil:
		return "", fmt.Errorf("getent %s %s: %w", database, key, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}
