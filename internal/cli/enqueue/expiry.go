package enqueue

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// expiryNamed is the highest number of expired jobs that messages name.
const expiryNamed = 10

// Expiries collects the jobs of a list whose expiry time has passed.
type Expiries struct {
	// expiry is the value of expires_at that all jobs share and that was already reported. It is 0 if
	// no such value was reported.
	expiry queue.Millis
	lines  []string
	count  int
	Never  int // number of jobs that will not run, including jobs that share the value in expiry
}

// Add records an expired job. n is its line in a list, or its index in a JSON array. The parameter what
// says which of them: "line" or "entry".
func (e *Expiries) Add(what string, n int, expires *queue.Millis) {
	now := time.Now()
	if !present.HasExpired(expires, now) {
		return
	}
	if e.Never++; *expires == e.expiry {
		return
	}
	if e.count++; e.count <= expiryNamed {
		text, _ := present.FullTime(expires.Time(), now)
		e.lines = append(e.lines, fmt.Sprintf("%s %d: this job will not run, because its expiry time is %s; to run "+
			"it, add it again with a later expires_at", what, n, text))
	}
}

// PrintExpired prints the jobs that will not run.
func PrintExpired(o *term.Output, e *Expiries) {
	for _, line := range e.lines {
		fmt.Fprintln(o.Stderr, "queuectl: warning: "+line)
	}
	if more := e.count - len(e.lines); more > 0 {
		fmt.Fprintf(o.Stderr, "queuectl: warning: %d more jobs will not run, because their expiry time has passed\n", more)
	}
}
