package runner

import (
	endian "encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If the pid of a dead job or a dead runner is used again by another process, the service sends no signal to that
// process. To recognise such a process, the service compares its start time with the recorded one.
func TestReusedPIDGetsNoSignal(t *testing.T) {
	t.Run("the kernel reuses the pids", func(t *testing.T) {
		checkUnrelatedProcessesSurvive(t, func(r *testrig.LedgerQueue, job, runner int) []*exec.Cmd {
			syscall.Kill(-job, syscall.SIGKILL)
			for deadline := time.Now().Add(3 * time.Second); !(isPIDFree(job) && isPIDFree(runner)) &&
				time.Now().Before(deadline); {
				time.Sleep(5 * time.Millisecond) // wait until init has reaped both processes, so that their pids are free
			}
			return []*exec.Cmd{startUnrelatedProcess(r, job), startUnrelatedProcess(r, runner)}
		})
	})
	t.Run("the running table contains pids of other processes", func(t *testing.T) {
		checkUnrelatedProcessesSurvive(t, func(r *testrig.LedgerQueue, job, _ int) []*exec.Cmd {
			likeJob, likeRunner := startUnrelatedProcess(r, 0), startUnrelatedProcess(r, 0)
			tables, _ := filepath.Glob(filepath.Join(r.StateDir, "runner", "*", "running"))
			raw, err := os.ReadFile(tables[0])
			if err != nil {
				t.Fatal(err)
			}
			// The file is the running table, in which a runner records its running attempts in slots of 64 bytes. Slot 0
			// describes the runner and starts with its pid. In the other slots, the third 64-bit number is the pid of the job.
			const slot = 64
			endian.LittleEndian.PutUint64(raw, uint64(likeRunner.Process.Pid))
			for at := slot; at < len(raw); at += slot {
				if int(endian.LittleEndian.Uint64(raw[at+16:])) == job {
					endian.LittleEndian.PutUint64(raw[at+16:], uint64(likeJob.Process.Pid))
				}
			}
			r.WriteFile(pathBelowQueueDir(r, tables[0]), string(raw))
			syscall.Kill(-job, syscall.SIGKILL)
			return []*exec.Cmd{likeJob, likeRunner}
		})
	})
}

// isPIDFree reports whether no process has the given pid.
func isPIDFree(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return err != nil
}

func pathBelowQueueDir(q *testrig.LedgerQueue, path string) string {
	name, err := filepath.Rel(q.StateDir, path)
	if err != nil {
		q.Fatal(err)
	}
	return name
}

// checkUnrelatedProcessesSurvive kills the service and the runner while a job runs. Then it calls startUnrelated, which
// starts unrelated processes. These processes get the pids of the job and the runner. Alternatively, startUnrelated
// writes their pids into the running table instead of the pids of the job and the runner. The next service must not end
// these processes.
func checkUnrelatedProcessesSurvive(t *testing.T,
	startUnrelated func(r *testrig.LedgerQueue, jobPID, runnerPID int) []*exec.Cmd) {
	t.Helper()
	r := testrig.NewLedgerQueue(t, "")
	r.StartService("--workers", "1")
	params := r.EnqueueParams("p00000", testrig.LedgerJob{OutputBytes: 10, RunSeconds: 600})
	params["on_lost"] = "dead"
	id := (&testrig.Requester{TargetQueue: r.Harness}).EnqueueBatch(params)[0]
	r.WaitUntil("the job runs", 5*time.Second, func() bool { return r.ShowJob(id).PID != 0 })
	job, runner := r.ShowJob(id).PID, r.OnlyRunnerPID()
	r.WaitUntil("another process is recorded with its start time", 5*time.Second, func() bool {
		startTime, err := time.Parse(time.RFC3339, r.ShowJob(id).StartedAt)
		return err == nil && time.Since(startTime) > 100*time.Millisecond
	})
	r.KillService()
	r.KillRunners()
	for _, s := range startUnrelated(r, job, runner) {
		defer func() {
			if !testrig.IsProcessAlive(s.Process.Pid) {
				t.Errorf("the unrelated process %d was killed", s.Process.Pid)
			}
			syscall.Kill(-s.Process.Pid, syscall.SIGKILL)
			s.Wait() // returns an error, because the process was killed
		}()
	}
	r.StartService("--workers", "1")
	r.WaitUntil("the job is dead", 5*time.Second, func() bool { return r.ShowJob(id).State == "dead" })
}

// startUnrelatedProcess starts a process in a new session. If the test runs as root and the given pid is free,
// the process gets that pid.
func startUnrelatedProcess(q *testrig.LedgerQueue, pid int) *exec.Cmd {
	q.Helper()
	for range 20 {
		pidRequested := pid != 0 && os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0) == nil
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			q.Fatal(err)
		}
		if !pidRequested || cmd.Process.Pid == pid {
			q.Logf("stranger %d, wanted %d", cmd.Process.Pid, pid)
			return cmd
		}
		cmd.Process.Kill()
		cmd.Wait() // returns an error, because the process was killed
	}
	return startUnrelatedProcess(q, 0)
}
