package cli

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// expiryNamed is how many expired jobs of a list are named.
const expiryNamed = 10

// expiries collects the jobs of a list whose expiry time has passed.
type expiries struct {
	// expiry is the value of expires_at that all jobs share and that was already reported. It is 0 if
	// no such value was reported.
	expiry queue.Millis
	lines  []string
	count  int
	never  int // number of jobs that will not run, including those whose expires_at equals the field expiry
}

// add records the job at line n of a list, or at index n of a JSON array, if it has expired. The
// parameter what says what n counts: "line" or "job".
func (e *expiries) add(what string, n int, expires *queue.Millis) {
	now := time.Now()
	if !hasExpired(expires, now) {
		return
	}
	if e.never++; *expires == e.expiry {
		return
	}
	if e.count++; e.count <= expiryNamed {
		text, _ := fullTime(expires.Time(), now)
		e.lines = append(e.lines, fmt.Sprintf("%s %d: this job will not run, because its expiry time is %s", what, n, text))
	}
}

// hasExpired reports whether a job with this expires_at will not run.
func hasExpired(at *queue.Millis, now time.Time) bool {
	return at != nil && *at != 0 && !at.Time().After(now)
}

// printExpired prints the jobs that will not run.
func printExpired(o *Output, e *expiries) {
	for _, line := range e.lines {
		fmt.Fprintln(o.Err, "queuectl: "+line)
	}
	if more := e.count - len(e.lines); more > 0 {
		fmt.Fprintf(o.Err, "queuectl: %d more jobs will not run, because their expiry time has passed\n", more)
	}
}
