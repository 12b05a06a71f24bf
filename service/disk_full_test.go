package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/parts"
)

// A start that fails because the disk is full is repeated until there is space, and the log contains one line about it.
// An error of another kind ends the start. After the disk was full, the first error of another kind may also have been
// caused by the full disk, so the start is then repeated once.
func TestStartWaitsForDiskSpace(t *testing.T) {
	full := &ExitError{ExitCodeDatabase, fmt.Errorf("open: %w", queue.ErrNoSpace)}
	other := errors.New("damaged")
	for name, c := range map[string]struct {
		answers []error       // the results of the tries in order; the last result is repeated
		within  time.Duration // time after which the context ends
		want    error
		tries   int // expected number of tries
		said    int // expected number of log lines
	}{
		"first try": {[]error{nil}, time.Hour, nil, 1, 0},
		"soon":      {[]error{full, full, full, nil}, time.Hour, nil, 4, 1},
		"never": {[]error{full}, time.Minute - time.Millisecond, context.DeadlineExceeded,
			int(time.Minute / diskFullRetryDelay), 1},
		"at first":    {[]error{other}, time.Hour, other, 1, 0},
		"for another": {[]error{full, other}, time.Hour, other, 3, 1},
		"freed":       {[]error{full, other, nil}, time.Hour, nil, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				w := &startup{Dependencies: &parts.Dependencies{}}
				w.Log = slog.New(slog.NewTextHandler(&said, nil))
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				tries := 0
				err := w.retryWhileDiskFull(ctx, func() error {
					tries++
					return c.answers[min(tries, len(c.answers))-1]
				})
				if !errors.Is(err, c.want) || tries != c.tries || strings.Count(said.String(), "\n") != c.said {
					t.Errorf("got %v after %d tries, want %v after %d; it said %s", err, tries, c.want, c.tries, &said)
				}
			})
		})
	}
}
