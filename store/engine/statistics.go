package engine

import (
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/statistics"
)

// statisticsWriter returns a Writer that changes the stored statistics in this transaction.
func (t *Tx) statisticsWriter() *statistics.Writer {
	return &statistics.Writer{Statements: t, TxTime: t.startTime, Progress: &t.statistics,
		Cache: &t.engine.minuteStats,
		QueueHasRule: func(name string) bool {
			q := t.lanes.Queues[name]
			return q != nil && q.Rule != store.DefaultQueueRule
		}}
}

// writeStatistics adds the starts and ends of attempts that the transaction has recorded to the stored
// statistics.
func (t *Tx) writeStatistics() error {
	changed, err := t.statisticsWriter().AddMeasurements(t.attemptMeasurements)
	if t.delta != nil {
		t.delta.queuesWithChangedStatistics = append(t.delta.queuesWithChangedStatistics, changed...)
	}
	return err
}
