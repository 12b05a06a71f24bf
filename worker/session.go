package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// session is Run's with the store: what is to be recorded, and the claim that waits.
type session struct {
	store store.Session
	log   *slog.Logger

	pending store.Report                 // to be recorded
	remarks []remark                     // about jobs that no runner knew
	then    []func()                     // to be done once what is pending is recorded
	acks    map[*runnerConn][]wire.Lease // to be sent once recorded
	retry   time.Duration                // after the next error
	due     time.Time                    // of the next try
	noted   []string                     // the runners that the store knows of

	cancel  context.CancelFunc // of the Await that is under way, nil if none is
	awaited int                // the workers there were when it began
	recalls int                // the recalls there had been when it began
}

// settle has an end recorded.
func (s *session) settle(end store.Settlement) { s.pending.Ended = append(s.pending.Ended, end) }

// failed keeps what is to be recorded for a later turn, unless the store is broken.
func (s *session) failed(err error) error {
	if passes(err) {
		s.log.Warn("could not record the results of jobs; trying again", "error", err, "in_ms", s.retry.Milliseconds())
		s.due = time.Now().Add(s.retry)
		s.retry = min(2*s.retry, retryLast)
		return nil
	}
	return fmt.Errorf("record results: %w", err)
}

// passes tells errors of the store that are worth another try.
func passes(err error) bool {
	return errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable)
}

// note has the store know the folders of all runners that may have leases, before
// anything is sent to one: a folder that is gone at the next start is missed then.
func (s *session) note(ctx context.Context, dirs []string) error {
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	if s.noted != nil && slices.Equal(dirs, s.noted) {
		return nil
	}
	err := s.store.NoteRunners(context.WithoutCancel(ctx), dirs)
	if err == nil {
		s.noted = dirs
	}
	return err
}

// acknowledge tells the runners what need not be kept any more.
func (s *session) acknowledge() {
	for conn, leases := range s.acks {
		conn.Send(&wire.Ack{Leases: leases})
		delete(s.acks, conn)
	}
}

// await claims in the background, waiting for the first job. The caller has read the number of recalls together with
// what it wants.
func (l *loop) await(want, workers, recalls int) {
	ctx, cancel := context.WithCancel(l.ctx)
	l.session.cancel, l.session.awaited, l.session.recalls = cancel, workers, recalls
	l.Go(func() {
		jobs, err := l.store.Await(ctx, want)
		l.tell(func() error { return l.granted(jobs, err) })
	})
}

// granted starts what was claimed. If jobs were recalled since that claim began, they may rank before these: then
// all take part in the next claim.
func (l *loop) granted(jobs []queue.Job, err error) error {
	l.session.cancel()
	l.session.cancel = nil
	l.mu.Lock()
	recalled := l.recalls != l.session.recalls
	l.mu.Unlock()
	switch {
	case len(jobs) > 0 && recalled:
		l.giveBackClaimed(jobs)
	case len(jobs) > 0:
		l.startAll(jobs, false)
	case err != nil && !errors.Is(err, context.Canceled):
		return l.session.failed(err)
	}
	return nil
}

// recorded forgets what the store has taken, says what it has refused, and hands back
// what the log is to be told.
func (l *loop) recorded(turn store.Report, refused map[queue.Lease]error) []remark {
	l.mu.Lock()
	remarks := append(l.session.remarks, l.remarks(turn.Ended)...)
	l.session.remarks = nil
	attempts, now := 0, time.Now()
	for i := range turn.Ended {
		lease := turn.Ended[i].Lease
		if turn.Ended[i].Decision.Started {
			attempts++
			if h := l.leases.all[lease]; h != nil {
				l.rates.add(h.job.Queue, now)
				if l.cfg.Ended != nil {
					l.cfg.Ended(&h.job, &turn.Ended[i])
				}
			}
		}
		l.leases.forget(lease)
	}
	l.rate.add(now, attempts)
	for _, lease := range turn.Released {
		l.leases.forget(lease)
	}
	for i := range turn.Changed {
		lease := turn.Changed[i].Lease
		if h := l.leases.all[lease]; h != nil && h.carried != nil {
			h.carried.answer <- refused[lease] // the others find the job in the store
		}
		l.leases.forget(lease)
	}
	l.mu.Unlock()
	clear(turn.Ended)
	l.session.pending = store.Report{Ended: turn.Ended[:0]}
	return remarks
}

// start hands claimed jobs to the current runner; stored says that all results so
// far are, and are to be acknowledged in the same go.
func (l *loop) start(jobs []queue.Job, stored bool) {
	if len(jobs) == 0 {
		return
	}
	failpoint.Hit("claimed")
	l.mu.Lock()
	defer l.mu.Unlock()
	conn := l.runners.current()
	if conn == nil || !l.mayStart() { // the runner died, or this changed while the jobs were claimed
		l.giveBackClaimed(jobs)
		return
	}
	frames := make([]wire.Frame, 0, len(jobs)+1)
	if acks := l.session.acks[conn]; stored && len(acks) > 0 {
		frames = append(frames, &wire.Ack{Leases: acks})
		delete(l.session.acks, conn)
	}
	for i := range jobs {
		h := l.leases.hold(&jobs[i])
		h.conn, h.dir = conn, conn.Dir
		frames = l.startFrames(frames, &h.job)
	}
	conn.Send(frames...)
	failpoint.Hit("start-sent")
}

// remark is a line for the log.
type remark struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

// remarks are the lines about attempts that have ended, as far as the log wants them:
// what a person has to look at is a warning, what will be tried again a remark, all
// else is for debugging. Of a job they tell the id alone: commands and output may be
// secret. The caller holds mu.
func (l *loop) remarks(ended []store.Settlement) (list []remark) {
	for i := range ended {
		e := &ended[i]
		r := remarkOn(&e.Decision)
		if !l.cfg.Log.Enabled(context.Background(), r.level) {
			continue
		}
		h := l.leases.all[e.Lease]
		if h == nil {
			continue
		}
		j, a, d := &h.job, &e.Attempt, &e.Decision
		r.attrs = append(r.attrs, slog.String("job", j.ID), slog.Int("attempt", j.Runs+1), slog.String("state", d.State.String()))
		if d.Reason != "" {
			r.attrs = append(r.attrs, slog.String("reason", string(d.Reason)))
		}
		if a.ExitCode >= 0 {
			r.attrs = append(r.attrs, slog.Int64("exit_code", a.ExitCode))
		}
		if a.Signal != 0 {
			r.attrs = append(r.attrs, slog.Int("signal", a.Signal))
		}
		if d.State == queue.Failed {
			r.attrs = append(r.attrs, slog.Int64("again_in_ms", d.Delay.Milliseconds()))
		}
		r.attrs = append(r.attrs, slog.String("worker", a.Worker), slog.Int("pid", a.PID))
		list = append(list, r)
	}
	return list
}

// remarkOn says what a decision is worth in the log.
func remarkOn(d *queue.Decision) remark {
	switch {
	case d.Reason == queue.ReasonUnkillable:
		return remark{level: slog.LevelError, text: "a job's processes still exist after SIGKILL; the kernel blocks them, most likely on a disk or the network"}
	case d.State == queue.Dead:
		return remark{level: slog.LevelWarn, text: "job is dead"}
	case d.Reason == queue.ReasonLost || d.Reason == queue.ReasonInterrupted:
		return remark{level: slog.LevelWarn, text: "job was interrupted"}
	case d.State == queue.Failed:
		return remark{level: slog.LevelInfo, text: "attempt failed"}
	}
	return remark{level: slog.LevelDebug, text: "attempt ended"}
}

// report writes lines to the log. No lock is held meanwhile.
func (s *session) report(list []remark) {
	for _, r := range list {
		s.log.LogAttrs(context.Background(), r.level, r.text, r.attrs...)
	}
}
