package sql

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
)

// The SQL store fulfils the contract of store.Store.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T, order queue.Order) storetest.Fixture {
		s, err := Open(t.Context(), Options{Dir: t.TempDir(), Order: order})
		if err != nil {
			t.Fatal(err)
		}
		return fixture(t, s, s.Engine)
	})
}

// fixture returns an open store whose clock only advances on request.
func fixture(t *testing.T, s store.Store, of *Engine) storetest.Fixture {
	t.Cleanup(func() { s.Close() })
	var now atomic.Int64
	now.Store(time.Now().UnixMilli())
	of.now = func() queue.Millis { return queue.Millis(now.Load()) }
	return storetest.Fixture{Store: s, Advance: func(d time.Duration) { now.Add(d.Milliseconds()) }}
}
