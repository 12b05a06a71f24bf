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
	defaultScreenRows  = 10      // default number of rows of each part
	maxScreenTextBytes = 1 << 10 // maximum length of a text in bytes
	// lastLineBytes is how many bytes at the end of each stream are searched for the last line of output.
	lastLineBytes    = 1 << 10
	lastLinesTimeout = 250 * time.Millisecond // time limit to read the last lines of all jobs
)

// Screen implements control.API.
func (h *API) Screen(ctx context.Context, p control.ScreenParams) (control.Screen, error) {
	p.Rows = cmp.Or(p.Rows, defaultScreenRows)
	st, err := h.Status(ctx, control.NoParams{})
	if err != nil {
		return control.Screen{}, err
	}
	peer := control.PeerFrom(ctx)
	f := store.ScreenFilter{Rows: p.Rows}
	if access.VisibilityFor(peer.Right, false) == access.VisibleOutline {
		f.DetailsForUID = &peer.UID
	}
	lines, err := h.lastLines(ctx, &peer, f)
	// If the store is unavailable, reply with the status alone, which does not need the store.
	if h.AllNodes.IsStoreUnavailable(err) {
		none := []control.Job{}
		return control.Screen{Status: st, Running: []control.ScreenJob{}, Ready: none, Delayed: none, HeldOrBlocked: none,
			Paused: []control.QueueView{}, Dead: []control.ScreenJob{}, Done: none}, nil
	}
	if err != nil {
		return control.Screen{}, err
	}
	paused, err := h.viewQueues(ctx, func(q *store.QueueState) bool {
		return q.Rule.Paused && q.Waiting > 0
	})
	if err != nil {
		return control.Screen{}, err
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobs, func() (control.Screen, error) {
		parts, err := h.Store.Screen(ctx, f)
		if err != nil {
			return control.Screen{}, err
		}
		views := func(jobs []queue.Job) []control.Job {
			list := h.viewJobsFor(ctx, &peer, jobs)
			for i := range list {
				shortenTexts(&list[i])
			}
			return list
		}
		screen := control.Screen{Status: st, Running: []control.ScreenJob{}, Ready: views(parts.Ready),
			Delayed: views(parts.Timed), HeldOrBlocked: views(parts.HeldOrBlocked),
			Paused: paused.Queues[:min(len(paused.Queues), store.MaxScreenRows)], Dead: []control.ScreenJob{},
			Done: views(parts.Done)}
		for _, j := range views(parts.Running) {
			screen.Running = append(screen.Running, control.ScreenJob{Job: j, LastLine: lines[j.Seq]})
		}
		for _, j := range views(parts.Dead) {
			screen.Dead = append(screen.Dead, control.ScreenJob{Job: j, LastLine: lines[j.Seq]})
		}
		return screen, nil
	})
}

// lastLines returns the last line of output of each running or dead job that the peer may see, by job number.
// It leaves out lines that are not available in time. While one request of a user reads last lines, other
// requests of that user get none.
func (h *API) lastLines(ctx context.Context, peer *control.Peer, f store.ScreenFilter) (map[int64]string, error) {
	var jobs []queue.Job
	err := h.UserLimits.RunInSlot(ctx, control.ClassManyJobs, func() error {
		parts, err := h.Store.Screen(ctx, f)
		for _, j := range append(parts.Running, parts.Dead...) {
			if (j.State == queue.Processing || j.ExitCode >= 0) &&
				h.Guard.VisibilityFor(peer, &j) >= access.VisibleWithoutEnv {
				jobs = append(jobs, compactJob(&j))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, lastLinesTimeout)
	defer cancel()
	lines, turn := map[int64]string{}, fair.Request{User: peer.UID}
	if h.lastLineLimiter.Acquire(timeoutCtx, turn) != nil {
		return lines, nil
	}
	defer h.lastLineLimiter.Release(turn)
	for i := range jobs {
		j := &jobs[i]
		switch {
		case timeoutCtx.Err() != nil:
			return lines, nil
		case j.State == queue.Processing:
			lines[j.Seq] = h.lastLine(timeoutCtx, j)
		default:
			lines[j.Seq] = h.lastErrorLine(timeoutCtx, j)
		}
	}
	return lines, nil
}

// shortenTexts shortens the texts of a job for a screen.
func shortenTexts(j *control.Job) {
	cut := func(text string) string {
		if len(text) <= maxScreenTextBytes {
			return text
		}
		return strings.ToValidUTF8(text[:maxScreenTextBytes], "") + "…"
	}
	if len(j.Command) > maxScreenTextBytes {
		j.Command, j.Argv = cut(j.Command), nil
	}
	if j.Error != nil {
		*j.Error = cut(*j.Error)
	}
	size := 0
	for name, value := range j.Labels {
		size += len(name) + len(value)
	}
	if size > maxScreenTextBytes {
		j.Labels = map[string]string{}
	}
}

// lastLine returns the last line that a running job has printed. It returns "" if the job has printed nothing
// or the runner does not answer in time.
func (h *API) lastLine(ctx context.Context, j *queue.Job) (line string) {
	var terminalOutput []byte // output of the job's terminal
	if _, err := h.readLive(ctx, j.Seq, 0, &output.Cursor{-lastLineBytes, -lastLineBytes}, false,
		func(c output.Chunk) error {
			if j.TTY {
				terminalOutput = append(terminalOutput, c.Data...)
				return nil
			}
			line = cmp.Or(lastLineIn(c.Data), line)
			return nil
		}); err != nil {
		return ""
	}
	return cmp.Or(lastLineIn(terminalText(terminalOutput)), line)
}

// terminalText converts the output of a job's terminal, with its control sequences, to readable text.
func terminalText(printed []byte) []byte { return []byte(termtext.RenderText(string(printed), false)) }

// lastErrorLine returns the last line of an ended job's standard error or, if that is empty, of its standard
// output. It returns "" if no output was kept.
func (h *API) lastErrorLine(ctx context.Context, j *queue.Job) string {
	var t outputTails
	if err := h.readTail(ctx, j, j.StartedAttempts, lastLineBytes, t.add); err != nil {
		return ""
	}
	if j.TTY {
		// A terminal has only one stream, which is stored as stdout.
		return lastLineIn(terminalText(t.streamEnds[output.Stdout]))
	}
	return cmp.Or(lastLineIn(t.streamEnds[output.Stderr]), lastLineIn(t.streamEnds[output.Stdout]))
}

// lastLineIn returns the last non-empty line of a text.
func lastLineIn(text []byte) string {
	for _, line := range slices.Backward(bytes.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return strings.ToValidUTF8(string(line), "\ufffd")
		}
	}
	return ""
}
