package testrig

import (
	"time"
)

// CliWithin runs a command that must return within the given time, even if other processes hang.
func (q *Queue) CliWithin(limit time.Duration, args ...string) Result {
	q.Helper()
	started := time.Now()
	got := q.Cli(args...)
	if elapsed := time.Since(started); elapsed > limit {
		q.Errorf("%v took %v, want at most %v", args, elapsed, limit)
	}
	return got
}
