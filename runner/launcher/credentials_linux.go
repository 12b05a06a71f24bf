package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// credentialsDirEnvVar is the environment variable that names the directory with the credentials of a systemd
// unit. maxCredentialBytes bounds the size of one credential, in bytes.
const (
	credentialsDirEnvVar = "CREDENTIALS_DIRECTORY"
	maxCredentialBytes   = 64 << 10
)

// ReadAllowedCredential returns the systemd credential credentialName for a job of the account with the given uid. It
// returns an error if the policy does not allow the account to use the credential. a is nil unless the runner runs as
// root. preloadedCredentials contains the credentials that any other runner read before it switched from root to its
// account.
func ReadAllowedCredential(a *AccountAuthorizer, preloadedCredentials map[string][]byte, credentialName string,
	uid int64) ([]byte, error) {
	if a == nil {
		if value, ok := preloadedCredentials[credentialName]; ok {
			return value, nil
		}
		return nil,
			process.UnusablePathError(fmt.Sprintf("not allowed for jobs of this account; an administrator can allow it "+
				"in the policy file of the runners (runner.conf) with: %s%s = ACCOUNT", credentialKeyPrefix, credentialName))
	}
	account, p, err := a.authorizeAccount(a.AccountResolver.UserByUID(uint32(uid)))
	if err != nil {
		return nil, err
	}
	if !p.allowsCredential(credentialName, &account, a.AccountResolver.GroupIDByName) {
		return nil, process.UnusablePathError(fmt.Sprintf("not allowed for jobs of %s; an administrator can allow it "+
			"in %s with: %s%s = %[1]s", account.Name, p.policyFile, credentialKeyPrefix, credentialName))
	}
	return readCredential(credentialName)
}

// readAllowedCredentials reads all credentials that the jobs of an account may use. The runner calls it as
// root, before it switches to the account, because the account cannot read the credentials.
func readAllowedCredentials(p *accountPolicy, account *accounts.Account,
	resolver *accounts.Resolver) map[string][]byte {
	values := map[string][]byte{}
	for name := range p.allowedUsersByCredential {
		if !p.allowsCredential(name, account, resolver.GroupIDByName) {
			continue
		}
		// Skip an unreadable credential. A job that needs it gets an error when it starts.
		if value, err := readCredential(name); err == nil {
			values[name] = value
		}
	}
	return values
}

// readCredential reads one of the credentials that systemd passed to this process.
func readCredential(credentialName string) ([]byte, error) {
	dir := os.Getenv(credentialsDirEnvVar)
	if dir == "" {
		return nil, process.UnusablePathError("systemd passed no credentials to the runner; " +
			"add LoadCredential= to queuectl-runner@.service")
	}
	if filepath.Base(credentialName) != credentialName || credentialName[0] == '.' {
		return nil, process.UnusablePathError(`the name of the credential is not valid; use a name without "/" that ` +
			`does not begin with "."`)
	}
	f, err := os.OpenFile(filepath.Join(dir, credentialName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(process.UnusablePathError("the credential is not a regular file"), err)
	}
	return io.ReadAll(io.LimitReader(f, maxCredentialBytes+1))
}
