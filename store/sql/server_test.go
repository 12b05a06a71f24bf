package sql

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A database on a server keeps the contract.
func TestConformanceOfAServer(t *testing.T) {
	p := pgserver.Shared(t)
	storetest.Run(t, func(t *testing.T, order queue.Order) storetest.Fixture {
		s, err := OpenServer(t.Context(), p.Create(t), Options{Order: order})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		var now atomic.Int64
		now.Store(time.Now().UnixMilli())
		s.now = func() queue.Millis { return queue.Millis(now.Load()) }
		return storetest.Fixture{Store: s, Advance: func(d time.Duration) { now.Add(d.Milliseconds()) }}
	})
}

// So do the engine on a server and the model walk together.
func TestWalksOfAServer(t *testing.T) {
	p := pgserver.Shared(t)
	walks(t, 2, func(t *testing.T) func(queue.Order) (store.Store, *engine) {
		url := p.Create(t)
		return func(order queue.Order) (store.Store, *engine) {
			s, err := OpenServer(t.Context(), url, Options{Order: order})
			if err != nil {
				t.Fatal(err)
			}
			return s, s.engine
		}
	})
}

// Statements are told to a server as it writes them.
func TestServerSQL(t *testing.T) {
	for is, want := range map[string]string{
		`SELECT a FROM t INDEXED BY t_a WHERE a = ? AND b = '?'`: `SELECT a FROM t  WHERE a = $1 AND b = '?'`,
		`UPDATE t SET a = ?, b = ? WHERE c = ?3`:                 `UPDATE t SET a = $1, b = $2 WHERE c = $3`,
		`SELECT 1 FROM a CROSS JOIN b ON c = ?`:                  `SELECT 1 FROM a JOIN b ON c = $1`,
	} {
		if got := serverSQL(is); strings.TrimSpace(got) != want {
			t.Errorf("%s: got %q, want %q", is, got, want)
		}
	}
}
