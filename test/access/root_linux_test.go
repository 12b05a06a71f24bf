package access

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// With run_as = "submitter", a job has exactly the rights of the user who enqueued it (the submitter): that
// user's ids, no capabilities, and no way to gain root's rights. It has that user's home directory and
// environment, and can open its output by names such as /dev/stdout.
func TestJobsRunAsTheirSubmitter(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	for _, p := range []testrig.Person{testrig.DaemonUser, testrig.NewsUser} {
		got := q.RunJobAs(
			p, "--no-cwd",
			`grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb|NoNewPrivs)' /proc/self/status; umask; pwd; echo $HOME $USER $LOGNAME $SHELL; echo out >/dev/stdout; echo err >/dev/stderr; id -un; setpriv --reuid=0 true 2>/dev/null || echo no way back`)
		// The job of the account news does not start, because its home directory does not exist. The checks
		// after this loop cover that.
		home := map[string]string{"daemon": "/usr/sbin", "news": "/"}[p.Name]
		if p.Name == "news" {
			continue
		}
		id := fmt.Sprint(p.Uid)
		want := []string{"Uid:\t" + strings.Repeat(id+"\t", 3) + id, "Gid:\t" + strings.Repeat(id+"\t", 3) + id,
			"Groups:\t" + id, "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000",
			"NoNewPrivs:\t0",
			"0022", home, home + " " + p.Name + " " + p.Name + " /usr/sbin/nologin", "out", p.Name, "no way back", "err"}
		var lines []string
		for line := range strings.Lines(got) {
			lines = append(lines, strings.TrimSpace(line))
		}
		if strings.Join(lines, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", p.Name, strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}
	if got := q.RunJobAs(testrig.NewsUser, "--no-cwd", "true"); !strings.Contains(got, "cwd: ") {
		t.Errorf("a missing home directory: got %q, want an error about cwd", got)
	}
	if got := q.RunJobAs(testrig.NewsUser, "--cwd", "/", "id -u"); got != "9" {
		t.Errorf("another user's job ran as %q", got)
	}
}

// A runner of root opens a path that a job names with the rights of the job's submitter. If only root may read
// a file, a job cannot use it as input, directory or program, not even through a link.
func TestRootRunnerOpensPathsAsSubmitter(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	secret := t.TempDir()
	for _, p := range []string{filepath.Dir(secret), secret} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mine := filepath.Join(secret, "mine")
	private := filepath.Join(secret, "private")
	for _, dir := range []string{mine, private} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(private+"/tool", "#!/bin/sh\necho the secret\n", 0o755)
	write(secret+"/closed", "the secret\n", 0o600)
	for name, to := range map[string]string{"link": secret + "/closed", "dir": private, "tool": private + "/tool"} {
		if err := os.Symlink(to, filepath.Join(mine, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(mine+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(mine, testrig.DaemonUser.Uid, testrig.DaemonUser.Gid); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{
		"root's file as input":             {"--cwd", "/", "--stdin-file", secret + "/closed", "cat"},
		"a link to it":                     {"--cwd", "/", "--stdin-file", mine + "/link", "cat"},
		"what the kernel says of others":   {"--cwd", "/", "--stdin-file", "/proc/self/maps", "cat"},
		"a pipe":                           {"--cwd", "/", "--stdin-file", mine + "/fifo", "cat"},
		"root's directory":                 {"--cwd", private, "ls"},
		"a link to it ":                    {"--cwd", mine + "/dir", "ls"},
		"a program in root's directory":    {"--cwd", "/", "--", private + "/tool"},
		"a link to that":                   {"--cwd", "/", "--", mine + "/tool"},
		"one found there by PATH":          {"--cwd", "/", "--env", "PATH=" + private, "--", "tool"},
		"one found by PATH through a link": {"--cwd", "/", "--env", "PATH=" + mine, "--", "tool"},
	} {
		id := q.MustRunAs(testrig.DaemonUser, append([]string{"enqueue", "--max-retries", "0"}, args...)...)
		q.RunAs(testrig.DaemonUser, "wait", id)
		j := q.ShowJob(id)
		if j.State != "dead" || (testrig.ValueOrMinusOne(j.ExitCode) != 126 && testrig.ValueOrMinusOne(j.ExitCode) != 127) ||
			strings.Contains(j.Output, "secret") {
			t.Errorf("%s: %+v, want not_runnable", what, j)
		}
	}
	// The runner opens files with all rights of the submitter, so a job can read a file that
	// only the submitter may read.
	write(mine+"/own", "mine\n", 0o600)
	if err := os.Chown(mine+"/own", testrig.DaemonUser.Uid, testrig.DaemonUser.Gid); err != nil {
		t.Fatal(err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", mine, "--stdin-file", mine+"/own", "cat; pwd"); got != "mine\n"+
		mine {
		t.Errorf("the user's own input file and directory: got %q", got)
	}
}

// A runner of root opens paths in /proc with the rights of the job's submitter. So a job cannot reach another
// process's working directory or memory map, or the runner's file descriptors.
func TestRootRunnerOpensProcPathsAsSubmitter(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	base := t.TempDir()
	private := filepath.Join(base, "private")
	for dir := base; dir != "/tmp"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(private, "inner")
	if err := errors.Join(os.Mkdir(inner, 0o755), os.WriteFile(inner+"/open", []byte("the secret\n"), 0o644),
		os.Chown(private, testrig.NewsUser.Uid, testrig.NewsUser.Gid)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.Dir = inner
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(testrig.NewsUser.Uid),
		Gid: uint32(testrig.NewsUser.Gid)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	paths := map[string]string{
		"a file below another user's directory": fmt.Sprintf("/proc/%d/cwd/open", cmd.Process.Pid),
		"another's addresses":                   fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid),
	}
	for fd := 3; fd < 16; fd++ { // the runner has a file open that every user may read, under one of these descriptors
		paths[fmt.Sprint("descriptor ", fd)] = fmt.Sprint("/proc/self/fd/", fd)
	}
	for what, path := range paths {
		id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--max-retries", "0", "--cwd", "/", "--stdin-file", path, "head -2")
		q.RunAs(testrig.DaemonUser, "wait", id)
		j := q.ShowJob(id)
		if j.State != "dead" || j.Output != "" {
			t.Errorf("%s: %+v, want a dead job without output", what, j)
		}
	}
}

// Only the submitter can open the file with a job's input. Otherwise, another user's job that starts at the
// same time could open it through a file descriptor of the runner.
func TestOnlySubmitterCanOpenInput(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--stdin", "hello",
		"stat -Lc '%a %U' /dev/stdin; cat /dev/stdin"); got != "600 daemon\nhello" {
		t.Errorf("mode, owner and content of the input are %q, want a file that other users cannot read", got)
	}
}

// If an admin has changed the account that a job runs as, the owner of the job cannot change the command. This
// also holds if the owner was an admin when the job was enqueued.
func TestOwnerCannotEditJobOfAnotherAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--delay", "1h", "id -un")
	q.MustRunAs(testrig.DaemonUser, "edit", id, "--command", "id -un; true")
	q.MustRunCLI("edit", id, `{"user":"news"}`)
	for _, set := range [][]string{{"--command", "touch /tmp/mine"}, {"--env", "LD_PRELOAD=/tmp/mine"}, {"--cwd", "/tmp"},
		{`{"argv":["id"],"command":null}`}} {
		if r := q.RunAs(testrig.DaemonUser, append([]string{"edit", id}, set...)...); r.ExitCode != 5 ||
			!strings.Contains(r.Stderr, "admin") {
			t.Errorf("edit %v of the user's own job that runs as another user: %+v, want an error", set, r)
		}
	}
	q.MustRunAs(testrig.DaemonUser, "edit", id, "--priority", "7")
	q.MustRunCLI("edit", id, "--cwd", "/", "--delay", "0s")
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	if got := strings.TrimSpace(q.ShowJob(id).Output); got != "news" {
		t.Errorf("the job printed %q, want the output of the command from before the refused edits", got)
	}
}

// Root's policy file, not the service, decides which accounts jobs may run as. Jobs of root, and of
// accounts that the file does not name, are refused when they are enqueued. The error names the policy
// file and how to change it.
func TestPolicyFileDecidesJobAccounts(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = daemon\n")
	for what, r := range map[string]testrig.CommandResult{
		"root":               q.RunCLI("enqueue", "true"),
		"news":               q.RunAs(testrig.NewsUser, "enqueue", "true"),
		"news, for an admin": q.RunCLI("enqueue", "--user", "news", "true"),
	} {
		if r.ExitCode != 5 || !strings.Contains(r.Stderr, filepath.Dir(q.RootRunnerDir)+"/runner.conf") {
			t.Errorf("%s: %+v, want an error that names the policy file", what, r)
		}
	}
	if r := q.RunCLI("enqueue", "true"); !strings.Contains(r.Stderr, "allow_root_jobs = true") ||
		!strings.Contains(r.Stderr, "--user NAME") {
		t.Errorf("root gets the error %q", r.Stderr)
	}
	id := q.MustRunCLI("enqueue", "--cwd", "/", "--user", "daemon", "id -un")
	q.MustRunCLI("wait", id)
	if got := strings.TrimSpace(q.ShowJob(id).Output); got != "daemon" {
		t.Errorf("an admin's job for daemon ran as %q", got)
	}
	if err := os.WriteFile(filepath.Dir(q.RootRunnerDir)+"/runner.conf",
		[]byte("accounts = daemon\nallow_root_jobs = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := q.MustRunCLI("run", "--", "id", "-un"); got != "root" {
		t.Errorf("root's job, with allow_root_jobs, ran as %q", got)
	}
	// The runner checks the policy itself, so even a compromised service cannot start jobs
	// that the policy forbids.
	delayedJob := q.MustRunAs(testrig.DaemonUser, "enqueue", "--delay", "1s", "--max-retries", "0", "true")
	if err := os.WriteFile(filepath.Dir(q.RootRunnerDir)+"/runner.conf", []byte("accounts = news\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	q.RunAs(testrig.DaemonUser, "wait", delayedJob)
	if j := q.ShowJob(delayedJob); j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 126 ||
		!strings.Contains(j.Error, "user: jobs may not run as daemon") {
		t.Errorf("after the policy changed: %+v", j)
	}
}

// With run_as = "fixed:ACCOUNT", the runner changes from root to that account before it accepts messages. All
// jobs run as the account.
func TestJobsRunAsFixedAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"fixed:mail\"\n", "accounts = mail\n")
	for _, p := range []testrig.Person{testrig.DaemonUser, testrig.NewsUser} {
		if got := q.RunJobAs(p, "--cwd", "/", "id -un; echo $USER $HOME"); got != "mail\nmail /var/mail" {
			t.Errorf("the job of %s ran as %q", p.Name, got)
		}
	}
	for _, pid := range q.RunnerPIDs() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !bytes.Contains(raw, []byte("Uid:\t8\t8\t8\t8\n")) ||
			!bytes.Contains(raw, []byte("CapPrm:\t0000000000000000")) {
			t.Errorf("the runner: %s, %v", raw, err)
		}
	}
	if r := q.RunAs(testrig.DaemonUser, "enqueue", "--user", "daemon", "true"); r.ExitCode != 5 {
		t.Errorf("enqueue for another account: %+v, want an error", r)
	}
	q.KillRunners()
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "mail" {
		t.Errorf("after its runner was killed a job ran as %q", got)
	}
}

// With run_as = "service", root's runner runs all jobs as the service's account.
func TestRootRunnerRunsJobsAsServiceAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"service\"\n", "accounts = games\n")
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "id -un"); got != "games" {
		t.Errorf("a job ran as %q", got)
	}
}

// If the policy file does not name the service's account, jobs for that account are refused when they are
// enqueued, because they could never run.
func TestPolicyFileRefusesUnnamedServiceAccount(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"service\"\n", "accounts = *\n")
	for what, r := range map[string]testrig.CommandResult{"a user": q.RunAs(testrig.DaemonUser, "enqueue", "true"),
		"root": q.RunCLI("enqueue", "true")} {
		if r.ExitCode != 5 || !strings.Contains(r.Stderr, "jobs may not run as games, the service's account") ||
			!strings.Contains(r.Stderr, filepath.Dir(q.RootRunnerDir)+"/runner.conf") {
			t.Errorf("%s: %+v, want an error that names the policy file", what, r)
		}
	}
}
