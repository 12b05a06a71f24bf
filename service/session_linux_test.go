package service

import (
	"context"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/session"
)

// When the session of its user ends a service waits for no job: each is ended and given back, with so little grace
// that there is time to store it, whatever stop_timeout and the job say.
func TestNoJobIsWaitedForWhenTheSessionEnds(t *testing.T) {
	wholes(t, func(w *whole) {
		w.end()
		w.ends = true
		w.start()
		deaf := command("deaf", "trap '' TERM; echo begun; while :; do sleep 1; done")
		hour := time.Hour
		deaf.KillAfter = &hour
		w.enqueue(deaf)
		w.becomes("deaf", "processing")
		began := time.Now()
		w.stop(session.ErrEnds)
		w.ended <- <-w.ended
		if took := time.Since(began); took < session.Grace || took > 3*session.Grace {
			t.Errorf("it took %v", took)
		}
		w.end()
		w.start()
		if j := w.becomes("deaf", "processing"); j.Reason == nil || *j.Reason != "stopped" || len(j.History) != 2 || j.Attempts != 0 {
			t.Errorf("given back: %+v", j)
		}
		w.verb(func(ctx context.Context, s control.Selection) (control.BulkResult, error) {
			return w.Kill(ctx, control.Kill{Selection: s, Signal: "KILL"})
		}, "deaf")
		w.becomes("deaf", "dead")
	})
}
