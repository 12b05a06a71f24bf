//go:build linux || windows

package jobs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// maxRequestTime is the longest time that a request may take while the service processes many jobs in steps. A few
// steps take less than this time even on a busy machine, but all steps together take longer. So a request that had to
// wait for all steps would exceed this limit.
const maxRequestTime = testrig.TimeoutFactor * 500 * time.Millisecond

// enqueueJobs enqueues jobCount jobs, 1,000 per request.
func enqueueJobs(conn *testrig.ServiceConn, jobCount int, spec testrig.JSONFields) {
	conn.Helper()
	for range jobCount / 1000 {
		conn.EnqueueBatch(slices.Repeat([]testrig.JSONFields{spec}, 1000))
	}
}

// enqueueUntil enqueues jobs one after another until isDone returns true, at most for timeLimit. It returns
// the number of enqueued jobs and the time that the slowest request took.
func enqueueUntil(conn *testrig.ServiceConn, timeLimit time.Duration, isDone func() bool) (
	requestCount int, longestRequestTime time.Duration,
) {
	conn.Helper()
	for deadline := time.Now().Add(timeLimit); !isDone(); requestCount++ {
		started := time.Now()
		conn.Enqueue(testrig.JSONFields{"command": "true", "priority": 10})
		longestRequestTime = max(longestRequestTime, time.Since(started))
		if time.Now().After(deadline) {
			conn.Fatalf("not done within %v", timeLimit)
		}
	}
	return requestCount, longestRequestTime
}

// If 100,000 jobs are due in the same millisecond, these jobs delay no other client: the service still serves the
// client's requests and runs the client's jobs.
func TestManyDueJobsDelayNoOtherClient(t *testing.T) {
	testrig.SkipIfShort(t)
	const n = 100_000 / testrig.JobCountDivisor
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	started := time.Now()
	// Measure the speed of the machine: the more slowly it enqueues, the later the jobs below are due.
	enqueueJobs(w, n/20, testrig.JSONFields{"command": "true"})
	due := time.Now().Add(2*time.Second + 30*time.Since(started)).UTC().Truncate(time.Millisecond)
	enqueueJobs(w, n, testrig.JSONFields{"command": "true", "run_at": due.Format(time.RFC3339Nano)})
	if delay := time.Since(due); delay > 0 {
		t.Logf("the last jobs were enqueued %v after their due time", delay)
	}
	w.WaitUntil("the jobs are about to be due", time.Minute, func() bool { return time.Until(due) < 50*time.Millisecond })
	times, worst := enqueueUntil(w, time.Minute, func() bool { return time.Since(due) > 3*time.Second })
	if times < 30/testrig.TimeoutFactor || worst > maxRequestTime {
		t.Errorf("%d enqueues, the slowest took %v", times, worst)
	}
	q.MustRunCLI("worker", "scale", "1")
	w.WaitUntil("some run", 20*time.Second, func() bool { return w.JobCountsByState()["completed"] > 10 })
}

// If 20,000 jobs expire in the same millisecond and are then cleaned up, they delay no other client: the
// service serves requests between the steps of the cleanup.
func TestLargeCleanupDelaysNoClient(t *testing.T) {
	testrig.SkipIfShort(t)
	const n = 20_000
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	expiry := time.Now().Add(8 * time.Second).UTC()
	enqueueJobs(w, n, testrig.JSONFields{"command": "true", "delay": "1h", "expires_at": expiry.Format(time.RFC3339Nano)})
	w.WaitUntil("all jobs have expired", time.Minute, func() bool { return w.JobCountsByState()["cancelled"] == n })
	cleaned := make(chan testrig.CommandResult, 1)
	// This goroutine ends before the test ends, because the loop below waits for the result of the cleanup.
	go func() { cleaned <- q.RunCLI("cleanup", "--state", "cancelled", "--days", "0") }()
	var r testrig.CommandResult
	times, worst := enqueueUntil(w, time.Minute, func() bool {
		select {
		case r = <-cleaned:
			return true
		default:
			return false
		}
	})
	if r.ExitCode != 0 || w.JobCountsByState()["cancelled"] != 0 {
		t.Errorf("cleanup: %+v; %v", r, w.JobCountsByState())
	}
	// A cleanup step removes 200 jobs. On average, at least one enqueue must succeed in four steps.
	if times < n/200/4 || worst > maxRequestTime {
		t.Errorf("%d enqueues succeeded during the cleanup, the slowest took %v", times, worst)
	}
}

// `queuectl enqueue` prints a warning if an argument would be inserted into shell code, even if its output goes
// to a pipe. The warning names a safe form of the command. The jobs are enqueued anyway.
func TestEnqueueWarnsOfArgumentsInShellCode(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	r := q.RunCLI("enqueue", "--", "sh", "-c", "gzip '{}'", ":::", "a.log")
	if want := "queuectl: warning: {} is inside the code that sh runs"; r.ExitCode != 0 ||
		!strings.HasPrefix(r.Stderr, want) ||
		!strings.Contains(r.Stderr, `"$1"' sh {}`) {
		t.Errorf("exit code %d, got %q, want %q and a safe form", r.ExitCode, r.Stderr, want)
	}
	if r := q.RunCLI("enqueue", "--", "sh", "-c", `gzip "$1"`, "sh", "{}", ":::", "a.log"); r.ExitCode != 0 ||
		strings.Contains(r.Stderr, "warning") {
		t.Errorf("the safe form: exit code %d, %q", r.ExitCode, r.Stderr)
	}
}
