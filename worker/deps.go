package worker

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// parent is what a job is told of one that it has waited for.
type parent struct {
	ID       string          `json:"id"`
	State    string          `json:"state"`
	ExitCode *int64          `json:"exit_code"`
	Result   json.RawMessage `json:"result"` // null if there is none, or it is another user's
}

// depsWithin is how long what a job is told of others may take to be read: all that starts waits for it.
const depsWithin = time.Second

// tellDeps gives a claimed job what it is told of those that it has waited for, or puts it off and says no.
func (l *loop) tellDeps(j *queue.Job) bool {
	ctx, cancel := context.WithTimeout(context.Background(), depsWithin)
	defer cancel()
	list, err := l.store.Parents(ctx, j.Seq)
	told := make([]parent, len(list))
	for i := range list {
		p := &list[i]
		told[i] = parent{ID: p.ID, State: p.State.String()}
		if p.ExitCode >= 0 {
			told[i].ExitCode = &p.ExitCode
		}
		if p.UID == j.UID && p.UID >= 0 {
			told[i].Result = p.Result
		}
	}
	if err == nil {
		j.Deps, err = json.Marshal(told)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.session.remarks = append(l.session.remarks, remark{slog.LevelWarn, "what a job is told of its dependencies cannot be read; it is tried again", []slog.Attr{slog.String("job", j.ID), slog.Any("error", err)}})
		l.putOff([]queue.Job{*j}, err)
	}
	return err == nil
}
