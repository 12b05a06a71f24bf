package engine

import (
	"context"
	"errors"
	"maps"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
)

// Simulate returns the jobs that the next claims would take. It really claims them, and then undoes the
// claims.
func (e *Engine) Simulate(ctx context.Context, n int) (store.Simulation, error) {
	return readWriterMemory(ctx, e, func(t *Tx) (simulation store.Simulation, err error) {
		err = t.WithSavepoint(func() (err error) {
			if simulation, err = t.rules.Simulate(n); err == nil {
				err = errSimulated
			}
			return err
		})
		if err == errSimulated {
			err = nil
		}
		return simulation, err
	})
}

// errSimulated makes WithSavepoint undo the simulated claims.
var errSimulated = errors.New("simulation only")

// WithSavepoint implements rules.Savepoints. It calls part and, if that returns an error, undoes the changes
// of part but not those of the rest of the transaction.
func (t *Tx) WithSavepoint(part func() error) error {
	t.WriteNamingCounts()
	t.Exec(`SAVEPOINT part`)
	m, s := t.engine.mem, t.engine
	users, counts := maps.Clone(m.users), map[*lanes.Queue]records.QueueCounts{}
	for _, q := range m.lanes.Queues {
		counts[q] = q.StoredCounts()
	}
	was, undo := *t, len(t.undo)
	back := s.gateRechecks.SaveDirtyGates()
	err := part()
	if err == nil {
		return t.Exec(`RELEASE part`)
	}
	t.Exec(`ROLLBACK TO part`)
	if failed := t.Exec(`RELEASE part`); failed != nil {
		return failed
	}
	for i := len(t.undo) - 1; i >= undo; i-- {
		t.undo[i]()
	}
	begun := t.hasBegun
	*t = was
	t.hasBegun = begun
	t.discardPrefetchedRows()
	t.laneCache = laneCache{}
	t.gateTables.Forget()
	t.rules.ClearRates()
	s.mem = m
	maps.Copy(s.mem.users, users)
	maps.DeleteFunc(s.mem.users, func(uid int, _ user) bool { _, known := users[uid]; return !known })
	for q, c := range counts {
		q.SetStoredCounts(c)
	}
	s.mem.recountLeased()
	back()
	return err
}
