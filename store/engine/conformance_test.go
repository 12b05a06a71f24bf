package engine_test

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlite"
	"github.com/queuectl/queuectl/store/storetest"
)

// The engine on an SQLite file does everything that store.Store promises.
func TestSQLiteEngineMeetsStoreContract(t *testing.T) {
	storetest.RunContractTests(t, func(t *testing.T, order queue.RankPolicy) storetest.Fixture {
		s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: t.TempDir(), RankOrder: order})
		if err != nil {
			t.Fatal(err)
		}
		return engine.NewFixture(t, s, s.Engine)
	})
}
