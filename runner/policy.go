package runner

import (
	"fmt"
	"slices"
	"strings"
)

// policy says whose jobs a root runner may run. It is read from a file of root's, which
// the service cannot change.
type policy struct {
	file      string
	allowRoot bool
	// accounts are names of users, @ and the name of a group for its members, or * for
	// every account but root.
	accounts []string
}

// maxPolicy bounds a policy's file, in bytes.
const maxPolicy = 64 << 10

// parsePolicy reads lines of key = value; # begins a comment.
func parsePolicy(file, text string) (policy, error) {
	p := policy{file: file}
	n := 0
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		fault := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %s", file, n, fmt.Sprintf(format, args...))
		}
		switch {
		case !ok:
			return p, fault("is not of the form key = value")
		case seen[key]:
			return p, fault("%s is given twice", key)
		case key == "allow_root_jobs" && (value == "true" || value == "false"):
			p.allowRoot = value == "true"
		case key == "allow_root_jobs":
			return p, fault("allow_root_jobs is true or false, not %q", value)
		case key == "accounts":
			p.accounts = strings.Fields(value)
		default:
			return p, fault("there is no %q here; there are allow_root_jobs and accounts", key)
		}
		seen[key] = true
	}
	return p, nil
}

// refuses says why the policy does not let an account's jobs run, "" if it does. The
// account with the uid of the service has to be named: its jobs could ask the runner, as
// the service does, for jobs of all others.
func (p *policy) refuses(a *account, service int, groupNamed func(string) (uint32, bool)) string {
	if a.uid == 0 {
		if p.allowRoot {
			return ""
		}
		return fmt.Sprintf("jobs of root are not run here; an administrator can set allow_root_jobs = true in %s, or name another account with --user NAME", p.file)
	}
	own := int(a.uid) == service
	for _, allowed := range p.accounts {
		group, isGroup := strings.CutPrefix(allowed, "@")
		if !isGroup {
			if allowed == "*" && !own || allowed == a.name {
				return ""
			}
			continue
		}
		if own {
			continue
		}
		if gid, ok := groupNamed(group); ok && (gid == a.gid || slices.Contains(a.groups, gid)) {
			return ""
		}
	}
	if own {
		return fmt.Sprintf("jobs of %s, the account of the service, could do all that the service may, so they are run only if accounts in %s has its name", a.name, p.file)
	}
	return fmt.Sprintf("jobs of %s are not run here: %s has accounts = %s", a.name, p.file, strings.Join(p.accounts, " "))
}

// account is what the system says of a user.
type account struct {
	name, home, shell string
	uid, gid          uint32
	groups            []uint32 // with gid
}

// environ completes an environment with what the account says of itself.
func (a *account) environ(env []string) []string {
	for _, e := range []string{"HOME=" + a.home, "USER=" + a.name, "LOGNAME=" + a.name, "SHELL=" + a.shell} {
		name, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
			env = append(env, e)
		}
	}
	return env
}
