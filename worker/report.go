package worker

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

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
		return remark{level: slog.LevelError, text: "a job's processes outlive SIGKILL; they wait for the kernel, most likely for a disk or a network"}
	case d.State == queue.Dead:
		return remark{level: slog.LevelWarn, text: "job is dead"}
	case d.Reason == queue.ReasonLost || d.Reason == queue.ReasonInterrupted:
		return remark{level: slog.LevelWarn, text: "job was cut off"}
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

// shortOfRunners is the line about a job that no runner of its own could be started
// for.
func shortOfRunners(j *queue.Job, err error) remark {
	return remark{slog.LevelWarn, "no runner of its own for a suspect; it is tried again", []slog.Attr{slog.String("job", j.ID), slog.Any("error", err)}}
}
