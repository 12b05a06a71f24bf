//go:build linux || windows

package test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// maxStepTime is the longest time that a request may take while the service processes many jobs in
// steps. It covers several steps on a busy machine, but not all of them.
const maxStepTime = timeoutFactor * 500 * time.Millisecond

// enqueueMany enqueues n jobs, 1,000 per request.
func (w *wire) enqueueMany(n int, spec fields) {
	w.Helper()
	for range n / 1000 {
		w.batch(slices.Repeat([]fields{spec}, 1000))
	}
}

// enqueueWhile enqueues jobs one after another until ok returns true. It returns their number and the
// longest time of one request.
func (w *wire) enqueueWhile(limit time.Duration, ok func() bool) (times int, worst time.Duration) {
	w.Helper()
	for deadline := time.Now().Add(limit); !ok(); times++ {
		started := time.Now()
		w.enqueue(fields{"command": "true", "priority": 10})
		worst = max(worst, time.Since(started))
		if time.Now().After(deadline) {
			w.Fatalf("not done within %v", limit)
		}
	}
	return times, worst
}

// 100,000 jobs that are due in the same millisecond delay no other client: its requests are
// served, and its jobs run.
func TestManyDueJobsDelayNoClient(t *testing.T) {
	const n = 100_000 / jobDivisor
	q := startQueue(t, "--workers", "0")
	w := q.dial()
	started := time.Now()
	// Measure the speed of the machine. The due time below depends on it.
	w.enqueueMany(n/20, fields{"command": "true"})
	due := time.Now().Add(2*time.Second + 30*time.Since(started)).UTC().Truncate(time.Millisecond)
	w.enqueueMany(n, fields{"command": "true", "run_at": due.Format(time.RFC3339Nano)})
	if delay := time.Since(due); delay > 0 {
		t.Logf("the last ones were due before they came, by %v", delay)
	}
	w.waitUntil("they are about to be due", time.Minute, func() bool { return time.Until(due) < 50*time.Millisecond })
	times, worst := w.enqueueWhile(time.Minute, func() bool { return time.Since(due) > 3*time.Second })
	if times < 30/timeoutFactor || worst > maxStepTime {
		t.Errorf("%d enqueues, the slowest took %v", times, worst)
	}
	q.must("worker", "scale", "1")
	w.waitUntil("some run", 20*time.Second, func() bool { return w.counts()["completed"] > 10 })
}

// 20,000 jobs that expire in the same millisecond and are then cleaned up delay no other client:
// requests are served between the steps.
func TestLargeCleanupDelaysNoClient(t *testing.T) {
	const n = 20_000
	q := startQueue(t, "--workers", "0")
	w := q.dial()
	expiry := time.Now().Add(8 * time.Second).UTC()
	w.enqueueMany(n, fields{"command": "true", "delay": "1h", "expires_at": expiry.Format(time.RFC3339Nano)})
	w.waitUntil("they have expired", time.Minute, func() bool { return w.counts()["cancelled"] == n })
	cleaned := make(chan result, 1)
	// This goroutine ends before the test does, because the loop below waits for the result.
	go func() { cleaned <- q.cli("cleanup", "--state", "cancelled", "--days", "0") }()
	var r result
	times, worst := w.enqueueWhile(time.Minute, func() bool {
		select {
		case r = <-cleaned:
			return true
		default:
			return false
		}
	})
	if r.code != 0 || w.counts()["cancelled"] != 0 {
		t.Errorf("cleanup: %+v; %v", r, w.counts())
	}
	// A cleanup step removes 200 jobs. At least one request must get through in four steps.
	if times < n/200/4 || worst > maxStepTime {
		t.Errorf("%d enqueues meanwhile, the slowest took %v", times, worst)
	}
}

// enqueue prints a warning if an argument would be inside code for a shell, even if its output
// goes to a pipe. The warning names a safe form. The jobs are enqueued anyway.
func TestEnqueueWarnsOfArgumentsInShellCode(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	r := q.cli("enqueue", "--", "sh", "-c", "gzip '{}'", ":::", "a.log")
	if want := "queuectl: warning: {} is inside the code that sh runs"; r.code != 0 || !strings.HasPrefix(r.err, want) ||
		!strings.Contains(r.err, `"$1"' sh {}`) {
		t.Errorf("exit code %d, got %q, want %q and a safe form", r.code, r.err, want)
	}
	if r := q.cli("enqueue", "--", "sh", "-c", `gzip "$1"`, "sh", "{}", ":::", "a.log"); r.code != 0 ||
		strings.Contains(r.err, "warning") {
		t.Errorf("the safe form: exit code %d, %q", r.code, r.err)
	}
}
