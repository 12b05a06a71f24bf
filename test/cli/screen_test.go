//go:build linux || windows

package cli

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The API method "screen" returns the last line of output of each running job, even if the job prints its progress with
// carriage returns. The method returns the waiting jobs in the order in which they will start.
func TestScreenMethodReturnsJobsAndOutput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": `printf 'begun\n 40 %%\r 50 %%\n\n'; while [ ! -e ` + q.Path("go") +
		` ]; do sleep 0.02; done`})
	type job struct {
		ID       string
		LastLine string `json:"last_line"`
	}
	var s struct{ Running, Ready, Done []job }
	w.WaitUntil("its last line is shown", 10*time.Second, func() bool {
		w.MustCall("screen", testrig.JSONFields{"rows": 5}, &s)
		return len(s.Running) == 1 && s.Running[0] == job{id, "50 %"}
	})
	// Enqueue these jobs only now, because they could otherwise start before the first job.
	low := w.Enqueue(testrig.JSONFields{"command": "true", "priority": 1})
	high := w.Enqueue(testrig.JSONFields{"command": "true", "priority": 9})
	w.MustCall("screen", testrig.JSONFields{"rows": 5}, &s)
	if len(s.Ready) != 2 || s.Ready[0].ID != high || s.Ready[1].ID != low {
		t.Errorf("next jobs: %+v, want %s, %s", s.Ready, high, low)
	}
	q.WriteFile("go", "")
	w.WaitJobEnded(low)
	w.MustCall("screen", testrig.JSONFields{}, &s)
	if len(s.Running) != 0 || len(s.Ready) != 0 || len(s.Done) != 3 {
		t.Errorf("the overview after all jobs have ended: %+v", s)
	}
	for _, rows := range []int{-1, 101} {
		if a := w.Call("screen", testrig.JSONFields{"rows": rows}); a.Error == nil || a.Error.Data.Code != "invalid" {
			t.Errorf("screen with %d rows: %+v", rows, a.Error)
		}
	}
}
