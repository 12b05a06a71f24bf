package engine_test

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlite"
)

// In sequences of random operations and restarts, the engine returns the same results as the model, and its
// lanes are correct after every operation.
func TestWalks(t *testing.T) {
	engine.RunRandomWalks(t, 8, func(t *testing.T) func(queue.RankPolicy) (store.Store, *engine.Engine) {
		dir := t.TempDir()
		return func(order queue.RankPolicy) (store.Store, *engine.Engine) {
			s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir, RankOrder: order})
			if err != nil {
				t.Fatal(err)
			}
			c := engine.NewStoreForEngine(s.Engine).Conn()
			if err := c.Exec(`PRAGMA synchronous = OFF`); err != nil { // no test simulates a power failure
				t.Fatal(err)
			}
			return s, s.Engine
		}
	})
}
