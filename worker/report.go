package worker

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/queue"
)

// report writes the log's line about an attempt that has ended: what a person has to
// look at is a warning, what will be tried again a remark, all else is for debugging.
// Of the job it tells the id alone: commands and output may be secret.
func (p *Pool) report(j *queue.Job, a *queue.Attempt, d *queue.Decision) {
	level, text := slog.LevelDebug, "attempt ended"
	switch {
	case d.Reason == queue.ReasonUnkillable:
		level, text = slog.LevelError, "a job's processes outlive SIGKILL; they wait for the kernel, most likely for a disk or a network"
	case d.State == queue.Dead:
		level, text = slog.LevelWarn, "job is dead"
	case d.Reason == queue.ReasonLost || d.Reason == queue.ReasonInterrupted:
		level, text = slog.LevelWarn, "job was cut off"
	case d.State == queue.Failed:
		level, text = slog.LevelInfo, "attempt failed"
	}
	ctx := context.Background()
	if !p.cfg.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("job", j.ID), slog.Int("attempt", j.Runs+1), slog.String("state", d.State.String())}
	if d.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(d.Reason)))
	}
	if a.ExitCode >= 0 {
		attrs = append(attrs, slog.Int64("exit_code", a.ExitCode))
	}
	if a.Signal != 0 {
		attrs = append(attrs, slog.Int("signal", a.Signal))
	}
	if d.State == queue.Failed {
		attrs = append(attrs, slog.Duration("again_in", d.Delay))
	}
	attrs = append(attrs, slog.String("worker", a.Worker), slog.Int("pid", a.PID))
	p.cfg.Log.LogAttrs(ctx, level, text, attrs...)
}
