package test

import (
	"os"
	"testing"
	"time"
)

// drain answers once no job can start any more, also where the runner does not answer: a job
// that it was sent before is not started by it later.
func TestDrainAnswersOnceNoJobCanStart(t *testing.T) {
	q := serving(t, "--workers", "2")
	w := q.dial()
	long := w.enqueue(fields{"command": "echo up; " + q.waitFor("go")})
	w.runs(long)
	_, thaw := q.freeze()
	sent := w.enqueue(fields{"command": "touch " + q.path("started")})
	q.until("it is sent", 10*time.Second, func() bool { return q.reserved() == 1 })
	if got := q.quickly(15*time.Second, "drain"); got.code != 0 {
		t.Fatalf("drain: %+v", got)
	}
	if n := q.reserved(); n != 0 {
		t.Errorf("drain has answered while the runner may start %d jobs", n)
	}
	thaw()
	q.write("go", "")
	w.end(long)
	if j := w.show(sent); j.State != "pending" {
		t.Errorf("the job that was sent before the drain: %+v", j)
	}
	if _, err := os.Stat(q.path("started")); err == nil {
		t.Error("a job has started during the drain")
	}
	q.must("drain", "--off")
	w.end(sent)
}
