package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// parent is what a job is told of one that it has waited for.
type parent struct {
	ID       string          `json:"id"`
	State    string          `json:"state"`
	ExitCode *int64          `json:"exit_code"`
	Result   json.RawMessage `json:"result"` // null if there is none, or it is another user's
}

// Limits of what is told.
const (
	depsWithin = time.Second // may a read take
	depsReads  = 2           // go on at once: what is read takes memory until the job is started
)

// readDeps reads what a claimed job is told of those that it has waited for, and has it started then. What it
// waits for may be ten thousand jobs: nobody else waits for that. Meanwhile it is held, and counts.
func (l *loop) readDeps(j queue.Job) {
	l.mu.Lock()
	h := l.leases.hold(&j)
	h.waiting, h.reading = true, true
	l.mu.Unlock()
	l.Go(func() {
		l.reads <- struct{}{}
		defer func() { <-l.reads }()
		ctx, cancel := context.WithTimeout(l.ctx, depsWithin)
		defer cancel()
		list, err := l.store.Parents(ctx, j.Seq)
		if err == nil {
			j.Deps, err = toldOf(&j, list)
		}
		l.tell(func() error {
			l.mu.Lock()
			if h.over || h.dropSent || len(h.asks) > 0 { // it is given back
				l.mu.Unlock()
				return nil
			}
			if err == nil {
				l.leases.forget(j.Lease()) // whoever starts it holds it anew
				l.mu.Unlock()
				l.startAll([]queue.Job{j}, false)
				return nil
			}
			defer l.mu.Unlock()
			h.over = true
			l.session.remarks = append(l.session.remarks, remark{slog.LevelWarn, "could not read the results of a job's dependencies; trying again", []slog.Attr{slog.String("job", j.ID), slog.Any("error", err)}})
			l.putOff([]queue.Job{j}, err)
			return nil
		})
	})
}

// toldOf is what a job is told of those, as JSON: at most queue.MaxDeps bytes, but for their ids. From there
// on their results are left out.
func toldOf(j *queue.Job, list []store.Parent) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // or a result would be six times as long
	b.WriteByte('[')
	room := queue.MaxDeps
	for i := range list {
		p := &list[i]
		told := parent{ID: p.ID, State: p.State.String()}
		if p.ExitCode >= 0 {
			told.ExitCode = &p.ExitCode
		}
		if p.UID == j.UID && p.UID >= 0 && b.Len()+len(p.Result) <= room {
			told.Result = p.Result
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(&told); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1) // the end of its line
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}
