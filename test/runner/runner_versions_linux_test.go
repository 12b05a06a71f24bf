package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// oldestCompatibleCommit returns the commit of the oldest program that can open the current database and exchange
// messages with current runners: the commit that last changed the schema of the database or the messages. A commit that
// only moved the files with these definitions does not count. In older commits, the schema is in store/sql. Without a
// git history, oldestCompatibleCommit returns "".
func oldestCompatibleCommit() string {
	out, _ := exec.Command("git", "-C", testrig.RepositoryRoot(), "log", "-1", "--format=%H", "--diff-filter=M", "--",
		"store/database/schema.go", "store/sql/schema.go", "runner/wire/fields.go").Output()
	return strings.TrimSpace(string(out))
}

// buildVersion builds another version of the program and returns its path. The function chooseCommit returns
// the commit to build; if it is nil, this source tree is built with another version number.
func buildVersion(t *testing.T, chooseCommit func() string, version string) string {
	t.Helper()
	if os.Getenv("QUEUECTL_TEST_BIN") != "" {
		skip.MissingRequirement(t, "sources", "needs the sources of the program; .ci/run runs it in a clone, "+
			"and packaging/test/scenario/survive.sh replaces versions")
	}
	dir := t.TempDir()
	source := testrig.RepositoryRoot()
	if chooseCommit != nil {
		skip.UnlessProgram(t, "git", "needs git; .ci/run installs it")
		commit := chooseCommit()
		if commit == "" {
			skip.MissingRequirement(t, "history", "needs an earlier commit; .ci/run runs it in a clone, "+
				"and packaging/test/scenario/survive.sh replaces versions")
		}
		tree := exec.Command("git", "-C", testrig.RepositoryRoot(), "archive", commit)
		unpack := exec.Command("tar", "x", "-C", dir)
		var err error
		if unpack.Stdin, err = tree.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := unpack.Start(); err != nil {
			t.Fatal(err)
		}
		if err := tree.Run(); err != nil {
			t.Fatal(err)
		}
		if err := unpack.Wait(); err != nil {
			t.Fatal(err)
		}
		source = dir
	}
	bin := filepath.Join(dir, "bin", "queuectl")
	build := exec.Command("go", "build", "-ldflags", "-X github.com/queuectl/queuectl/internal/cli.Version="+version, "-o",
		filepath.Dir(bin)+"/", "./cmd/...")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", version, err, out)
	}
	return bin
}

// When a service starts, it can adopt a running runner of an older or newer version. That runner keeps its
// jobs, with their pids, output and exit codes, and no job runs twice. New jobs run in a runner of the
// service's version. The old runner ends after its last job.
func TestServiceAdoptsRunnersOfOtherVersions(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	now := testrig.BuiltProgram(t, "")
	for name, other := range map[string]string{"schema": buildVersion(t, oldestCompatibleCommit, "0.0.9"),
		"number": buildVersion(t, nil, "9.9.9")} {
		for direction, bins := range map[string][]string{"upgrade": {other, now}, "downgrade": {now, other}} {
			t.Run(direction+" "+name, func(t *testing.T) {
				t.Parallel()
				q := testrig.NewHarness(t, "")
				if name == "schema" && direction == "downgrade" {
					// Create the database with the older program, because that program cannot open a database
					// that a newer one has changed.
					q.ClientPath = bins[1]
					q.StartService("--workers", "1")
					q.StopService()
				}
				q.ClientPath = bins[0]
				q.StartService("--workers", "3", "--keep-jobs")
				gate := filepath.Join(t.TempDir(), "go")
				w := q.DialService()
				var jobs []testrig.JSONFields
				for i := range 3 {
					jobs = append(jobs, testrig.JSONFields{"id": fmt.Sprint("j", i), "max_retries": 0,
						"command": testrig.CommandWaitingForFile(gate) + fmt.Sprintf("; exit %d", 10+i)})
				}
				ids := w.EnqueueBatch(jobs)
				pids := map[string]int{}
				for _, id := range ids {
					pids[id] = w.WaitJobRunning(id).PID
				}
				runners := q.RunnerPIDs()
				if code := q.StopService(); code != 0 {
					t.Fatalf("the first service ended with %d", code)
				}

				q.ClientPath = bins[1]
				q.StartService("--workers", "4", "--keep-jobs")
				w = q.DialService()
				for _, id := range ids {
					if j := w.ShowJob(id); j.State != "processing" || j.PID != pids[id] || !testrig.IsProcessAlive(pids[id]) {
						t.Errorf("%s is %s with pid %d, was %d", id, j.State, j.PID, pids[id])
					}
				}
				q.MustRunCLI("enqueue", "--id", "new", "echo $PPID")
				q.MustRunCLI("wait", "new")
				if parent := strings.TrimSpace(q.ShowJob("new").Output); parent == fmt.Sprint(runners[0]) {
					t.Error("the runner of the other version took a new job")
				}
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				for i, id := range ids {
					q.RunCLI("wait", id)
					j := q.ShowJob(id)
					want := fmt.Sprintf("up\npid %d\nend of %[1]d\n", pids[id])
					if len(j.AttemptHistory) != 1 || j.ExitCode == nil || *j.ExitCode != 10+i || j.Output != want {
						t.Errorf("%s: %+v, want exit code %d and output %q", id, j, 10+i, want)
					}
				}
				q.WaitUntil("the other version's runner is gone", 20*time.Second, func() bool {
					return !slices.Contains(q.RunnerPIDs(), runners[0]) && syscall.Kill(runners[0], 0) == syscall.ESRCH
				})
				q.MustRunCLI("enqueue", "--id", "last", "echo fine")
				q.MustRunCLI("wait", "last")
				if code := q.StopService(); code != 0 {
					t.Errorf("the second service ended with %d", code)
				}
				if remaining := q.RunnerPIDs(); len(remaining) != 1 {
					t.Errorf("%d runners remain, want only the one that is kept", len(remaining))
				}
			})
		}
	}
}

// If the program on disk is replaced while the service runs, new jobs go to runners started from
// the new program.
func TestNewJobsRunInReplacedProgramsRunner(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	other := buildVersion(t, nil, "9.9.9")
	q := testrig.NewHarness(t, "")
	q.ClientPath = testrig.InstallPrograms(q, testrig.BuiltProgram(t, ""), q.StateDir)
	q.StartService("--workers", "1")
	if err := os.Remove(q.ClientPath); err != nil { // a package upgrade does the same: running processes keep the old file
		t.Fatal(err)
	}
	testrig.InstallPrograms(q, other, q.StateDir)
	q.KillRunners()
	q.MustRunCLI("run", "--", "true")
	q.MustRunCLI("run", "--", "true")
	if n := len(q.RunnerPIDs()); n != 1 {
		t.Errorf("%d runners, want 1", n)
	}
}

// A service can start while an old runner is about to end. The service receives the results of the runner's
// jobs, and starts another runner for new jobs.
func TestServiceStartsWhileOldRunnerEnds(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	gate := filepath.Join(t.TempDir(), "go")
	id := q.MustRunCLI("enqueue", "--kill-after", "1m", "trap '' TERM; "+testrig.CommandWaitingForFile(gate))
	q.WaitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("logs", id), "up") && q.ShowJob(id).State == "processing"
	})
	old := q.OnlyRunnerPID()
	q.KillService()
	q.WaitUntil("the runner has closed the lost connection", 20*time.Second, func() bool {
		sockets := 0
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", old))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
				sockets++
			}
		}
		return sockets == 1 // the only remaining socket is the one on which the runner listens
	})
	syscall.Kill(old, syscall.SIGTERM)
	q.StartService("--workers", "2")
	if got := q.MustRunCLI("run", "--", "echo", "new"); got != "new" {
		t.Errorf("a new job printed %q", got)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("wait", id)
	if j := q.ShowJob(id); len(j.AttemptHistory) != 2 || j.AttemptHistory[0].Reason != "stopped" || j.AttemptCount != 1 ||
		!strings.Contains(j.Output, "end of") {
		t.Errorf("the job of the runner that ends: %+v, want one return to the queue", j)
	}
	q.WaitUntil("the runner has ended", 20*time.Second, func() bool { return !slices.Contains(q.RunnerPIDs(), old) })
}
