package worker

import (
	"log/slog"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Empty progress does not replace progress that the runner sent before.
func TestEmptyProgressIsIgnored(t *testing.T) {
	var batch progressBatch
	h := newLease(&queue.Job{}, 1, phaseRunning, slog.New(slog.DiscardHandler))
	batch.addProgressLocked(h, wire.Progress{ReportedAtMillis: 5, Percent: 40, Text: "half"})
	batch.addProgressLocked(h, wire.Progress{})
	var r store.LeaseReport
	batch.moveDueProgressToReportLocked(time.Now(), &r)
	if len(r.ProgressReports) != 1 || r.ProgressReports[0].Percent != 40 || r.ProgressReports[0].Text != "half" {
		t.Errorf("the report contains progress %+v, want 40 %% with the text half", r.ProgressReports)
	}
}
