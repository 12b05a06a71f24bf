package engine_test

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/store/storetest"
)

// openWithSimulatedCommits opens a node that behaves as if other nodes committed too; see
// SimulateOtherNodeCommits.
func openWithSimulatedCommits(t *testing.T, url string, order queue.RankPolicy) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.Options{RankOrder: order,
		Node: postgres.NodeConfig{NodeName: "one", StateDirID: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	engine.SimulateOtherNodeCommits(s.Engine)
	return s
}

// The engine on a PostgreSQL server does everything that store.Store promises, even while other nodes change
// the database.
func TestPostgresEngineMeetsStoreContract(t *testing.T) {
	sharedServerOrSkip(t)
	storetest.RunContractTests(t, func(t *testing.T, order queue.RankPolicy) storetest.Fixture {
		s := openWithSimulatedCommits(t, createEmptyDatabase(t), order)
		return engine.NewFixture(t, s, s.Engine)
	})
}

// After any sequence of random operations (a walk), the engine on a PostgreSQL server has the same state as
// the simple store in memory, the model.
func TestRandomWalksOnPostgresMatchModel(t *testing.T) {
	p := sharedServerOrSkip(t)
	engine.RunRandomWalks(t, 1, func(t *testing.T) func(queue.RankPolicy) (store.Store, *engine.Engine) {
		url := p.CreateDatabase(t)
		return func(order queue.RankPolicy) (store.Store, *engine.Engine) {
			s := openWithSimulatedCommits(t, url, order)
			return s, s.Engine
		}
	})
}

// A node that applies the cache deltas of another node (its changes to cached data) has the same caches as
// that node, after any operation and across restarts. Its lanes are correct after every step.
func TestCacheDeltasKeepNodesEqual(t *testing.T) {
	p := sharedServerOrSkip(t)
	engine.RunMirroredRandomWalks(t, 1, func(t *testing.T) func(queue.RankPolicy) (s store.Store, first,
		second *engine.Engine) {
		url := p.CreateDatabase(t)
		return func(order queue.RankPolicy) (s store.Store, first, second *engine.Engine) {
			open := func(name string) *postgres.Store {
				// Use a long node lease, because no cache deltas are stored for a node whose lease has
				// expired.
				s, err := postgres.Open(t.Context(), url, postgres.Options{RankOrder: order,
					Node: postgres.NodeConfig{NodeName: name, StateDirID: name, LeaseDuration: time.Hour}})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			one, two := open("one"), open("two")
			two.StopListening() // this node then gets the other's changes only when it begins a transaction
			return one, one.Engine, two.Engine
		}
	})
}
