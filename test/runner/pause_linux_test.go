package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// forkingTreeCommands lists shell commands. The process tree of each command forks continuously.
var forkingTreeCommands = []string{
	`while :; do (:) & wait; done`,                                   // one process forks
	`while :; do (:); (: & :); done & while :; do sleep 0.001; done`, // a child forks, also with vfork
	// In the next tree, each process starts its successor and ends. In the tree after that one, a process in another
	// session forks.
	`printf '%s\n' '(sh ./chain &)' >chain; sh ./chain & while :; do sleep 1; done`,
	`setsid sh -c 'while :; do (:) & wait; done' & sleep 600`,
	`trap '' HUP TERM; for i in 1 2 3 4 5 6 7 8; do (while :; do (:); done) & done; wait`,
}

// pauseRoundCount returns how often the test pauses process trees: the value of QUEUECTL_PAUSES, by default 20,
// or 5 in short mode.
func pauseRoundCount(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("QUEUECTL_PAUSES"))
	if err != nil && os.Getenv("QUEUECTL_PAUSES") != "" {
		t.Fatal(err)
	}
	if n == 0 {
		n = 20
		if testing.Short() {
			n = 5
		}
	}
	return n
}

// No process of a paused tree runs, however fast the tree forks. After a resume, no process is still stopped.
// After a cancel or the death of the runner, no process of the tree exists.
func TestPausedForkingTreesStop(t *testing.T) {
	t.Parallel()
	t.Run("by signals", func(t *testing.T) { checkPauseStopsTrees(t, testrig.NewHarness(t, ""), true) })
	t.Run("by control group", func(t *testing.T) { checkPauseStopsTrees(t, newQueueWithCgroups(t), false) })
}

// checkPauseStopsTrees pauses and resumes trees of jobs that fork all the time, and checks what
// TestPausedForkingTreesStop promises. If wantStoppedBySignal is true, a signal must have stopped each process of
// a paused tree. Otherwise, a control group stops the tree, and no process may be stopped by a signal.
func checkPauseStopsTrees(t *testing.T, q *testrig.Harness, wantStoppedBySignal bool) {
	t.Parallel()
	q.StartService("--workers", "2")
	w := q.DialService()
	rounds, longest := pauseRoundCount(t), time.Duration(0)
	for n := range rounds {
		id := fmt.Sprintf("p%d", n)
		w.Enqueue(testrig.JSONFields{"id": id, "command": forkingTreeCommands[n%len(forkingTreeCommands)],
			"kill_after": "300ms", "on_lost": "dead", "max_retries": 0})
		q.WaitUntil("the tree has several processes", 20*time.Second, func() bool { return len(jobTreeProcesses(q, id)) > 1 })
		started := time.Now()
		if got := q.RunCLI("pause", id); got.ExitCode != 0 || strings.Contains(got.Stderr, "still") {
			t.Fatalf("round %d, %s: pause: %+v", n, forkingTreeCommands[n%len(forkingTreeCommands)], got)
		}
		longest = max(longest, time.Since(started))
		processes := jobTreeProcesses(q, id)
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if now := jobTreeProcesses(q, id); !slices.Equal(now, processes) {
				t.Fatalf("round %d, %s: processes of the paused tree ran: %+v, then %+v", n,
					forkingTreeCommands[n%len(forkingTreeCommands)], processes, now)
			}
		}
		for _, p := range processes {
			// A stopped process may also be in state D (uninterruptible sleep): it has called vfork and waits for its child,
			// which is stopped.
			if p.state == "T" != wantStoppedBySignal && !(wantStoppedBySignal && p.state == "D") {
				t.Errorf("round %d: process %d is in state %s", n, p.pid, p.state)
			}
		}
		switch n % 4 {
		case 0, 1:
			q.MustRunCLI("resume", id)
			q.WaitUntil("no process is stopped", 5*time.Second, func() bool {
				return !slices.ContainsFunc(jobTreeProcesses(q, id), func(p treeProcess) bool { return p.state == "T" })
			})
			q.WaitUntil("the process tree runs again", 5*time.Second, func() bool {
				return !slices.Equal(jobTreeProcesses(q, id), processes)
			})
			q.MustRunCLI("cancel", id)
		case 2:
			q.MustRunCLI("cancel", id)
		case 3:
			q.KillRunners()
			q.WaitUntil("the job is dead", 20*time.Second, func() bool { return q.ShowJob(id).State == "dead" })
		}
		q.WaitUntil("the process tree has ended", 10*time.Second, func() bool { return len(jobTreeProcesses(q, id)) == 0 })
	}
	q.MustRunCLI("run", "true") // this job starts a new runner; the test's cleanup ends it
	t.Logf("%d trees were paused, in %v at most each", rounds, longest)
}

// treeProcess is the state of a process in a job's tree.
type treeProcess struct {
	pid          int
	state        string
	cpuTicksText string // CPU time of the process, in clock ticks
}

// jobTreeProcesses returns the processes of a job that have not ended. It recognises these processes by the job's id in
// their environment.
func jobTreeProcesses(q *testrig.Harness, id string) (processes []treeProcess) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		q.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) &&
			!errors.Is(err, syscall.ESRCH) {
			q.Logf("environ of %d: %v", pid, err)
		}
		if text := "\x00" + string(env); !strings.Contains(text, "\x00QUEUECTL_JOB_ID="+id+"\x00") ||
			!strings.Contains(text, "\x00QUEUECTL_SOCKET="+q.StateDir) {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, statFields, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(statFields)
		if len(f) < 15 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		processes = append(processes, treeProcess{pid, f[0], f[11] + "+" + f[12]})
	}
	return processes
}

// newQueueWithCgroups creates a queue whose runners may create control groups for jobs below their own group, as
// under systemd.
func newQueueWithCgroups(t *testing.T) *testrig.Harness {
	t.Helper()
	skip.UnlessRoot(t, "needs root to make control groups; .ci/run runs it as root, and other cases have signals")
	q := testrig.NewHarness(t, "")
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fsInfo unix.Statfs_t
		if unix.Statfs(root, &fsInfo) != nil || fsInfo.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		group := filepath.Join(root, filepath.Base(q.StateDir))
		if err := os.Mkdir(group, 0o755); errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			q.EndServiceAndRunners()
			removeControlGroups(t, group)
		})
		dir := q.Path("bin")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		service := filepath.Join(dir, testrig.ProgramFileNames[1])
		testrig.CopyProgram(t, filepath.Join(filepath.Dir(q.ClientPath), testrig.ProgramFileNames[1]), service)
		script := fmt.Sprintf("#!/bin/sh\ncase $1 in\nrunner) mkdir %[1]s/$$ && echo $$ >%[1]s/$$/cgroup.procs && exec "+
			"%[2]s \"$@\" --delegated ;;\nserve) exec %[3]s \"$@\" ;;\nesac\nexec %[2]s \"$@\"\n", group, q.ClientPath, service)
		q.ClientPath = filepath.Join(dir, testrig.ProgramFileNames[0])
		testrig.WriteProgram(t, q.ClientPath, script)
		return q
	}
	skip.MissingRequirement(t, "cgroup2", "needs control groups of version 2; other cases have signals")
	return nil
}

// removeControlGroups waits until the control group rootGroup and all groups below it are empty, and removes them.
func removeControlGroups(t *testing.T, rootGroup string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var dirs []string
		filepath.WalkDir(rootGroup, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, path := range slices.Backward(dirs) {
			os.Remove(path)
		}
		if _, err := os.Stat(rootGroup); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("control groups are left: %v", dirs)
			return
		}
	}
}

// When a paused job is ended, the runner resumes it first, so that the job can handle SIGTERM. A signal that
// a user sends also resumes the job, unless the signal is SIGCONT.
func TestEndedPausedJobIsResumedFirst(t *testing.T) {
	for name, queue := range map[string]func(*testing.T) *testrig.Harness{
		"by signals":       func(t *testing.T) *testrig.Harness { return testrig.NewHarness(t, "") },
		"by control group": newQueueWithCgroups,
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t)
			t.Parallel()
			q.ServiceEnv = []string{"QUEUECTL_STOP_TIMEOUT=100ms"}
			q.StartService("--workers", "1")
			w := q.DialService()
			line := `trap "echo saved; exit 7" TERM; echo up; while :; do sleep 0.01; done`
			for _, c := range []struct {
				verb, state string
			}{{"cancel", "cancelled"}, {"kill -s TERM", "dead"}, {"stop", "held"}} {
				id := w.Enqueue(testrig.JSONFields{"command": line, "kill_after": "20s", "max_retries": 0})
				w.WaitJobRunning(id)
				q.MustRunCLI("pause", id)
				q.MustRunCLI("kill", "-s", "CONT", id)
				seen := jobTreeProcesses(q, id)
				for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					if now := jobTreeProcesses(q, id); len(seen) == 0 || !slices.Equal(seen, now) {
						t.Fatalf("SIGCONT resumed a paused job: %v, then %v", seen, now)
					}
				}
				if c.verb == "stop" {
					q.StopService()
					q.StartService("--workers", "1")
				} else {
					q.MustRunCLI(append(strings.Fields(c.verb), id)...)
				}
				q.WaitUntil("the job has ended", 10*time.Second, func() bool { return q.ShowJob(id).State == c.state })
				if j := q.ShowJob(id); j.Output != "up\nsaved\n" {
					t.Errorf("%s: %s, output %q", c.verb, j.State, j.Output)
				}
			}
		})
	}
}
