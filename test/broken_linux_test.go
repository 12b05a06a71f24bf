package test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// A user's quota that is used up, and a file that may not grow, count as a full disk: new jobs are refused, what runs goes on and is
// recorded once there is room, and the service lives on.
func TestQuotaIsAFullDisk(t *testing.T) {
	needs(t, "strace")
	t.Parallel()
	for _, fault := range []string{"EDQUOT", "EFBIG"} {
		q := newQueue(t, "")
		q.start("--workers", "2")
		gate := q.path("go")
		q.must("enqueue", "--id", "runs", untilGate(gate))
		q.dial().runs("runs")
		lift := q.trace("-P", q.path("queuectl.db-wal"), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error="+fault)
		if r := q.cli("enqueue", "--id", "refused", "true"); r.code == 0 || q.gone(0) {
			t.Errorf("%s: %+v", fault, r)
		}
		q.write("go", "")
		lift()
		q.must("wait", "--timeout", "20s", "runs")
		q.until("a new job is taken", 20*time.Second, func() bool { return q.cli("enqueue", "--id", "taken", "true").code == 0 })
		if q.gone(0) {
			t.Errorf("%s ended the service:\n%s", fault, q.log)
		}
		q.stop()
	}
}

// Where the folders of jobs are removed they are made anew.
func TestPlaceOfJobsIsMadeAnew(t *testing.T) {
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

// A reserve that cannot be made refuses new jobs for what it is.
func TestReserveThatCannotBeMade(t *testing.T) {
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
	if r := q.cli("enqueue", "true"); r.code == 0 || !strings.Contains(r.err, "the reserve for a full disk cannot be made") {
		t.Errorf("%+v", r)
	}
	if err := os.RemoveAll(q.path("reserve")); err != nil {
		t.Fatal(err)
	}
	q.until("new jobs are taken", 10*time.Second, func() bool { return q.cli("enqueue", "true").code == 0 })
}
