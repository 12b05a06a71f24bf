package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// StallNotice prints why no job makes progress. Its zero value is ready for use; the time without
// progress begins at the first call of print.
type StallNotice struct {
	since   time.Time
	printed bool // the reason has been printed since there was progress
}

// Reset records that there was progress.
func (s *StallNotice) Reset() { *s = StallNotice{since: time.Now()} }

// Print prints why a job waits if there was no progress for sayWhyAfter. It prints that only once.
// The function waiting returns the id of a job that waits, or "" if a job runs or none waits.
func (s *StallNotice) Print(ctx context.Context, a *App, c *control.Client, waiting func() string) {
	if s.since.IsZero() {
		s.Reset()
	}
	if s.printed || time.Since(s.since) < sayWhyAfter {
		return
	}
	s.printed = true
	if id := waiting(); id != "" {
		a.sayWhy(ctx, c, id)
	}
}

// retryPollEvery is how often the times of retries are queried.
const retryPollEvery = time.Second

// Retries tracks when the first failed job is retried.
type Retries struct {
	due      control.Time // time of the first retry, as of the last query; 0 if no job will be retried
	polledAt time.Time
}

// Describe returns how many failed jobs will be retried and when, like "2 retrying in 8s". It
// returns "" if n is 0. include selects the jobs to consider.
func (r *Retries) Describe(ctx context.Context, c *control.Client, n int64, include func(seq int64) bool) string {
	if n == 0 {
		return ""
	}
	if time.Since(r.polledAt) > retryPollEvery {
		r.polledAt, r.due = time.Now(), 0
		page, err := c.List(ctx, control.List{State: control.Texts{queue.Failed.String()}})
		if err != nil || page.Next != nil {
			// The stream of events reports an error, so it is ignored here. If the list has more than one
			// page, it is unknown which retry is first.
			page.Jobs = nil
		}
		for i := range page.Jobs {
			if j := &page.Jobs[i]; include(j.Seq) && (r.due == 0 || j.NextRetryAt < r.due) {
				r.due = j.NextRetryAt
			}
		}
	}
	note := fmt.Sprintf("%d retrying", n)
	if in := time.Until(queue.Millis(r.due).Time()); r.due != 0 && in > 0 {
		note += " in " + present.Roughly(in)
	}
	return note
}

// Wait returns the time until the first retry, or 0 if it is unknown.
func (r *Retries) Wait() time.Duration {
	if r.due == 0 {
		return 0
	}
	return max(0, time.Until(queue.Millis(r.due).Time()))
}

// ShowEvery is how often the progress is drawn.
const ShowEvery = 100 * time.Millisecond
