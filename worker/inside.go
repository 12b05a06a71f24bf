package worker

import (
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// progressEvery is the minimum time between two records of one attempt's progress. progressGap is
// the minimum time between two reports that contain any progress.
const (
	progressEvery = 450 * time.Millisecond
	progressGap   = 200 * time.Millisecond
)

// telling collects the attempts whose progress is to be recorded. Callers of its methods hold the
// pool's mu.
type telling struct {
	news map[queue.Lease]*leaseState
	last time.Time // time of the last record
}

// heard stores progress that a runner has sent for an attempt. Empty progress is ignored.
func (t *telling) heard(h *leaseState, p wire.Progress) {
	told := progressOf(p)
	if told == nil || h.settling {
		return
	}
	h.progress = told
	if t.news == nil {
		t.news = map[queue.Lease]*leaseState{}
	}
	t.news[h.job.Lease()] = h
}

// due returns when the next progress may be recorded; the zero time if none is waiting.
func (t *telling) due() (next time.Time) {
	for _, h := range t.news {
		if at := h.progressRecordedAt.Add(progressEvery); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if first := t.last.Add(progressGap); !next.IsZero() && next.Before(first) {
		return first
	}
	return next
}

// take moves the progress that is due to a report.
func (t *telling) take(now time.Time, to *store.Report) {
	if len(t.news) == 0 || len(to.Progress) > 0 || now.Before(t.due()) {
		return
	}
	for lease, h := range t.news {
		switch {
		case h.settling:
			delete(t.news, lease) // its result contains the progress
		case h.running && !now.Before(h.progressRecordedAt.Add(progressEvery)):
			to.Progress = append(to.Progress, store.Progress{Lease: lease, Progress: *h.progress})
			delete(t.news, lease)
			h.progressRecordedAt = now
		case !h.running:
			h.progressRecordedAt = now // wait until its start is known
		}
	}
	t.last = now
}

// progressOf returns the progress of an attempt, or nil if it has reported none. The values are
// clipped and cleaned, because a runner of another account may send anything.
func progressOf(p wire.Progress) *queue.Progress {
	if p.At <= 0 {
		return nil
	}
	text := p.Text
	if len(text) > queue.MaxProgress {
		text = text[:queue.MaxProgress]
	}
	return &queue.Progress{Percent: int(min(max(p.Percent, 0), 100)), Text: strings.ToValidUTF8(text, ""), At: queue.Millis(p.At)}
}

// outer nests a result as deeply as a reply to a client does, so that the reply does not exceed the
// protocol's limit for nested JSON.
var outer = [2]string{"[[[[[[[[", "]]]]]]]]"}

// valueOf returns the result value that an attempt has left, or why that value is invalid. The
// value is checked again, because a runner of another account may send anything.
func valueOf(r *wire.Result) (value []byte, fault string) {
	switch {
	case r.ValueError != "":
		return nil, queue.Clip(r.ValueError)
	case len(r.Value) == 0:
		return nil, ""
	case len(r.Value) > queue.MaxResult || queue.CheckJSON([]byte(outer[0]+string(r.Value)+outer[1])) != nil:
		return nil, "the result is not valid JSON, or is too large"
	}
	return r.Value, ""
}
