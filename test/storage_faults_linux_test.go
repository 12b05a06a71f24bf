package test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// The service treats an exceeded disk quota (EDQUOT) and a file that may not grow (EFBIG) as a
// full disk. It refuses new jobs, records the results of running jobs once space is free, and
// keeps running.
func TestExceededQuotaIsTreatedAsFullDisk(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	t.Parallel()
	for _, fault := range []string{"EDQUOT", "EFBIG"} {
		q := newQueue(t, "")
		q.start("--workers", "2")
		gate := q.path("go")
		q.must("enqueue", "--id", "runs", gatedJob(gate))
		q.dial().waitRunning("runs")
		lift := q.injectFault("-P", q.path("queuectl.db-wal"), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error="+fault)
		if r := q.cli("enqueue", "--id", "refused", "true"); r.code == 0 || q.waitKilled(0) {
			t.Errorf("%s: %+v", fault, r)
		}
		q.writeFile("go", "")
		lift()
		q.must("wait", "--timeout", "20s", "runs")
		q.waitUntil("a new job is taken", 20*time.Second, func() bool {
			return q.cli("enqueue", "--id", "taken", "true").code == 0
		})
		if q.waitKilled(0) {
			t.Errorf("%s ended the service:\n%s", fault, q.log)
		}
		q.stop()
	}
}

// If the parent directory of the jobs' private directories is removed, the runner creates it
// again.
func TestRemovedJobsDirIsRecreated(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "2")
	q.must("run", "--", "true")
	if err := os.RemoveAll(q.path("runner/jobs")); err != nil {
		t.Fatal(err)
	}
	if out := q.must("run", "--", "sh", "-c", `test -d "$QUEUECTL_TMPDIR" && echo there`); out != "there" {
		t.Errorf("%q", out)
	}
}

// If the service cannot create its reserve file on the disk, it refuses new jobs and names that reason.
func TestMissingReserveRefusesJobs(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "0")
	q.stop()
	if err := os.Remove(q.path("reserve")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(q.path("reserve/x"), 0o700); err != nil {
		t.Fatal(err)
	}
	q.start("--workers", "0")
	if r := q.cli("enqueue", "true"); r.code == 0 ||
		!strings.Contains(r.err, "cannot create the disk reserve for running jobs") {
		t.Errorf("%+v", r)
	}
	if err := os.RemoveAll(q.path("reserve")); err != nil {
		t.Fatal(err)
	}
	q.waitUntil("new jobs are taken", 10*time.Second, func() bool { return q.cli("enqueue", "true").code == 0 })
}

// If other accounts can write to the parent directory of the jobs' private directories, the runner
// refuses to use it. status, why and doctor show the reason and the command that fixes it.
func TestJobsDirMustBePrivate(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	jobsDir := q.path("runner/jobs")
	if err := os.MkdirAll(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(jobsDir, 0o777); err != nil {
		t.Fatal(err)
	}
	q.start("--workers", "1")
	q.must("enqueue", "--id", "waits", "true")
	want := jobsDir + ": other accounts can write to it (mode 777); run: chmod go-w " + jobsDir
	for _, verb := range []string{"status", "why", "doctor"} {
		words := []string{verb}
		if verb == "why" {
			words = append(words, "waits")
		}
		q.waitUntil(verb+" names the directory and the command that helps", 20*time.Second, func() bool {
			return strings.Contains(q.cli(words...).out, want)
		})
	}
	if err := os.Chmod(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	q.must("wait", "--timeout", "20s", "waits")
}

// The operator may mount a file system for the jobs' private directories. Its size then limits
// what jobs can write there.
func TestJobsDirCanBeAMount(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a file system; .ci/run runs it as root")
	q := newQueue(t, "")
	jobsDir := q.path("runner/jobs")
	if err := os.MkdirAll(jobsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", jobsDir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Log(err)
		skip.Missing(t, "mount", "needs the right to mount; .ci/run runs it as root")
	}
	t.Cleanup(func() {
		q.kill()
		q.killRunners()
		if err := unmount(jobsDir); err != nil {
			t.Error(err)
			syscall.Unmount(jobsDir, syscall.MNT_DETACH)
		}
	})
	q.start("--workers", "1")
	if r := q.cli("run", "--max-retries", "0", `head -c 2000000 /dev/zero >"$QUEUECTL_TMPDIR/x"`); r.code != 1 ||
		!strings.Contains(r.out+r.err, "No space left") {
		t.Errorf("a job that fills its directory: exit code %d, %s%s", r.code, r.out, r.err)
	}
	if out := q.must("run", `ls "$QUEUECTL_TMPDIR"; head -c 500000 /dev/zero >"$QUEUECTL_TMPDIR/x" && echo fits`); out != "fits" {
		t.Errorf("the next job finds %q, want an empty directory with room", out)
	}
}
