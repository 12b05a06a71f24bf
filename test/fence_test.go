//go:build linux || windows

package test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// sendStaleStarts makes a runner hold the START frames of a service and kills that service. The next service
// says hello and starts the same jobs. Then sendStaleStarts releases all frames and returns the rig. The
// parameter extra lists further failpoints.
func sendStaleStarts(t *testing.T, jobs int, extra string) *rig {
	t.Helper()
	r := newRig(t, "failpoint")
	r.env = []string{"QUEUECTL_FAILPOINTS=runner-start=wait:" + r.path("go") + extra}
	r.start("--workers", "0")
	a := &requester{q: r.queue}
	for n := range jobs {
		if err := r.submit(a, fmt.Sprintf("f%05d", n), rigJob{size: 60 << 10, seconds: 1}); err != nil {
			t.Fatal(err)
		}
	}
	// One claim takes all jobs. If none of them starts within 50 ms, the service recalls them and claims
	// nothing else.
	r.must("worker", "scale", fmt.Sprint(2*jobs))
	r.waitUntil("all jobs are claimed", 5*time.Second, func() bool { return r.countReserved() == jobs })
	// The service sends the START frames right after the claim. The test cannot observe their arrival.
	time.Sleep(100 * time.Millisecond)
	r.kill()
	r.start("--workers", fmt.Sprint(2*jobs))
	r.waitUntil("all jobs are claimed again", 5*time.Second, func() bool { return r.countReserved() == jobs })
	if s := r.countNotes("S"); len(s) > 0 {
		t.Fatalf("the held STARTs ran: %v", s)
	}
	r.writeFile("go", "")
	return r
}

// If a runner reads a START of a dead service after the hello of the next service, it rejects the START, so
// the job runs once. Without this check of the fence, the job runs twice.
func TestFenceRejectsStaleStarts(t *testing.T) {
	const jobs = 4
	t.Run("with the fence", func(t *testing.T) {
		r := sendStaleStarts(t, jobs, "")
		r.waitUntil("all jobs ended", 20*time.Second, func() bool {
			return r.queryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
		})
		r.checkNoOverlap()
		starts := r.countNotes("S")
		for tag, want := range r.acked {
			if j := r.show(want.id); starts[tag] != 1 || j.State != "completed" || j.Attempts != 1 || len(j.History) != 1 {
				t.Errorf("%s started %d times: %+v", tag, starts[tag], j)
			}
		}
	})
	t.Run("without the fence", func(t *testing.T) {
		if !dataSurvivesClose {
			return // on this system a frame is lost when its sender dies, so it cannot arrive late
		}
		r := sendStaleStarts(t, jobs, ",nofence")
		r.waitUntil("the saboteur was caught", 10*time.Second, func() bool {
			for _, n := range r.countNotes("S") {
				if n > 1 {
					return true
				}
			}
			return false
		})
	})
}

// If a request handler panics, that request gets an error with the code internal. The connection
// and the service survive.
func TestPanicInHandler(t *testing.T) {
	q := newQueue(t, "failpoint")
	q.env = []string{"QUEUECTL_FAILPOINTS=request=panic:1"}
	q.start("--workers", "1")
	w, other := q.dial(), q.dial()
	if a := w.call("status", nil); a.Error == nil || a.Error.Data.Code != "internal" || a.Error.Code != -32603 {
		t.Errorf("got %+v, want internal", a)
	}
	for _, c := range []*wire{w, other} {
		a := c.call("enqueue", map[string]any{"command": "true"})
		var got struct{ ID string }
		if a.Error != nil || json.Unmarshal(a.Result, &got) != nil {
			t.Fatalf("got %+v", a)
		}
		if r := q.cli("wait", got.ID); r.code != 0 {
			t.Errorf("wait: exit code %d: %s", r.code, r.err)
		}
	}
}

// A panic in the writer stops the service immediately. All acknowledged jobs exist after the next
// start.
func TestPanicInWriterStopsTheService(t *testing.T) {
	breakEachCommit(t, "panic", func(r *rig) {
		if err := <-r.ended; err == nil {
			t.Error("the service ended with exit code 0")
		}
		r.cmd = nil
	})
}

// The reply to an enqueue is lost if the service dies after the commit, or if the client dies. A repeated
// request with the same key then finds the job. The job exists once, with its id.
func TestRepeatedKeyFindsStoredJob(t *testing.T) {
	breakEachCommit(t, "kill", func(r *rig) {
		if !r.waitKilled(5 * time.Second) {
			t.Error("the service was not killed")
		}
	})
	q := newQueue(t, "")
	q.start("--workers", "0")
	const clients = 20
	var closed []*wire
	for n := range clients {
		w := q.dial()
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"command":"true","key":"k%d"}}`+"\n", n)
		closed = append(closed, w)
	}
	q.waitUntil("the jobs are stored", 5*time.Second, func() bool {
		return q.queryInt(`SELECT count(*) FROM jobs`) == clients
	})
	for _, w := range closed {
		w.Close() // close the connection without reading the reply
	}
	w := q.dial()
	seen := map[string]bool{}
	for n := range clients {
		a := w.call("enqueue", map[string]any{"command": "true", "key": fmt.Sprintf("k%d", n)})
		var got struct {
			ID        string
			Duplicate bool
		}
		if a.Error != nil || json.Unmarshal(a.Result, &got) != nil || !got.Duplicate || seen[got.ID] {
			t.Errorf("key %d again: %+v", n, a)
		}
		seen[got.ID] = true
	}
}

// breakEachCommit breaks the service at its n-th commit, for several n from 1 on, while a client enqueues. It
// calls waitDown when the service must be down, and then starts the service again. Every acknowledged job
// must exist. If a job without an acknowledgement exists, a request with its key must find it.
func breakEachCommit(t *testing.T, failpoint string, waitDown func(*rig)) {
	t.Helper()
	r := newRig(t, "failpoint")
	acked, found := 0, 0
	// Several n are needed, because not every commit stores a job: the service also commits for itself.
	for n := 1; n <= 8 || found == 0 && n <= 40; n++ {
		r.env = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=%s:%d", failpoint, n)}
		ready := r.tryStart("--workers", "0") == nil
		params := r.params("k00000", rigJob{size: 10})
		params["key"] = fmt.Sprint("first ", n)
		for a, running := (&requester{q: r.queue}), ready; running; {
			got, err := a.request("enqueue", params, nil)
			if got.Error != nil {
				t.Fatalf("commit %d: answered with %+v", n, *got.Error)
			}
			if running = err == nil; !running {
				t.Logf("commit %d, after %d were acknowledged: %v", n, acked, err)
			} else {
				acked++
				params["key"] = fmt.Sprint(n, " after ", acked)
			}
		}
		waitDown(r)
		r.env = nil
		r.start("--workers", "0")
		stored := r.queryInt(`SELECT count(*) FROM jobs`)
		var got struct{ Duplicate bool }
		if err := json.Unmarshal((&requester{q: r.queue}).mustRequest("enqueue", params), &got); err != nil {
			t.Fatal(err)
		}
		if got.Duplicate {
			found++
			stored--
		}
		if acked != stored {
			t.Errorf("commit %d: %d jobs stored before the last, %d were acknowledged", n, stored, acked)
		}
		acked++
		r.kill()
	}
	if found == 0 {
		t.Error("no answer was lost after its commit")
	}
}
