package launcher

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/accounts"
)

// A policy file consists of lines of the form key = value. Another line is an error that contains the line's
// number.
func TestPolicyFileConsistsOfKeyValueLines(t *testing.T) {
	p, err := parsePolicy("f", "# jobs of root\nallow_root_jobs = true\n\n accounts=@queuectl  alice # and no more\n")
	if err != nil || !p.allowRootJobs || strings.Join(p.allowedAccounts, " ") != "@queuectl alice" {
		t.Errorf("the policy is %+v, error %v", p, err)
	}
	if p, err := parsePolicy("f", "job_tmpdir = /a b/c/ # fast\r\n"); err != nil || p.jobTmpdir != "/a b/c" {
		t.Errorf("job_tmpdir: got %+v, %v", p, err)
	}
	if p, err := parsePolicy("f", "job_tmpdir = none"); err != nil || p.jobTmpdir != "" {
		t.Errorf("job_tmpdir = none: got %+v, %v", p, err)
	}
	if p, err := parsePolicy("f", ""); err != nil || p.allowRootJobs || p.allowedAccounts != nil {
		t.Errorf("an empty file: got %+v, %v, want that it allows no account", p, err)
	}
	for text, want := range map[string]string{
		"accounts":                             "f:1: must have the form key = value",
		"\nallow_root_jobs = yes":              "f:2: allow_root_jobs must be true or false",
		"allow_root = true":                    `f:1: unknown key allow_root; use`,
		"accounts = a\naccounts = b":           "f:2: accounts is set twice",
		"job_tmpdir = scratch":                 `f:1: job_tmpdir must be an absolute path or "none", not scratch`,
		"job_tmpdir =":                         `f:1: job_tmpdir must be an absolute path`,
		"allow_root_jobs = true # really true": "",
	} {
		_, err := parsePolicy("f", text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Jobs of root run only if allow_root_jobs is set. Jobs of another account run if the policy lists the
// account's name, one of its groups, or *.
func TestPolicyAllowsListedAccounts(t *testing.T) {
	groups := map[string]uint32{"queuectl": 50, "staff": 60}
	groupNamed := func(name string) (uint32, bool) { gid, ok := groups[name]; return gid, ok }
	root := accounts.Account{Name: "root"}
	alice := accounts.Account{Name: "alice", UID: 1000, GID: 1000, Groups: []uint32{1000, 50}}
	service := accounts.Account{Name: "queuectl", UID: 998, GID: 50, Groups: []uint32{50}}
	www := accounts.Account{Name: "www-data", UID: 33, GID: 60, Groups: []uint32{60}}
	for _, c := range []struct {
		policy  accountPolicy
		account accounts.Account
		want    string // part of the reason; "" if the jobs may run
	}{
		{accountPolicy{}, root, "allow_root_jobs = true in F"},
		{accountPolicy{allowedAccounts: []string{"*", "root"}}, root, "--user NAME"},
		{accountPolicy{allowRootJobs: true}, root, ""},
		{accountPolicy{allowRootJobs: true}, alice, "jobs may not run as alice"},
		{accountPolicy{allowedAccounts: []string{"@queuectl"}}, alice, ""},
		{accountPolicy{allowedAccounts: []string{"@queuectl"}}, www, "accounts = @queuectl"},
		{accountPolicy{allowedAccounts: []string{"@staff"}}, www, ""},
		{accountPolicy{allowedAccounts: []string{"@nothing", "www-data"}}, www, ""},
		{accountPolicy{allowedAccounts: []string{"*"}}, www, ""},
		{accountPolicy{allowedAccounts: []string{"33"}}, www, "www-data"},
		{accountPolicy{allowedAccounts: []string{"*", "@queuectl"}}, service, "the service's account"},
		{accountPolicy{allowedAccounts: []string{"queuectl"}}, service, ""},
	} {
		c.policy.policyFile = "F"
		got := c.policy.refusalReason(&c.account, 998, groupNamed)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v, %s: got %q, want %q", c.policy, c.account.Name, got, c.want)
		}
	}
}

// A job's environment gets its account's variables, except those that the job sets itself.
func TestJobGetsAccountVariables(t *testing.T) {
	a := accounts.Account{Name: "alice", HomeDir: "/home/alice", Shell: "/bin/zsh"}
	got := strings.Join(AddAccountEnv(&a, []string{"HOME=/elsewhere", "USERS=x", "LOGNAME="}), " ")
	if want := "HOME=/elsewhere USERS=x LOGNAME= USER=alice SHELL=/bin/zsh"; got != want {
		t.Errorf("the environment is %q, want %q", got, want)
	}
}
