package engine

import (
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/statistics"
)

// statistics returns a Writer that changes the stored statistics in this transaction.
func (t *Tx) statistics() *statistics.Writer {
	return &statistics.Writer{Statements: t, Now: t.startTime, Progress: &t.engine.mem.statistics,
		Cache: &t.engine.minuteStats,
		HasRule: func(name string) bool {
			q := t.engine.mem.lanes.Queues[name]
			return q != nil && q.Rule != store.DefaultQueueRule
		}}
}

// writeStatistics adds the starts and ends of attempts that the transaction has recorded to the stored
// statistics.
func (t *Tx) writeStatistics() error {
	changed, err := t.statistics().Add(t.measurements)
	if t.delta != nil {
		t.delta.minuteQueues = append(t.delta.minuteQueues, changed...)
	}
	return err
}
