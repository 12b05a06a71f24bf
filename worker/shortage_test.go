package worker_test

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// Jobs that could not be started because something of their own does not answer are put off,
// and nobody else's wait for that.
func TestAShortageOfTheirOwnPausesNobody(t *testing.T) {
	s, f, _ := begin(t, 2, make([]int64, 4)...)
	hears[*wire.Start](t, f, 2)
	said := time.Now()
	one, two := short(lease(1)), short(lease(2))
	one.Cause, two.Cause = int64(queue.HungStart), int64(queue.HungStart)
	f.say(one, two)
	s.becomes(1, queue.Pending)
	s.becomes(2, queue.Pending)
	if _, at := hears[*wire.Start](t, f, 4); at.Sub(said) >= time.Second {
		t.Errorf("the others began after %v", at.Sub(said))
	}
}
