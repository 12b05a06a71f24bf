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
func (e *Engine) SimulateClaims(ctx context.Context, jobCount int) (store.ClaimSimulation, error) {
	return readWriterMemory(ctx, e, func(t *Tx) (simulation store.ClaimSimulation, err error) {
		err = t.WithSavepoint(func() (err error) {
			if simulation, err = t.rules.SimulateClaims(jobCount); err == nil {
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

// WithSavepoint implements rules.Savepoints. It calls operation and, if that returns an error, undoes only
// the changes that operation has made.
func (t *Tx) WithSavepoint(operation func() error) error {
	t.WriteGateJobCounts()
	t.Exec(`SAVEPOINT part`)
	before, memoryBefore := *t, *t.databaseCache
	t.userCountsBefore, t.queueCountsBefore = map[int]userCounts{}, map[*lanes.Queue]records.QueueCounts{}
	restoreDirtyGates := t.engine.gateRecheckState.SaveDirtyGates()
	err := operation()
	if err != nil {
		t.Exec(`ROLLBACK TO part`)
	}
	if failed := t.Exec(`RELEASE part`); failed != nil || err == nil {
		maps.Copy(t.userCountsBefore, before.userCountsBefore)
		maps.Copy(t.queueCountsBefore, before.queueCountsBefore)
		return failed
	}
	t.undoCacheChanges(len(before.undoFuncs), &memoryBefore)
	before.hasBegun = t.hasBegun
	*t = before
	t.discardPrefetchedRows()
	t.laneCache = laneCache{}
	t.gateTables.ResetGateCache()
	t.rules.ClearRateCache()
	restoreDirtyGates()
	return err
}
