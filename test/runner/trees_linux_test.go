package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A process stopped by SIGSTOP ends at its timeout, like any other process.
func TestSuspendedJobTimesOut(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "kill -STOP $$; sleep 60", "timeout_ms": 300,
		"kill_after":  "300ms",
		"max_retries": 0}))
	if j.Reason != "timed_out" || j.AttemptHistory[0].FinishedAt.Sub(j.AttemptHistory[0].StartedAt) > 5*time.Second {
		t.Errorf("a job stopped by SIGSTOP that reached its timeout: %+v", j)
	}
}

// timerSlack returns the timer slack of this process, which the service inherits.
func timerSlack() string {
	ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintln(ns)
}

// A job starts with three descriptors, no terminal, an empty stdin and default signal handling. The service
// sets the job's umask, descriptor limit and environment. The job has the timer slack that the service inherited.
func TestJobGetsDefaultProcessAttributes(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{"NOTIFY_SOCKET=/x", "LISTEN_FDS=1", "CREDENTIALS_DIRECTORY=/x", "SECRET=s", "INVOCATION_ID=1"}
	q.StartService("--workers", "1")
	w := q.DialService()
	for _, c := range []struct{ command, want string }{
		{`ls /proc/$$/fd`, "0\n1\n2\n"},
		{`readlink /proc/$$/fd/0`, "/dev/null\n"},
		{`(: </dev/tty) 2>/dev/null || echo none`, "none\n"},
		{`read x || echo end`, "end\n"},
		{`umask; ulimit -Sn`, "0022\n1024\n"},
		{`cat /proc/self/timerslack_ns`, timerSlack()},
		{`cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)' | tr -d '\t'`,
			"SigBlk:0000000000000000\nSigIgn:0000000000000000\nSigCgt:0000000000000000\n"},
		{`echo ok; kill -PIPE $$`, "ok\n"},
	} {
		if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": c.command, "max_retries": 0})); j.Output != c.want {
			t.Errorf("%s: got %q, want %q (%+v)", c.command, j.Output, c.want, j.Error)
		}
	}
	id := w.Enqueue(testrig.JSONFields{"argv": []string{"env"}, "env": testrig.JSONFields{"MINE": "1"}})
	var names []string
	for line := range strings.Lines(w.WaitJobEnded(id).Output) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"HOME", "LANG", "LOGNAME", "MINE", "PATH", "QUEUECTL_ATTEMPT", "QUEUECTL_COOKIE", "QUEUECTL_JOB_ID",
		"QUEUECTL_PROGRESS", "QUEUECTL_QUEUE", "QUEUECTL_RESULT", "QUEUECTL_SOCKET", "QUEUECTL_TMPDIR", "QUEUECTL_WORKER",
		"SHELL", "USER"}
	if !slices.Equal(names, want) {
		t.Errorf("environment %q, want %q", names, want)
	}
}

// The end of a job does not interrupt the runner with a signal, because the runner does not catch SIGCHLD.
func TestJobEndSendsRunnerNoSignal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	out := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": `sed -n 's/^SigCgt:\t//p' /proc/$PPID/status`})).Output
	caught, err := strconv.ParseUint(strings.TrimSpace(out), 16, 64)
	if err != nil || caught>>(unix.SIGCHLD-1)&1 != 0 {
		t.Errorf("the runner catches %q (%v), want no SIGCHLD", out, err)
	}
}

// The service records each exit code and each signal correctly.
func TestExitCodesAndSignalsAreRecorded(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	var specs []testrig.JSONFields
	for code := range 256 {
		specs = append(specs, testrig.JSONFields{"command": fmt.Sprintf("exit %d", code), "max_retries": 0})
	}
	signals := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31, 34, 64}
	for _, n := range signals {
		specs = append(specs, testrig.JSONFields{"command": fmt.Sprintf("ulimit -c 0; kill -%d $$; sleep 5", n),
			"max_retries": 0})
	}
	for i, id := range w.EnqueueBatch(specs) {
		j := w.WaitJobEnded(id)
		if i < 256 && (testrig.ValueOrMinusOne(j.ExitCode) != i || j.Signal != nil) || i >= 256 &&
			(testrig.ValueOrMinusOne(j.Signal) != signals[i-256] || j.ExitCode != nil) {
			t.Errorf("%v: code %d, signal %d", specs[i]["command"], testrig.ValueOrMinusOne(j.ExitCode),
				testrig.ValueOrMinusOne(j.Signal))
		}
	}
}

// The runner reaps all processes that jobs leave behind.
func TestRunnerLeavesNoZombies(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	var specs []testrig.JSONFields
	for range 20 {
		specs = append(specs, testrig.JSONFields{"command": "for i in 1 2 3 4 5 6 7 8 9 10; do ( ( true & ) ) ; ( ( " +
			"setsid true & ) ); done"})
	}
	for _, id := range w.EnqueueBatch(specs) {
		if j := w.WaitJobEnded(id); j.State != "completed" {
			t.Errorf("a job that leaves processes behind: %+v", j)
		}
	}
	w.WaitUntil("no zombie is left", 20*time.Second, func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", q.OnlyRunnerPID()))
		return err == nil && len(strings.Fields(string(children))) == 0
	})
}

// Whatever the reason for which a job is ended, its processes get the time in the field kill_after to end by
// themselves. This also applies to processes that outlive the shell of the job.
func TestKillGraceAppliesToWholeTree(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{"QUEUECTL_OUTPUT_GRACE=1ms", "QUEUECTL_STOP_TIMEOUT=100ms"}
	q.StartService("--workers", "1")
	w := q.DialService()
	saved := q.Path("saved")
	line := fmt.Sprintf(
		`sh -c 'trap "sleep 0.3; echo saved >>%s; exit 0" TERM; echo up; while :; do sleep 0.01; done'; echo after`, saved)
	for _, c := range []struct {
		name, field, value string
		end                func(id string)
	}{
		{"cancel", "", "", func(id string) { q.MustRunCLI("cancel", id) }},
		{"timeout", "timeout", "2s", func(id string) { w.WaitJobEnded(id) }},
		{"idle timeout", "idle_timeout", "2s", func(id string) { w.WaitJobEnded(id) }},
		{"requeue", "", "", func(id string) { q.MustRunCLI("requeue", id) }},
		{"worker stop", "", "", func(string) { q.MustRunCLI("worker", "stop", "--all", "--force") }},
		{"service stop", "", "", func(string) { q.StopService() }},
	} {
		job := testrig.JSONFields{"command": line, "kill_after": "1h", "max_retries": 0}
		if c.field != "" {
			job[c.field] = c.value
		}
		id := w.Enqueue(job)
		if c.field == "" {
			w.WaitJobRunning(id)
		}
		c.end(id)
		if raw, err := os.ReadFile(saved); string(raw) != "saved\n" {
			t.Errorf("%s: %q, %v", c.name, raw, err)
		}
		switch c.name {
		case "worker stop":
			q.MustRunCLI("cancel", id)
			q.MustRunCLI("worker", "scale", "1")
		case "requeue":
			q.MustRunCLI("cancel", id)
		}
		os.Remove(saved)
	}
}

// If a job leaves many processes behind, the runner reaps all of them without waiting for another job to end.
func TestRunnerReapsManyLeftoverProcesses(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("run", "i=0; while [ $i -lt 1200 ]; do sleep 1000 & i=$((i+1)); done >/dev/null 2>&1")
	runner := q.OnlyRunnerPID()
	zombies := func() (n int) {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, name := range stats {
			raw, _ := os.ReadFile(name)
			_, stat, _ := strings.Cut(string(raw), ") ")
			if f := strings.Fields(stat); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(runner) {
				n++
			}
		}
		return n
	}
	q.WaitUntil("the runner has no zombie", 10*time.Second, func() bool { return zombies() == 0 })
}
