package worker

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// Progress is recorded at most once per attemptProgressInterval for each attempt. A report to the store contains
// progress at most once per progressReportInterval.
const (
	attemptProgressInterval = 450 * time.Millisecond
	progressReportInterval  = 200 * time.Millisecond
)

// progressBatch collects the attempts whose latest progress is not recorded in the store yet. Only Run's
// goroutine uses it.
type progressBatch struct {
	leasesWithUnrecordedProgress map[queue.Lease]*lease
	lastReportAt                 time.Time // time of the last report that contained progress
}

// addProgressLocked stores in a lease the progress that the runner has sent for the lease's attempt. Run records the
// progress later. addProgressLocked ignores empty progress.
func (t *progressBatch) addProgressLocked(h *lease, p wire.Progress) {
	progress := sanitizedProgress(p)
	if progress == nil || h.phase.isEndDecided() {
		return
	}
	h.progress.lastReported = progress
	if t.leasesWithUnrecordedProgress == nil {
		t.leasesWithUnrecordedProgress = map[queue.Lease]*lease{}
	}
	t.leasesWithUnrecordedProgress[h.job.Lease()] = h
}

// nextRecordTimeLocked returns when the progress of some attempt may next be recorded. It returns the zero
// time if all progress is recorded.
func (t *progressBatch) nextRecordTimeLocked() (next time.Time) {
	for _, h := range t.leasesWithUnrecordedProgress {
		if at := h.progress.lastRecordTriedAt.Add(attemptProgressInterval); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if first := t.lastReportAt.Add(progressReportInterval); !next.IsZero() && next.Before(first) {
		return first
	}
	return next
}

// moveDueProgressToReportLocked adds to a report for the store the progress of those attempts whose progress was not
// recorded within the last attemptProgressInterval. It does nothing if a report has contained progress shortly before.
func (t *progressBatch) moveDueProgressToReportLocked(now time.Time, report *store.LeaseReport) {
	if len(t.leasesWithUnrecordedProgress) == 0 || len(report.ProgressReports) > 0 ||
		now.Before(t.nextRecordTimeLocked()) {
		return
	}
	for lease, h := range t.leasesWithUnrecordedProgress {
		switch {
		case h.phase.isEndDecided():
			delete(t.leasesWithUnrecordedProgress, lease) // the attempt's result contains the progress
		case h.phase == phaseRunning && !now.Before(h.progress.lastRecordTriedAt.Add(attemptProgressInterval)):
			report.ProgressReports = append(report.ProgressReports,
				store.AttemptProgress{Lease: lease, Progress: *h.progress.lastReported})
			delete(t.leasesWithUnrecordedProgress, lease)
			h.progress.lastRecordTriedAt = now
		case h.phase != phaseRunning:
			h.progress.lastRecordTriedAt = now // the start of the attempt is not recorded yet; try again later
		}
	}
	t.lastReportAt = now
}

// sanitizedProgress returns the progress of an attempt, or nil if it has reported none. sanitizedProgress limits and
// cleans the values, because a runner of another account may send anything.
func sanitizedProgress(p wire.Progress) *queue.Progress {
	if p.ReportedAtMillis <= 0 {
		return nil
	}
	text := p.Text
	if len(text) > queue.MaxProgressTextBytes {
		text = text[:queue.MaxProgressTextBytes]
	}
	percent := int(min(max(p.Percent, 0), 100))
	return &queue.Progress{Percent: percent, Text: strings.ToValidUTF8(text, ""),
		ReportedAt: queue.UnixMillis(p.ReportedAtMillis)}
}

// replyNestingBrackets contains JSON brackets. A reply to a client nests the result of a job in as many brackets.
// validateResult checks a result inside them, so that the reply does not exceed the nesting limit of the
// protocol.
var replyNestingBrackets = [2]string{"[[[[[[[[", "]]]]]]]]"}

// validateResult returns the result that an attempt has left. If the result is invalid, it returns the
// reason instead. It repeats the checks of the runner, because a runner of another account may send
// anything.
func validateResult(r *wire.Result) (resultJSON []byte, invalidReason string) {
	switch {
	case r.ResultError != "":
		return nil, queue.ClipForMessage(r.ResultError)
	case len(r.ResultJSON) == 0:
		return nil, ""
	case len(r.ResultJSON) > queue.MaxResultBytes:
		return nil, fmt.Sprintf("the result has %d bytes, and the maximum is %d", len(r.ResultJSON), queue.MaxResultBytes)
	}
	if err := queue.CheckJSON([]byte(replyNestingBrackets[0] + string(r.ResultJSON) +
		replyNestingBrackets[1])); err != nil {
		return nil, "the result is not valid JSON in UTF-8, or is nested too deeply"
	}
	return r.ResultJSON, ""
}
