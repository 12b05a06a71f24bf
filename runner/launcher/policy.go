package launcher

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/rundir"
)

// accountPolicy says whose jobs a runner of root may run. It is read from a file that belongs to root, so the service
// cannot change it. The policy exists only on Linux. See docs/decisions/0060.
type accountPolicy struct {
	policyFile    string // path of the policy file
	allowRootJobs bool   // jobs may run as root
	jobTmpdir     string // setting job_tmpdir; "" if the file does not set it
	// allowedAccounts lists the accounts whose jobs may run. An entry is a user name, @group for all members
	// of a group, or * for every account except root and the service's.
	allowedAccounts []string
	// allowedUsersByCredential lists, for each credential, the users and @groups whose jobs may use it.
	allowedUsersByCredential map[string][]string
}

// credentialKeyPrefix begins a key that lists the users of a credential, such as credential.db.
const credentialKeyPrefix = "credential."

// parsePolicy parses the text of a policy file: lines of the form key = value. A # begins a comment.
func parsePolicy(file, text string) (accountPolicy, error) {
	p := accountPolicy{policyFile: file}
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		problem := ""
		switch {
		case !ok:
			problem = "must have the form key = value"
		case seen[key]:
			problem = key + " is set twice"
		case key == "allow_root_jobs":
			if p.allowRootJobs = value == "true"; !p.allowRootJobs && value != "false" {
				problem = "allow_root_jobs must be true or false, not " + value
			}
		case key == "accounts":
			p.allowedAccounts = strings.Fields(value)
		case key == rundir.JobTmpdirSetting:
			if strings.HasPrefix(value, "/") {
				p.jobTmpdir = filepath.ToSlash(filepath.Clean(value))
			} else if value != "none" {
				problem = "job_tmpdir must be an absolute path or \"none\", not " + value
			}
		case strings.HasPrefix(key, credentialKeyPrefix):
			if p.allowedUsersByCredential == nil {
				p.allowedUsersByCredential = map[string][]string{}
			}
			p.allowedUsersByCredential[strings.TrimPrefix(key, credentialKeyPrefix)] = strings.Fields(value)
		default:
			problem = "unknown key " + key + "; use allow_root_jobs, accounts, job_tmpdir or " + credentialKeyPrefix + "NAME"
		}
		if problem != "" {
			return p, fmt.Errorf("%s:%d: %s", file, i+1, problem)
		}
		seen[key] = true
	}
	return p, nil
}

// refusalReason returns the reason why the policy does not allow an account's jobs, or "" if the policy allows them.
// The entry * does not include the service's own account: jobs of this account could connect to the runner, as the
// service does, and start jobs of every account. So the policy must list this account by its name. lookUpGroupID
// returns the id of the group with the given name.
func (p *accountPolicy) refusalReason(a *accounts.Account, serviceUID int,
	lookUpGroupID func(string) (uint32, bool)) string {
	if a.UID == 0 {
		if p.allowRootJobs {
			return ""
		}
		return fmt.Sprintf("jobs may not run as root; use another account with --user NAME, "+
			"or ask an administrator to set allow_root_jobs = true in %s", p.policyFile)
	}
	isService := int(a.UID) == serviceUID
	for _, allowed := range p.allowedAccounts {
		byName, byGroup := matchPolicyEntry(allowed, a, lookUpGroupID)
		if byName || !isService && (byGroup || allowed == "*") {
			return ""
		}
	}
	if isService {
		return fmt.Sprintf(`jobs may not run as %s, the service's account, because they would have all rights `+
			`of the service; to allow this, an administrator can add the account to the line "accounts" in %s`,
			a.Name, p.policyFile)
	}
	return fmt.Sprintf(`jobs may not run as %[1]s; an administrator can add this account to the line `+
		`"accounts = %[3]s" in %[2]s`, a.Name, p.policyFile, strings.Join(p.allowedAccounts, " "))
}

// allowsCredential reports whether the jobs of an account may use a credential. The policy must list the account for
// this credential, by its name or by a group.
func (p *accountPolicy) allowsCredential(credentialName string, a *accounts.Account,
	lookUpGroupID func(string) (uint32, bool)) bool {
	return slices.ContainsFunc(p.allowedUsersByCredential[credentialName], func(entry string) bool {
		byName, byGroup := matchPolicyEntry(entry, a, lookUpGroupID)
		return byName || byGroup
	})
}

// matchPolicyEntry compares an account with an entry of the policy. nameMatches means that the entry is the account's
// user name. groupMatches means that the entry is @group, and that the account is a member of this group.
func matchPolicyEntry(
	policyEntry string, a *accounts.Account, lookUpGroupID func(string) (uint32, bool),
) (nameMatches, groupMatches bool) {
	group, isGroup := strings.CutPrefix(policyEntry, "@")
	if !isGroup {
		return policyEntry == a.Name, false
	}
	gid, ok := lookUpGroupID(group)
	return false, ok && (gid == a.GID || slices.Contains(a.Groups, gid))
}

// AddAccountEnv adds the account's HOME, USER, LOGNAME and SHELL to env, except the variables that env already
// contains.
func AddAccountEnv(a *accounts.Account, env []string) []string {
	for _, e := range []string{"HOME=" + a.HomeDir, "USER=" + a.Name, "LOGNAME=" + a.Name, "SHELL=" + a.Shell} {
		name, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(env, func(variable string) bool { return strings.HasPrefix(variable, name+"=") }) {
			env = append(env, e)
		}
	}
	return env
}

// policyRefusalError is the reason why the policy does not allow an account's jobs.
type policyRefusalError string

// Error returns the reason.
func (e policyRefusalError) Error() string { return string(e) }

// RefusalReason returns the reason why the policy does not allow jobs of the account with this uid. It returns "" if
// the policy allows the jobs, or cannot be checked now. In the second case jobs may be accepted, but the runner checks
// the policy again before it starts them.
func (a *AccountAuthorizer) RefusalReason(uid uint32) string {
	_, err := a.AllowedAccountByUID(uid)
	reason, _ := errors.AsType[policyRefusalError](err)
	return string(reason)
}

// IsPermanentError reports whether later attempts to start the job would fail with the same error. That is the case if
// the policy does not allow the account's jobs, or if the account does not exist. Other errors may be temporary.
func IsPermanentError(err error) bool {
	_, isRefused := errors.AsType[policyRefusalError](err)
	_, isMissing := errors.AsType[accounts.NoAccountError](err)
	return isRefused || isMissing
}
