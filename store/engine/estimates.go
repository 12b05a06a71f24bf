package engine

import (
	"time"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/estimates"
)

// TypicalRuntime returns how long a job with the fingerprint usually runs, or 0 if that is unknown.
func (e *Engine) TypicalRuntime(fingerprint uint64) time.Duration {
	return e.runtimeEstimates.TypicalRuntime(fingerprint)
}

// writeEstimatesEachMinute writes the estimates of run times, at most once a minute.
func (t *Tx) writeEstimatesEachMinute() (more bool, err error) {
	e := &t.engine.runtimeEstimates
	if e.IsWriteDue(store.PerMinute.PeriodStart(t.startTime)) {
		if list := e.Encode(); list != nil {
			t.OnRollback(e.MarkUnwritten)
			t.Exec(estimates.ReplaceEstimatesSQL, list)
		}
	}
	return false, t.statementErr
}

// writeEstimates writes the estimates of run times when the engine is closed.
func (e *Engine) writeEstimates() (err error) {
	if list := e.runtimeEstimates.Encode(); list != nil {
		err = e.writerConn.Exec(estimates.ReplaceEstimatesSQL, list)
	}
	return err
}
