package test

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
)

// oldestCompatible returns the commit of the oldest program that can open the current database and exchange
// frames with current runners. That is the commit that last changed the schema or the frames. It returns ""
// without a git history.
func oldestCompatible() string {
	out, _ := exec.Command("git", "-C", "..", "log", "-1", "--format=%H", "--", "store/sql/schema.go",
		"runner/wire/fields.go").Output()
	return strings.TrimSpace(string(out))
}

// buildVersion returns the path of another version of the program: built from an earlier commit, or
// from this tree with another version number.
func buildVersion(t *testing.T, earlier func() string, version string) string {
	t.Helper()
	if os.Getenv("QUEUECTL_TEST_BIN") != "" {
		skip.Missing(t, "sources", "needs the sources of the program; .ci/run runs it in a clone, "+
			"and packaging/test/scenario/survive.sh replaces versions")
	}
	dir := t.TempDir()
	source := ".."
	if earlier != nil {
		skip.UnlessProgram(t, "git", "needs git; .ci/run installs it")
		commit := earlier()
		if commit == "" {
			skip.Missing(t, "history", "needs an earlier commit; .ci/run runs it in a clone, "+
				"and packaging/test/scenario/survive.sh replaces versions")
		}
		tree := exec.Command("git", "-C", "..", "archive", commit)
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

// A service works with a runner of an older or newer version that already exists when the service starts.
// That runner keeps its jobs, with their pids, output and exit codes. No job runs twice. New jobs go to a
// runner of the version of the service. The old runner ends after its last job.
func TestServiceAdoptsRunnersOfOtherVersions(t *testing.T) {
	t.Parallel()
	now := binary(t, "")
	for name, other := range map[string]string{"schema": buildVersion(t, oldestCompatible, "0.0.9"),
		"number": buildVersion(t, nil, "9.9.9")} {
		for direction, bins := range map[string][]string{"upgrade": {other, now}, "downgrade": {now, other}} {
			t.Run(direction+" "+name, func(t *testing.T) {
				t.Parallel()
				q := newQueue(t, "")
				if name == "schema" && direction == "downgrade" {
					// Create the database with the older program, which cannot open a database that a newer
					// program has changed.
					q.bin = bins[1]
					q.start("--workers", "1")
					q.stop()
				}
				q.bin = bins[0]
				q.start("--workers", "3", "--keep-jobs")
				gate := filepath.Join(t.TempDir(), "go")
				w := q.dial()
				var jobs []fields
				for i := range 3 {
					jobs = append(jobs, fields{"id": fmt.Sprint("j", i), "max_retries": 0,
						"command": gatedJob(gate) + fmt.Sprintf("; exit %d", 10+i)})
				}
				ids := w.batch(jobs)
				pids := map[string]int{}
				for _, id := range ids {
					pids[id] = w.waitRunning(id).PID
				}
				runners := q.runnerPids()
				if code := q.stop(); code != 0 {
					t.Fatalf("the first service ended with %d", code)
				}

				q.bin = bins[1]
				q.start("--workers", "4", "--keep-jobs")
				w = q.dial()
				for _, id := range ids {
					if j := w.show(id); j.State != "processing" || j.PID != pids[id] || !isAlive(pids[id]) {
						t.Errorf("%s is %s with pid %d, was %d", id, j.State, j.PID, pids[id])
					}
				}
				q.must("enqueue", "--id", "new", "echo $PPID")
				q.must("wait", "new")
				if parent := strings.TrimSpace(q.show("new").Output); parent == fmt.Sprint(runners[0]) {
					t.Error("the runner of the other version took a new job")
				}
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				for i, id := range ids {
					q.cli("wait", id)
					j := q.show(id)
					want := fmt.Sprintf("up\npid %d\nend of %[1]d\n", pids[id])
					if len(j.History) != 1 || j.ExitCode == nil || *j.ExitCode != 10+i || j.Output != want {
						t.Errorf("%s: %+v, want exit code %d and output %q", id, j, 10+i, want)
					}
				}
				q.waitUntil("the other version's runner is gone", 20*time.Second, func() bool {
					return !slices.Contains(q.runnerPids(), runners[0]) && syscall.Kill(runners[0], 0) == syscall.ESRCH
				})
				q.must("enqueue", "--id", "last", "echo fine")
				q.must("wait", "last")
				if code := q.stop(); code != 0 {
					t.Errorf("the second service ended with %d", code)
				}
				if remaining := q.runnerPids(); len(remaining) != 1 {
					t.Errorf("%d runners are left, want the one that is kept", len(remaining))
				}
			})
		}
	}
}

// If the program on disk is replaced while the service runs, new jobs go to runners started from
// the new program.
func TestRunnerOfAReplacedProgram(t *testing.T) {
	t.Parallel()
	other := buildVersion(t, nil, "9.9.9")
	q := newQueue(t, "")
	q.bin = install(q, binary(t, ""), q.dir)
	q.start("--workers", "1")
	if err := os.Remove(q.bin); err != nil { // like a package upgrade: running processes keep the old file
		t.Fatal(err)
	}
	install(q, other, q.dir)
	q.killRunners()
	q.must("run", "--", "true")
	q.must("run", "--", "true")
	if n := len(q.runnerPids()); n != 1 {
		t.Errorf("%d runners, want 1", n)
	}
}

// A service can start while an old runner is about to end. It receives the results of that
// runner's jobs, and starts another runner for new jobs.
func TestServiceStartsWhileOldRunnerEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "2")
	gate := filepath.Join(t.TempDir(), "go")
	id := q.must("enqueue", "--kill-after", "1m", "trap '' TERM; "+gatedJob(gate))
	q.waitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(q.must("logs", id), "up") && q.show(id).State == "processing"
	})
	old := q.runnerPid()
	q.kill()
	q.waitUntil("the runner has noticed", 20*time.Second, func() bool {
		sockets := 0
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", old))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
				sockets++
			}
		}
		return sockets == 1 // only the socket on which the runner listens is left
	})
	syscall.Kill(old, syscall.SIGTERM)
	q.start("--workers", "2")
	if got := q.must("run", "--", "echo", "new"); got != "new" {
		t.Errorf("a new job says %q", got)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q.must("wait", id)
	if j := q.show(id); len(j.History) != 2 || j.History[0].Reason != "stopped" || j.Attempts != 1 ||
		!strings.Contains(j.Output, "end of") {
		t.Errorf("the job of the runner that ends: %+v, want it given back once", j)
	}
	q.waitUntil("it is gone", 20*time.Second, func() bool { return !slices.Contains(q.runnerPids(), old) })
}
