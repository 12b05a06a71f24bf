package runner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/accounts"
)

// Accounts knows what a policy says of the system's users. What it has read of the policy
// holds until that changes. Its methods may be called at once.
type Accounts struct {
	// Policy is the file of the policy, and Service the uid of the service.
	Policy    string
	Service   int
	Directory *accounts.Directory

	mu    sync.Mutex
	stamp accounts.Stamp // guarded by mu, as is:
	read  *policy        // which is never changed
}

// of is the account with a uid, if the policy lets its jobs run.
func (a *Accounts) of(uid uint32) (accounts.Account, error) {
	known, err := a.Directory.User(uid)
	return a.allowed(known, err)
}

// named is the account with a name, if the policy lets its jobs run.
func (a *Accounts) named(name string) (accounts.Account, error) {
	known, err := a.Directory.Named(name)
	return a.allowed(known, err)
}

// Refuses says why no job of a uid is run, "" if it is, or if that cannot be told: the
// runner decides.
func (a *Accounts) Refuses(uid uint32) string {
	known, err := a.Directory.User(uid)
	if err != nil {
		return ""
	}
	_, why, err := a.decide(known)
	if err != nil {
		return ""
	}
	return why
}

// allowed is an account that was looked up, with its groups, if the policy lets its jobs
// run.
func (a *Accounts) allowed(known accounts.Account, err error) (accounts.Account, error) {
	if err != nil {
		return accounts.Account{}, err
	}
	known, why, err := a.decide(known)
	if err == nil && why != "" {
		err = errRefused(why)
	}
	return known, err
}

// decide completes an account by its groups and says why its jobs are not run, "" if they
// are.
func (a *Accounts) decide(known accounts.Account) (complete accounts.Account, why string, err error) {
	p, err := a.refresh()
	if err != nil {
		return accounts.Account{}, "", err
	}
	if known, err = a.Directory.Grouped(known); err != nil {
		return accounts.Account{}, "", err
	}
	return known, p.refuses(&known, a.Service, a.Directory.Group), nil
}

// refresh reads the policy again if it has changed.
func (a *Accounts) refresh() (*policy, error) {
	a.mu.Lock()
	defer a.mu.Unlock() // held over reading: who comes meanwhile needs what is read
	now, err := accounts.StampOf(a.Policy)
	if err != nil {
		return nil, err
	}
	if now == a.stamp && a.read != nil {
		return a.read, nil
	}
	p, err := readPolicy(a.Policy)
	if err != nil {
		return nil, err
	}
	a.stamp, a.read = now, &p
	return a.read, nil
}

// accountOf is the account of a runner's folder that is below an account's, which root has
// made and given to it; nil is none.
func accountOf(dir string) (*uint32, error) {
	if !OfAnAccount(dir) {
		return nil, nil
	}
	info, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return nil, fmt.Errorf("cannot read the owner of the runner's directory: %w", err)
	}
	return &info.Sys().(*syscall.Stat_t).Uid, nil
}

// maxPolicy bounds a policy's file, in bytes.
const maxPolicy = 64 << 10

// readPolicy reads a policy. A file that others than root can change is refused; one
// that does not exist lets nobody's jobs run.
func readPolicy(path string) (policy, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if os.IsNotExist(err) {
		return policy{file: path}, nil
	}
	if err != nil {
		return policy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return policy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return policy{}, fmt.Errorf("the runner's policy %s is not a regular file", path)
	case !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0:
		return policy{}, fmt.Errorf("the runner's policy %s can be changed by accounts other than root; run: chown root:root %[1]s && chmod go-w %[1]s", path)
	case info.Size() > maxPolicy:
		return policy{}, fmt.Errorf("the runner's policy %s is larger than %d bytes; shorten it", path, maxPolicy)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxPolicy))
	if err != nil {
		return policy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	return parsePolicy(path, string(raw))
}
