package handlers

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/store"
)

const (
	defaultRowsPerPart    = 10      // default number of rows of each part of the screen
	maxScreenJobTextBytes = 1 << 10 // maximum length of each text of a job, in bytes
	// lastLineSearchBytes is how many bytes at the end of each stream are searched for the last line of output.
	lastLineSearchBytes  = 1 << 10
	lastLinesReadTimeout = 250 * time.Millisecond // time limit to read the last lines of all jobs
)

// ReadScreen implements control.API.
func (h *API) ReadOverviewScreen(ctx context.Context, p control.OverviewScreenParams) (result control.OverviewScreen,
	err error) {
	p.JobsPerSection = cmp.Or(p.JobsPerSection, defaultRowsPerPart)
	st, err := h.Status(ctx, control.NoParams{})
	if err != nil {
		return result, err
	}
	peer := control.PeerFrom(ctx)
	f := store.ScreenFilter{RowsPerPart: p.JobsPerSection}
	if access.VisibilityFor(peer.Right, false) == access.VisibleOutline {
		f.DetailsForUID = &peer.UID
	}
	lines, err := h.lastOutputLines(ctx, &peer, f)
	// If the store is unavailable, reply with the status alone. The status does not need the store.
	if h.NodeRegistry.IsStoreUnavailable(err) {
		none := []control.Job{}
		return control.OverviewScreen{Status: st, Running: []control.OverviewJob{}, Ready: none, Delayed: none,
			HeldOrBlocked: none,
			Paused:        []control.QueueView{}, Dead: []control.OverviewJob{}, Done: none}, nil
	}
	if err != nil {
		return result, err
	}
	paused, err := h.listQueueViews(ctx, func(q *store.QueueState) bool {
		return q.Rule.Paused && q.WaitingJobs > 0
	})
	if err != nil {
		return result, err
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobsRead, func() (control.OverviewScreen, error) {
		parts, err := h.Store.ReadScreen(ctx, f)
		if err != nil {
			return control.OverviewScreen{}, err
		}
		views := func(jobs []queue.Job) []control.Job {
			list := h.newJobViewsFor(ctx, &peer, jobs)
			for i := range list {
				shortenJobTexts(&list[i])
			}
			return list
		}
		viewsWithLines := func(jobs []queue.Job) []control.OverviewJob {
			list := []control.OverviewJob{}
			for _, j := range views(jobs) {
				list = append(list, control.OverviewJob{Job: j, LastLine: lines[j.Seq]})
			}
			return list
		}
		return control.OverviewScreen{Status: st, Running: viewsWithLines(parts.Running), Ready: views(parts.Ready),
			Delayed: views(parts.NotYetDue), HeldOrBlocked: views(parts.HeldOrBlocked),
			Paused: paused.Queues[:min(len(paused.Queues), store.MaxScreenRowsPerPart)], Dead: viewsWithLines(parts.Dead),
			Done: views(parts.CompletedOrCancelled)}, nil
	})
}

// lastOutputLines returns the last line of output of each running or dead job that the peer may see, by job number. It
// leaves out lines that are not available in time. Only one request of a user at a time reads last lines; concurrent
// requests of that user get none.
func (h *API) lastOutputLines(ctx context.Context, peer *control.Peer, f store.ScreenFilter) (map[int64]string, error) {
	var jobs []queue.Job
	err := h.UserLimits.RunInSlot(ctx, control.ClassManyJobsRead, func() error {
		parts, err := h.Store.ReadScreen(ctx, f)
		for _, j := range append(parts.Running, parts.Dead...) {
			if (j.State == queue.Processing || j.ExitCode >= 0) &&
				h.Guard.JobVisibilityFor(peer, &j) >= access.VisibleWithoutEnv {
				jobs = append(jobs, withoutLargeFields(&j))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, lastLinesReadTimeout)
	defer cancel()
	lines, turn := map[int64]string{}, fair.Request{UserID: peer.UID}
	if h.lastLineReadLimiter.Acquire(timeoutCtx, turn) != nil {
		return lines, nil
	}
	defer h.lastLineReadLimiter.Release(turn)
	for i := range jobs {
		j := &jobs[i]
		switch {
		case timeoutCtx.Err() != nil:
			return lines, nil
		case j.State == queue.Processing:
			lines[j.Seq] = h.lastOutputLine(timeoutCtx, j)
		default:
			lines[j.Seq] = h.lastErrorLine(timeoutCtx, j)
		}
	}
	return lines, nil
}

// shortenJobTexts shortens the texts of a job to maxScreenJobTextBytes.
func shortenJobTexts(j *control.Job) {
	cut := func(text string) string {
		if len(text) <= maxScreenJobTextBytes {
			return text
		}
		return strings.ToValidUTF8(text[:maxScreenJobTextBytes], "") + "…"
	}
	if len(j.Command) > maxScreenJobTextBytes {
		j.Command, j.Argv = cut(j.Command), nil
	}
	if j.Error != nil {
		*j.Error = cut(*j.Error)
	}
	size := 0
	for name, value := range j.Labels {
		size += len(name) + len(value)
	}
	if size > maxScreenJobTextBytes {
		j.Labels = map[string]string{}
	}
}

// lastOutputLine returns the last line that a running job has printed. It returns "" if the job has printed nothing
// or the runner does not answer in time.
func (h *API) lastOutputLine(ctx context.Context, j *queue.Job) (line string) {
	var terminalOutput []byte // output of the job's terminal
	if _, err := h.readLiveOutput(ctx, j.Seq, 0, &output.StreamCursor{-lastLineSearchBytes, -lastLineSearchBytes}, false,
		func(c output.Chunk) error {
			if j.TTY {
				terminalOutput = append(terminalOutput, c.Data...)
				return nil
			}
			line = cmp.Or(lastNonEmptyLine(c.Data), line)
			return nil
		}); err != nil {
		return ""
	}
	return cmp.Or(lastNonEmptyLine(renderTerminalText(terminalOutput)), line)
}

// renderTerminalText converts the output of a job's terminal, with its control sequences, to readable text.
func renderTerminalText(printed []byte) []byte {
	return []byte(termtext.RenderText(string(printed), false))
}

// lastErrorLine returns the last line that an ended job has printed on standard error or, if there is no such line, on
// standard output. It returns "" if no output was kept.
func (h *API) lastErrorLine(ctx context.Context, j *queue.Job) string {
	var t outputTails
	if err := h.readOutputTail(ctx, j, j.StartedAttempts, lastLineSearchBytes, t.addChunk); err != nil {
		return ""
	}
	if j.TTY {
		// A terminal has only one stream, which is stored as stdout.
		return lastNonEmptyLine(renderTerminalText(t.tailByStream[output.Stdout]))
	}
	return cmp.Or(lastNonEmptyLine(t.tailByStream[output.Stderr]), lastNonEmptyLine(t.tailByStream[output.Stdout]))
}

// lastNonEmptyLine returns the last non-empty line of a text.
func lastNonEmptyLine(text []byte) string {
	for _, line := range slices.Backward(bytes.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return strings.ToValidUTF8(string(line), "\ufffd")
		}
	}
	return ""
}
