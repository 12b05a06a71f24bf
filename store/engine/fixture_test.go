package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
)

// newFixture returns an open store for the tests of storetest. e is the engine of the store. Its clock advances
// only when a test advances it.
func newFixture(t *testing.T, s store.Store, e *Engine) storetest.Fixture {
	t.Cleanup(func() { s.Close() })
	var now atomic.Int64
	now.Store(time.Now().UnixMilli())
	e.clock = func() queue.UnixMillis { return queue.UnixMillis(now.Load()) }
	return storetest.Fixture{Store: s, AdvanceClock: func(d time.Duration) { now.Add(d.Milliseconds()) }}
}
