package engine

import (
	"context"
	"errors"
	"maps"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
)

// SimulateClaims returns the jobs that the next claims would take. It really claims them, and then undoes the
// claims.
func (e *Engine) SimulateClaims(ctx context.Context, n int) (store.ClaimSimulation, error) {
	return readWriterMemory(ctx, e, func(t *Tx) (simulation store.ClaimSimulation, err error) {
		err = t.WithSavepoint(func() (err error) {
			if simulation, err = t.rules.SimulateClaims(n); err == nil {
				err = errUndoSimulation
			}
			return err
		})
		if err == errUndoSimulation {
			err = nil
		}
		return simulation, err
	})
}

// errUndoSimulation makes WithSavepoint undo the simulated claims.
var errUndoSimulation = errors.New("simulation only")

// WithSavepoint implements rules.Savepoints. It calls part and, if that returns an error, undoes the changes
// of part but not those of the rest of the transaction.
func (t *Tx) WithSavepoint(operation func() error) error {
	t.WriteGateJobCounts()
	t.Exec(`SAVEPOINT part`)
	memoryBefore := *t.memory
	users, counts := maps.Clone(t.users), map[*lanes.Queue]records.QueueCounts{}
	for _, q := range t.lanes.Queues {
		counts[q] = q.StoredCounts()
	}
	was, undo := *t, len(t.undoFuncs)
	back := t.engine.gateRecheckState.SaveDirtyGates()
	err := operation()
	if err == nil {
		return t.Exec(`RELEASE part`)
	}
	t.Exec(`ROLLBACK TO part`)
	if failed := t.Exec(`RELEASE part`); failed != nil {
		return failed
	}
	for i := len(t.undoFuncs) - 1; i >= undo; i-- {
		t.undoFuncs[i]()
	}
	begun := t.hasBegun
	*t = was
	t.hasBegun = begun
	t.discardPrefetchedRows()
	t.laneCache = laneCache{}
	t.gateTables.ResetCache()
	t.rules.ClearRateCache()
	*t.memory = memoryBefore
	maps.Copy(t.users, users)
	maps.DeleteFunc(t.users, func(uid int, _ userCounts) bool { _, known := users[uid]; return !known })
	for q, c := range counts {
		q.SetStoredCounts(c)
	}
	t.recountLeasedJobs()
	back()
	return err
}
