package worker

import (
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// The least time between two records of progress: of one attempt, and of any.
const (
	progressEvery = 450 * time.Millisecond
	progressGap   = 200 * time.Millisecond
)

// telling is the attempts whose progress is to be recorded. The caller of its methods holds
// the pool's mu.
type telling struct {
	news map[queue.Lease]*leaseState
	last time.Time // that some was recorded
}

// heard notes what a runner says of an attempt, unless that is nothing.
func (t *telling) heard(h *leaseState, p wire.Progress) {
	told := progressOf(p)
	if told == nil || h.over {
		return
	}
	h.progress = told
	if t.news == nil {
		t.news = map[queue.Lease]*leaseState{}
	}
	t.news[h.job.Lease()] = h
}

// due is when the next of them may be recorded, the zero time if there is none.
func (t *telling) due() (next time.Time) {
	for _, h := range t.news {
		if at := h.told.Add(progressEvery); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if first := t.last.Add(progressGap); !next.IsZero() && next.Before(first) {
		return first
	}
	return next
}

// take adds those that are due to what is recorded next.
func (t *telling) take(now time.Time, to *store.Report) {
	if len(t.news) == 0 || len(to.Progress) > 0 || now.Before(t.due()) {
		return
	}
	for lease, h := range t.news {
		switch {
		case h.over:
			delete(t.news, lease) // its end tells it
		case h.running && !now.Before(h.told.Add(progressEvery)):
			to.Progress = append(to.Progress, store.Progress{Lease: lease, Progress: *h.progress})
			delete(t.news, lease)
			h.told = now
		case !h.running:
			h.told = now // it will be told that it runs
		}
	}
	t.last = now
}

// progressOf is what an attempt says of its progress, nil if it has said nothing. A runner of
// an account's may say anything.
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

// outer is about as deep as a result is in what a client is answered, which nests no deeper than
// other JSON of the protocol.
var outer = [2]string{"[[[[[[[[", "]]]]]]]]"}

// valueOf is the result that an attempt has left, or why what it left is none. A runner of an
// account's may send anything.
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
