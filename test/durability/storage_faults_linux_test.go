package durability

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// The service treats an exceeded disk quota (EDQUOT) and a file that may not grow (EFBIG) like a full disk.
// It refuses new jobs and keeps running. When it can write again, it records the results of the jobs that
// ran.
func TestExceededQuotaIsTreatedAsFullDisk(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	t.Parallel()
	for _, fault := range []string{"EDQUOT", "EFBIG"} {
		q := testrig.NewHarness(t, "")
		q.StartService("--workers", "2")
		gate := q.Path("go")
		q.MustRunCLI("enqueue", "--id", "runs", testrig.CommandWaitingForFile(gate))
		q.DialService().WaitJobRunning("runs")
		lift := q.InjectSyscallFault("-P", q.Path("queuectl.db-wal"), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error="+
			fault)
		if r := q.RunCLI("enqueue", "--id", "refused", "true"); r.ExitCode == 0 || q.WaitForFailpointKill(0) {
			t.Errorf("%s: %+v", fault, r)
		}
		q.WriteFile("go", "")
		lift()
		q.MustRunCLI("wait", "--timeout", "20s", "runs")
		q.WaitUntil("a new job is taken", 20*time.Second, func() bool {
			return q.RunCLI("enqueue", "--id", "taken", "true").ExitCode == 0
		})
		if q.WaitForFailpointKill(0) {
			t.Errorf("%s ended the service:\n%s", fault, q.ServiceLog)
		}
		q.StopService()
	}
}

// If the parent directory of the jobs' private directories is removed, the runner creates the
// directory again.
func TestRemovedWorkspaceParentDirIsRecreated(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	q.MustRunCLI("run", "--", "true")
	if err := os.RemoveAll(q.Path("runner/jobs")); err != nil {
		t.Fatal(err)
	}
	if out := q.MustRunCLI("run", "--", "sh", "-c", `test -d "$QUEUECTL_TMPDIR" && echo there`); out != "there" {
		t.Errorf("the job in the recreated directory printed %q", out)
	}
}

// The service keeps a reserve file, which holds disk space for running jobs. If it cannot create the file, it
// refuses new jobs and reports the reason.
func TestMissingReserveFileRefusesNewJobs(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	q.StopService()
	if err := os.Remove(q.Path("reserve")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(q.Path("reserve/x"), 0o700); err != nil {
		t.Fatal(err)
	}
	q.StartService("--workers", "0")
	if r := q.RunCLI("enqueue", "true"); r.ExitCode == 0 ||
		!strings.Contains(r.Stderr, "cannot create the disk reserve for running jobs") {
		t.Errorf("enqueue without the reserve file: %+v", r)
	}
	if err := os.RemoveAll(q.Path("reserve")); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("new jobs are taken", 10*time.Second, func() bool { return q.RunCLI("enqueue", "true").ExitCode == 0 })
}

// If other accounts can write to the parent directory of the jobs' private directories, the runner does not use
// that directory. `queuectl status`, `queuectl why` and `queuectl doctor` print the reason and the command that
// fixes it.
func TestJobsDirWritableByOthersIsRefused(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	jobsDir := q.Path("runner/jobs")
	if err := os.MkdirAll(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(jobsDir, 0o777); err != nil {
		t.Fatal(err)
	}
	q.StartService("--workers", "1")
	q.MustRunCLI("enqueue", "--id", "waits", "true")
	want := jobsDir + ": other accounts can write to it (mode 777); run: chmod go-w " + jobsDir
	for _, verb := range []string{"status", "why", "doctor"} {
		words := []string{verb}
		if verb == "why" {
			words = append(words, "waits")
		}
		q.WaitUntil(verb+" names the directory and the command that helps", 20*time.Second, func() bool {
			return strings.Contains(q.RunCLI(words...).Stdout, want)
		})
	}
	if err := os.Chmod(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("wait", "--timeout", "20s", "waits")
}

// An operator who wants to limit how much jobs can write to their private directories can mount a file system
// at the parent directory.
func TestJobsDirCanBeAMount(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a file system; .ci/run runs it as root")
	q := testrig.NewHarness(t, "")
	jobsDir := q.Path("runner/jobs")
	if err := os.MkdirAll(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", jobsDir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Log(err)
		skip.MissingRequirement(t, "mount", "needs the right to mount; .ci/run runs it as root")
	}
	t.Cleanup(func() {
		q.KillService()
		q.KillRunners()
		if err := testrig.Unmount(jobsDir); err != nil {
			t.Error(err)
			syscall.Unmount(jobsDir, syscall.MNT_DETACH)
		}
	})
	q.StartService("--workers", "1")
	if r := q.RunCLI("run", "--max-retries", "0", `head -c 2000000 /dev/zero >"$QUEUECTL_TMPDIR/x"`); r.ExitCode != 1 ||
		!strings.Contains(r.Stdout+r.Stderr, "No space left") {
		t.Errorf("a job that fills its directory: exit code %d, %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	if out := q.MustRunCLI("run",
		`ls "$QUEUECTL_TMPDIR"; head -c 500000 /dev/zero >"$QUEUECTL_TMPDIR/x" && echo fits`); out != "fits" {
		t.Errorf("the next job finds %q, want an empty directory with room", out)
	}
}
