package launcher

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/accounts"
)

// policyCache points to the policy that was read last. It is nil before the first read.
type policyCache = atomic.Pointer[cachedPolicy]

// cachedPolicy is a policy, with the times, size and mode that its file had just before it was read.
type cachedPolicy struct {
	accountPolicy
	fileStamp accounts.FileStamp
}

// AllowedAccountByUID returns the account with the given uid. It returns an error if the account does not exist, or if
// the policy does not allow its jobs.
func (a *AccountAuthorizer) AllowedAccountByUID(uid uint32) (accounts.Account, error) {
	account, _, err := a.authorizeAccount(a.AccountResolver.UserByUID(uid))
	return account, err
}

// authorizeAccount checks whether the policy allows jobs of an account. account and lookUpErr are the results of
// looking up the account. If lookUpErr is nil and the policy allows the jobs, authorizeAccount returns the policy, and
// the account with its groups. Otherwise it returns an error.
func (a *AccountAuthorizer) authorizeAccount(account accounts.Account, lookUpErr error) (accounts.Account,
	*accountPolicy,
	error) {
	if lookUpErr != nil {
		return accounts.Account{}, nil, lookUpErr
	}
	p, lookUpErr := a.currentPolicy()
	if lookUpErr != nil {
		return accounts.Account{}, nil, lookUpErr
	}
	if account, lookUpErr = a.AccountResolver.WithGroups(account); lookUpErr != nil {
		return accounts.Account{}, nil, lookUpErr
	}
	if reason := p.refusalReason(&account, a.ServiceUID, a.AccountResolver.GroupIDByName); reason != "" {
		lookUpErr = policyRefusalError(reason)
	}
	return account, p, lookUpErr
}

// currentPolicy returns the policy. It reads the file again only if the file has changed. Callers must not modify
// the policy.
func (a *AccountAuthorizer) currentPolicy() (*accountPolicy, error) {
	stamp, err := accounts.FileStampOf(a.PolicyFile)
	if err != nil {
		return nil, err
	}
	if c := a.PolicyCache.Load(); c != nil && c.fileStamp == stamp {
		return &c.accountPolicy, nil
	}
	p, err := readPolicy(a.PolicyFile)
	if err != nil {
		return nil, err
	}
	c := &cachedPolicy{p, stamp}
	a.PolicyCache.Store(c)
	return &c.accountPolicy, nil
}

// maxPolicyBytes bounds the size of a policy file, in bytes.
const maxPolicyBytes = 64 << 10

// readPolicy reads a policy file. It returns an error if an account other than root can change the file. If
// the file is missing, it returns a policy that allows no jobs.
func readPolicy(path string) (accountPolicy, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if os.IsNotExist(err) {
		return accountPolicy{policyFile: path}, nil
	}
	if err != nil {
		return accountPolicy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return accountPolicy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return accountPolicy{}, fmt.Errorf("the runner's policy %s is not a regular file", path)
	case !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0:
		return accountPolicy{}, fmt.Errorf("the runner's policy %s can be changed by accounts other than root; "+
			"make root its owner, and remove the write permission of all others (chmod go-w)", path)
	case info.Size() > maxPolicyBytes:
		return accountPolicy{}, fmt.Errorf("the runner's policy %s is larger than %d bytes; shorten it", path, maxPolicyBytes)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxPolicyBytes))
	if err != nil {
		return accountPolicy{}, fmt.Errorf("cannot read the runner's policy: %w", err)
	}
	return parsePolicy(path, string(raw))
}
