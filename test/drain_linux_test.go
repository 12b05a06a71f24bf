package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/test/pgserver"
)

// drain returns once no job can start, even if the runner does not answer. If the runner has received a job
// before the drain, it does not start that job later.
func TestDrainAnswersOnceNoJobCanStart(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	longJob := w.enqueue(fields{"command": "echo up; " + q.waitForFileCommand("go")})
	w.waitRunning(longJob)
	_, thaw := q.stopRunner()
	sent := w.enqueue(fields{"command": "touch " + q.path("started")})
	q.waitUntil("it is sent", 10*time.Second, func() bool { return q.countReserved() == 1 })
	if got := q.cliWithin(15*time.Second, "drain"); got.code != 0 {
		t.Fatalf("drain: %+v", got)
	}
	if n := q.countReserved(); n != 0 {
		t.Errorf("drain has answered while the runner may start %d jobs", n)
	}
	thaw()
	q.writeFile("go", "")
	w.waitEnded(longJob)
	if j := w.show(sent); j.State != "pending" {
		t.Errorf("the job that was sent before the drain: %+v", j)
	}
	if _, err := os.Stat(q.path("started")); err == nil {
		t.Error("a job has started during the drain")
	}
	q.must("drain", "--off")
	w.waitEnded(sent)
}

// countStarted returns the number of attempts that the runners have recorded in their running tables.
func (q *queue) countStarted() (n int) {
	const slot = 64 // size of a slot in bytes; the first slot contains the header
	tables, _ := filepath.Glob(q.runnerDir() + "/*/running")
	for _, name := range tables {
		raw, _ := os.ReadFile(name)
		for at := slot; at+slot <= len(raw); at += slot {
			// The first 8 bytes contain the job's number; 0 means that the slot is free.
			if strings.Trim(string(raw[at:at+8]), "\x00") != "" {
				n++
			}
		}
	}
	return n
}

// A runner that is stopped may have recorded an attempt without having started its process. When the runner
// continues, it may still start the job. A drain reports that, even after a restart of the service. The drain
// is complete once the job has started.
func TestDrainNamesAJobThatItsStoppedRunnerMayStart(t *testing.T) {
	q := newQueue(t, "failpoint")
	q.env = []string{"QUEUECTL_FAILPOINTS=attempt-noted=wait:" + q.path("go")}
	q.start("--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo started"})
	q.waitUntil("its attempt is noted", 10*time.Second, func() bool { return q.countStarted() == 1 })
	_, thaw := q.stopRunner()
	for _, when := range []string{"at first", "after a restart"} {
		got := q.cliWithin(15*time.Second, "drain")
		if got.code != 3 || !strings.Contains(got.err, "does not answer, so job "+id+" cannot be reached") ||
			!strings.Contains(got.err, "draining has begun, but this job may still start") {
			t.Errorf("%s: got %+v, want an error that names the job and its runner", when, got)
		}
		if when == "at first" {
			q.kill()
			q.start("--workers", "1")
		}
	}
	q.writeFile("go", "")
	thaw()
	q.waitUntil("a drain is complete", 20*time.Second, func() bool { return q.cli("drain").code == 0 })
	if j := q.dial().waitEnded(id); j.Output != "started\n" || len(j.History) != 1 {
		t.Errorf("got %+v, want one attempt", j)
	}
}

// If a node's runner has recorded a job but does not start it, a drain fails, even if it is
// requested on another node. Other cluster-wide changes still work.
func TestDrainOfAnotherNodeNamesAJobThatMayStart(t *testing.T) {
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	b.bin = binary(t, "failpoint")
	b.env = append(b.env, "QUEUECTL_FAILPOINTS=attempt-noted=wait:"+b.path("go"))
	a.start("--workers", "1")
	b.start("--workers", "1")
	id := a.must("enqueue", "--on", "b", "echo started")
	a.waitUntil("its attempt is noted", 10*time.Second, func() bool { return b.countStarted() == 1 })
	want := "on b: job " + id + " is still starting; draining has begun, but this job may still start"
	for _, verb := range [][]string{{"node", "drain", "b"}, {"drain"}} {
		if got := a.cliWithin(20*time.Second, verb...); got.code != 3 || !strings.Contains(got.err, want) {
			t.Errorf("%v: got %+v, want an error with %q", verb, got, want)
		}
	}
	a.must("config", "set", "priority", "3")
	logs, _ := filepath.Glob(a.path("stderr-*"))
	for _, name := range logs {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), "has not confirmed a settings change") {
			t.Error("a node that drains counts as one that has not confirmed another change")
		}
	}
	b.writeFile("go", "")
	a.waitUntil("the job has run", 20*time.Second, func() bool { return a.show(id).State == "completed" })
	a.must("node", "drain", "b", "--wait")
	a.must("drain", "--wait")
}
