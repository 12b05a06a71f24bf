package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

func logsVerb(a *App) *cobra.Command {
	var p control.JobOutputParams
	var showTimestamps bool
	var s SelectionFlags
	cmd := NewCommand("logs ID… | --state STATE …", "Print the output of jobs",
		nil, func(ctx context.Context, ids []string) error {
			if a.Cmd.Flags().Changed("attempt") && p.Attempt < 1 {
				return fault.Usagef("--attempt: %d is too small; give 1 for the first attempt, or leave out "+
					"--attempt for the last one", p.Attempt)
			}
			if p.Follow && len(ids) == 0 && s.selectsWholeQueue() && p.Attempt == 0 {
				filter := control.JobListParams{Queue: s.Queue, WithLabels: s.WithLabels}
				return a.RunUntilStdoutReaderGone(ctx, func(ctx context.Context) error {
					return a.printQueueLogs(ctx, p, filter, showTimestamps)
				})
			}
			if len(ids) == 0 {
				a.MissingQueueIsEmpty = true // if no queue exists yet, the flags select no jobs
				if err := a.WithReadOnlyClient(ctx, p.Follow, func(c *control.Client) error {
					selected, err := s.ResolveJobs(a.Cmd, c, nil)
					for i := range selected {
						ids = append(ids, selected[i].ID)
					}
					return err
				}); err != nil {
					return err
				}
				if len(ids) == 0 {
					a.PrintNoJobsSelected()
				}
			} else if _, err := s.SelectionParams(a.Cmd, ids); err != nil {
				return err
			}
			return a.RunUntilStdoutReaderGone(ctx, func(ctx context.Context) error {
				return a.printLogs(ctx, p, UniqueIDs(ids), showTimestamps)
			})
		})
	a.AcceptJobIDs(cmd)
	s.AddFlags(cmd, "s")
	f := cmd.Flags()
	f.BoolVarP(&p.Follow, "follow", "f", false, "follow the output until the jobs have ended; with --queue, follow new "+
		"jobs too, until interrupted")
	f.IntVar(&p.Attempt, "attempt", 0, "print the output of attempt `N` (default: the last one)")
	f.BoolVar(&p.StdoutOnly, "stdout", false, "print only standard output")
	f.BoolVar(&p.StderrOnly, "stderr", false, "print only standard error")
	input.OptionalVar(f, &p.LastLineCount, input.ParseInt, "lines", "n", "print only the last `N` lines; a note about "+
		"missing output is one line")
	input.AnnotateFlagWithField(f, "lines", "n")
	input.PastTimeVar(f, &p.PrintedSince, "since", "only lines printed since `TIME`; 2h means 2 hours ago")
	input.PastTimeVar(f, &p.PrintedBefore, "until", "only lines printed before `TIME`; 2h means 2 hours ago")
	f.BoolVar(&showTimestamps, "timestamps", false, "print the time before each line")
	return cmd
}

// logReader prints the output of one job, or of several jobs concurrently.
type logReader struct {
	app            *App
	client         *control.Client
	logParams      control.JobOutputParams // parameters of each request, without the id of the job
	showTimestamps bool
	printMu        sync.Mutex            // held while a piece of output is printed; several jobs may print
	jsonList       *term.JSONListPrinter // the JSON list to print to; nil for text
}

// withLogReader calls action(r) with a logReader. If the output is JSON, it then prints the end of the list.
func (a *App) withLogReader(ctx context.Context, p control.JobOutputParams, showTimestamps bool,
	action func(*logReader) error) error {
	return a.WithReadOnlyClient(ctx, p.Follow, func(c *control.Client) error {
		r := &logReader{app: a, client: c, logParams: p, showTimestamps: showTimestamps}
		if a.WantsJSON() {
			r.jsonList = term.NewJSONListPrinter(a.Stdout, a.JSONL)
		}
		err := action(r)
		if r.jsonList != nil {
			err = errors.Join(err, r.jsonList.End())
		}
		return err
	})
}

// errAttemptEnded ends a stream of output when the followed attempt has ended.
var errAttemptEnded = errors.New("the attempt has ended")

// printAttempt prints the output of one attempt of a job, with linePrefix before each line. If attempt is 0, it prints
// the output of the attempt that is running. anyPrinted reports whether it printed anything.
func (r *logReader) printAttempt(
	ctx context.Context, id string, attempt int, linePrefix string,
) (anyPrinted bool, err error) {
	p := r.logParams
	p.ID, p.Attempt, p.ReportAttemptEnds = control.JobID(id), attempt, attempt == 0
	if attempt != 0 {
		p.LastLineCount = nil // this attempt started after the command did, so print all of its output
	}
	anyPrinted, err = r.printRequestedOutput(ctx, p, linePrefix)
	if errors.Is(err, errAttemptEnded) {
		err = nil
	}
	return anyPrinted, err
}

// printJobOutput prints the output of one job, with linePrefix before each line.
func (r *logReader) printJobOutput(ctx context.Context, id, linePrefix string) error {
	p := r.logParams
	p.ID = control.JobID(id)
	printed, err := r.printRequestedOutput(ctx, p, linePrefix)
	if err == nil && !printed && (r.jsonList == nil || r.app.JSONL) {
		r.printIfOutputLost(ctx, id)
	}
	return err
}

// printIfOutputLost prints a message if the output of the requested attempt is lost because its runner died.
func (r *logReader) printIfOutputLost(ctx context.Context, id string) {
	job, err := ShowJob(ctx, r.client, id)
	if err != nil || len(job.History) == 0 {
		return // without the list of attempts, it is unknown whether output is lost
	}
	h := job.History[len(job.History)-1]
	if r.logParams.Attempt != 0 && r.logParams.Attempt != h.Attempt {
		return
	}
	reason := queue.Reason(queue.ValueOr(h.Reason, ""))
	if reason == queue.ReasonLost || reason == queue.ReasonInterrupted {
		r.app.PrintMessage("the output of attempt %d of job %s is lost, because the runner died during the attempt",
			h.Attempt, id)
	}
}

// printRequestedOutput prints the output that p requests, with linePrefix before each line. anyPrinted reports whether
// any output arrived.
func (r *logReader) printRequestedOutput(ctx context.Context, p control.JobOutputParams,
	linePrefix string) (anyPrinted bool,
	err error) {
	out := newLogPrinter(r.app, linePrefix, r.showTimestamps)
	out.jsonList = r.jsonList
	for i := range out.ttyOutputs {
		t := &out.ttyOutputs[i]
		t.ShowUnfinishedLine = p.Follow && out.streamEscapers[i].KeepCarriageReturns && term.IsTerminal(r.app.Stdout)
		t.Renderer.StartsMidOutput = p.LastLineCount != nil || p.PrintedSince != 0
	}
	var damageErr error
	_, err = r.client.StreamOutput(ctx, p, func(piece control.OutputPiece) error {
		r.printMu.Lock()
		defer r.printMu.Unlock()
		anyPrinted = true
		if piece.AttemptEnded {
			return errAttemptEnded
		}
		if piece.Damage != nil {
			damageErr = errors.Join(damageErr, damagedOutputError(&piece))
		}
		return out.printPiece(&piece)
	})
	r.printMu.Lock()
	defer r.printMu.Unlock()
	return anyPrinted, errors.Join(err, out.flushPartialLine(), damageErr)
}

// printLogs prints the output of the jobs in ids, one job after another. With --follow, it prints the output of all
// these jobs as it arrives, with the job's id before each line.
func (a *App) printLogs(ctx context.Context, p control.JobOutputParams, ids []string, showTimestamps bool) error {
	if p.Follow && len(ids) > control.MaxStreamsPerUser {
		return fault.Usagef("cannot follow %d jobs at the same time (at most %d); select fewer jobs, or leave out --follow",
			len(ids), control.MaxStreamsPerUser)
	}
	width := 0
	for _, id := range ids {
		width = max(width, len(id))
	}
	return a.withLogReader(ctx, p, showTimestamps, func(r *logReader) error {
		errs := make([]error, len(ids))
		var streams sync.WaitGroup
		for i, id := range ids {
			prefix := ""
			if len(ids) > 1 {
				prefix = fmt.Sprintf("%-*s | ", width, id)
			}
			if p.Follow {
				streams.Go(func() { errs[i] = r.printJobOutput(ctx, id, prefix) })
			} else {
				errs[i] = r.printJobOutput(ctx, id, prefix)
			}
		}
		streams.Wait()
		return errors.Join(errs...)
	})
}

// These constants bound how many attempts are read at the same time: attempts that are running, and attempts that have
// ended. The service limits the open streams of each user, so these bounds leave some streams for the user's other
// commands. If an attempt starts while maxLiveStreams attempts are followed, the output of the new attempt is printed
// after its end.
const (
	maxLiveStreams  = 24
	maxEndedStreams = 4
)

// printQueueLogs prints the output of a queue's jobs, with the job's id before each line. It follows the jobs that are
// running and the jobs that start later. It returns when the user interrupts the command or the service ends.
func (a *App) printQueueLogs(ctx context.Context, p control.JobOutputParams, filter control.JobListParams,
	showTimestamps bool) error {
	return a.withLogReader(ctx, p, showTimestamps, func(r *logReader) error {
		ctx, cancel := context.WithCancelCause(ctx)
		q := &queueLogFollower{reader: r, filter: filter, attemptByJobID: map[string]int{},
			liveStreamSlots:  make(chan struct{}, maxLiveStreams),
			endedStreamSlots: make(chan struct{}, maxEndedStreams), endCommandWithError: cancel}
		err := q.followQueue(ctx)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		q.openStreams.Wait()
		return err
	})
}

// queueLogFollower follows the output of a queue's jobs.
type queueLogFollower struct {
	reader *logReader
	filter control.JobListParams // selects the jobs by queue and labels
	// attemptByJobID contains the jobs whose output is being followed. It maps the id of a job to the number of the
	// followed attempt, or to 0 if that attempt was already running when the command started.
	attemptByJobID map[string]int

	openStreams sync.WaitGroup
	// liveStreamSlots and endedStreamSlots are semaphores. They bound how many running attempts and how many ended
	// attempts are read at the same time.
	liveStreamSlots, endedStreamSlots chan struct{}
	endCommandWithError               func(error) // ends the command with an error
}

// followQueue prints the output of running jobs, and of jobs that start later, until ctx ends.
func (q *queueLogFollower) followQueue(ctx context.Context) error {
	events, broken := openEventChannel(ctx, q.reader.client,
		control.EventsParams{EventKinds: control.TextList{string(queue.EventStarted), string(queue.EventEnded)}})
	running := q.filter
	running.States = control.TextList{queue.Processing.String()}
	runs, err := listAllJobs(ctx, q.reader.client, running)
	if err != nil {
		return err
	}
	for i := range runs {
		q.followRunningAttempt(ctx, runs[i].ID, 0)
	}
	for {
		select {
		case e := <-events:
			if err := q.handleAttemptEvent(ctx, &e); err != nil {
				return err
			}
		case err := <-broken:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handleAttemptEvent handles the start or the end of an attempt. If an attempt has started, handleAttemptEvent follows
// its output. If an attempt has ended whose output was not followed, handleAttemptEvent prints the whole output.
func (q *queueLogFollower) handleAttemptEvent(ctx context.Context, e *control.Event) error {
	ended := e.Kind == string(queue.EventEnded)
	if attempt, followed := q.attemptByJobID[e.JobID]; followed && (attempt == 0 || attempt == e.Attempt) {
		if ended {
			delete(q.attemptByJobID, e.JobID)
		}
		return nil
	}
	if ended && !e.HasOutput || !ended && len(q.liveStreamSlots) == cap(q.liveStreamSlots) {
		return nil
	}
	j, err := q.reader.client.ShowJob(ctx, control.JobShowParams{ID: control.JobID(e.JobID), HideEnv: true})
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return nil // the job was removed
	case err != nil:
		return err
	case !q.matchesJob(&j.Job):
		return nil
	case !ended:
		q.followRunningAttempt(ctx, e.JobID, e.Attempt)
		return nil
	}
	select {
	case q.endedStreamSlots <- struct{}{}:
		q.startReadingAttempt(ctx, e.JobID, e.Attempt, q.endedStreamSlots)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// matchesJob reports whether the filter selects a job and the user may see its output.
func (q *queueLogFollower) matchesJob(j *control.Job) bool {
	for name, value := range q.filter.WithLabels {
		if j.Labels[name] != value {
			return false
		}
	}
	return j.Queue == q.filter.Queue && !slices.Contains(j.HiddenParts, "command")
}

// followRunningAttempt starts to follow the output of a running attempt. It does nothing if maxLiveStreams attempts are
// already followed.
func (q *queueLogFollower) followRunningAttempt(ctx context.Context, id string, attempt int) {
	select {
	case q.liveStreamSlots <- struct{}{}:
		q.attemptByJobID[id] = attempt
		q.startReadingAttempt(ctx, id, attempt, q.liveStreamSlots)
	default:
	}
}

// startReadingAttempt starts a goroutine that prints the output of an attempt. At its end, the goroutine releases the
// slot of slotSemaphore that the caller has acquired. While the service has no free stream for this user, the goroutine
// tries again.
func (q *queueLogFollower) startReadingAttempt(ctx context.Context, id string, attempt int,
	slotSemaphore chan struct{}) {
	q.openStreams.Go(func() {
		defer func() { <-slotSemaphore }()
		for {
			printed, err := q.reader.printAttempt(ctx, id, attempt, id+" | ")
			switch {
			case err == nil, ctx.Err() != nil, errors.Is(err, queue.ErrNotFound): // ErrNotFound means that the job was removed
				return
			// Try again only if the service had no free stream and nothing was printed. Any other error ends
			// the command.
			case printed || !errors.Is(err, queue.ErrUnavailable):
				q.endCommandWithError(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

// damagedOutputError returns the error for a piece of output that is damaged on disk.
func damagedOutputError(p *control.OutputPiece) error {
	which := "stdout, stderr or both cannot be read"
	if p.Stream != "" {
		which = fmt.Sprintf("%s, from byte %d on, cannot be read", p.Stream, p.Damage.StreamOffset)
	}
	return fmt.Errorf("the output of attempt %d of job %s is damaged: %d bytes of %s; check all files with: "+
		"queuectl doctor --verify", p.Attempt, p.JobID, p.Damage.ByteCount, which)
}

// logPrinter prints the pieces of one job's output. If it prints a prefix before each line, the output of several jobs
// may be mixed. It then buffers an incomplete line until the rest of the line arrives, so that each printed line
// belongs to one job.
type logPrinter struct {
	app            *App
	streamEscapers [2]term.JobOutputEscaper   // one for standard output and one for standard error
	ttyOutputs     [2]term.TTYOutputConverter // one for each stream of a job with a terminal
	currentAttempt int                        // number of the attempt whose output is being printed
	jsonList       *term.JSONListPrinter      // the JSON list to print to; nil for text
	linePrefix     string
	showTimestamps bool
	atLineStart    bool   // the last printed text ended with a line break
	partialLine    string // buffered beginning of a line
}

// maxPartialLineBytes bounds a buffered line, in bytes. A longer line is printed in pieces.
const maxPartialLineBytes = 64 << 10

// newLogPrinter returns a logPrinter. If a prefix or timestamps are printed, it escapes carriage returns: the text
// after a carriage return would overwrite the prefix or the timestamp.
func newLogPrinter(a *App, linePrefix string, showTimestamps bool) *logPrinter {
	live := linePrefix == "" && !showTimestamps
	l := &logPrinter{app: a, linePrefix: linePrefix, showTimestamps: showTimestamps, atLineStart: true}
	for i := range l.streamEscapers {
		l.streamEscapers[i] = term.JobOutputEscaper{Output: &a.Output, File: a.Stdout, KeepCarriageReturns: live}
		l.ttyOutputs[i].Renderer.KeepColours = term.UsesColours(a.Stdout)
	}
	return l
}

func (l *logPrinter) printPiece(p *control.OutputPiece) error {
	if l.jsonList != nil {
		return l.jsonList.Add(p)
	}
	i := 0
	if p.Stream == "stderr" {
		i = 1
	}
	from, tty := &l.streamEscapers[i], &l.ttyOutputs[i]
	text := ""
	// Each attempt has its own terminal, so finish the unfinished line of the previous attempt.
	if p.Attempt != l.currentAttempt {
		text, l.currentAttempt = tty.FlushUnfinishedLine(from.ConvertPiece), p.Attempt
	}
	if p.FromTerminal && !l.app.KeepControlCharacters {
		text += tty.ConvertPiece(p.String(), from.ConvertPiece)
	} else {
		text += from.ConvertPiece(p.String())
	}
	if gap := p.MissingOutputText(); gap != "" {
		if line := tty.FlushUnfinishedLine(from.ConvertPiece); line != "" {
			text += line + "\n"
		}
		text += from.FlushIncompleteText() + gap + "\n"
		tty.Renderer.StartsMidOutput = true
		if !l.atLineStart || l.partialLine != "" {
			text = "\n" + text
		}
	}
	if l.linePrefix != "" {
		text = l.partialLine + text
		whole := strings.LastIndexByte(text, '\n') + 1
		text, l.partialLine = text[:whole], text[whole:]
		if len(l.partialLine) > maxPartialLineBytes {
			text, l.partialLine = text+l.partialLine+"\n", ""
		}
	}
	return l.printText(text, p.PrintedAt)
}

func (l *logPrinter) printText(text string, timestamp control.Time) error {
	before := l.linePrefix
	if l.showTimestamps {
		before += formatLocalMillis(timestamp) + " "
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if l.atLineStart {
			b.WriteString(before)
		}
		b.WriteString(line)
		l.atLineStart = strings.HasSuffix(line, "\n")
	}
	_, err := l.app.Stdout.WriteString(b.String())
	return err
}

// flushPartialLine prints the buffered beginning of a line.
func (l *logPrinter) flushPartialLine() error {
	text := l.partialLine
	for i := range l.streamEscapers {
		text += l.ttyOutputs[i].FlushUnfinishedLine(l.streamEscapers[i].ConvertPiece) +
			l.streamEscapers[i].FlushIncompleteText()
	}
	if text == "" {
		return nil
	}
	if l.linePrefix != "" {
		text = l.linePrefix + text + "\n"
	}
	_, err := l.app.Stdout.WriteString(text)
	return err
}

func formatLocalMillis(t control.Time) string {
	return queue.UnixMillis(t).Time().Local().Format("2006-01-02T15:04:05.000Z07:00")
}
