// Package top shows a live screen of a queue in a terminal, on which the user can also control jobs.
//
// The model in model.go makes all decisions and has no side effects. The shell in this file executes the effects
// that the model returns. The shell uses the library Bubble Tea. Start with Run.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Client is a connection to a queue.
type Client struct {
	control.API
	io.Closer
}

// Options contains the terminal, and the functions with which the screen reaches a queue. See
// docs/decisions/0092.
type Options struct {
	// Connect returns a new client of the queue. The screen closes each of these clients.
	Connect func() Client
	// EditJob lets the user edit a job. While EditJob runs, it has exclusive use of the terminal.
	EditJob func(ctx context.Context, id string) error
	// AddNextStepToError adds the user's next step to an error.
	AddNextStepToError func(error) error
	HostName           string // host name of the machine
	Stdin, Stdout      *os.File
}

// These constants are time limits and intervals of requests.
const (
	fetchTimeout  = 10 * time.Second
	actionTimeout = 5 * time.Minute // includes the time that a cancelled job needs to end
	// outputFollowDelay is the delay before the output of a newly selected job is read. While the user holds a key
	// down, the selection changes quickly. To read the output of each of these jobs would be wasteful.
	outputFollowDelay     = 100 * time.Millisecond
	outputDisplayInterval = 100 * time.Millisecond // interval at which new output is displayed
)

// framesPerSecond is the maximum rate of writes to the terminal.
const framesPerSecond = 20

// Run shows the screen until the user quits, the process gets SIGTERM or SIGHUP, or ctx ends. In these cases, Run
// returns nil. Run restores the terminal, even after a panic. If the service does not reply to the first request, Run
// returns an error. If the service stops replying later, Run waits until it replies again.
func Run(ctx context.Context, o Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return runProgram(ctx, o, append(terminalOptions(o.Stdout), tea.WithInput(o.Stdin))...)
}

// terminalOptions returns the options that make Bubble Tea draw on a terminal. Bubble Tea allocates its first
// screen in the size that the terminal reports. If that size exceeds the limits, terminalOptions therefore
// hides the terminal: Bubble Tea gets a plain writer and the maximum size. detectResize then detects changes
// of the size.
func terminalOptions(terminal *os.File) []tea.ProgramOption {
	w, h, err := term.GetSize(int(terminal.Fd()))
	if bounded := limitTerminalSize(w, h); err == nil && bounded != (tea.WindowSizeMsg{Width: w, Height: h}) {
		return []tea.ProgramOption{
			tea.WithOutput(struct{ io.Writer }{terminal}), tea.WithWindowSize(bounded.Width, bounded.Height),
			tea.WithColorProfile(colorprofile.Detect(terminal, os.Environ())),
		}
	}
	return []tea.ProgramOption{tea.WithOutput(terminal)}
}

// limitTerminalSize reduces the size of a terminal to the maximum size of the screen.
func limitTerminalSize(width, height int) tea.WindowSizeMsg {
	width = min(width, maxScreenWidth)
	return tea.WindowSizeMsg{Width: width, Height: min(height, maxScreenHeight, maxScreenCells/max(width, 1))}
}

// limitReportedSize is a filter for Bubble Tea. It reduces the sizes that the terminal reports, before the
// renderer allocates memory for them.
func limitReportedSize(_ tea.Model, msg tea.Msg) tea.Msg {
	if size, ok := msg.(tea.WindowSizeMsg); ok {
		return limitTerminalSize(size.Width, size.Height)
	}
	return msg
}

// runProgram implements Run. extraOptions contains further options for Bubble Tea.
func runProgram(ctx context.Context, o Options, extraOptions ...tea.ProgramOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also cancels pending requests
	s := &effectExecutor{ctx: ctx, options: o}
	first := s.fetchSnapshot(fetchSnapshotEffect{maxRows: minFetchedRows, fetchesWhoami: true})
	if first.err != nil {
		return first.err
	}
	s.model = newModel(o.HostName, time.Now(), first.snapshot)
	go s.endProgramOnInterrupt(ctx, cancel) // this goroutine ends when ctx ends
	options := []tea.ProgramOption{
		tea.WithContext(ctx), tea.WithFPS(framesPerSecond), tea.WithFilter(limitReportedSize), tea.WithoutSignalHandler(),
	}
	_, err := tea.NewProgram(s, append(options, extraOptions...)...).Run()
	ended := ctx.Err() != nil
	cancel()
	s.runningEditors.Wait() // wait for a running editor, which ends because ctx has ended
	if errors.Is(err, tea.ErrInterrupted) || ended {
		return nil
	}
	return err
}

// effectExecutor executes the effects that the model requests, and sends the results to the model.
type effectExecutor struct {
	ctx                context.Context
	options            Options
	model              *model
	terminalSize       tea.WindowSizeMsg // last size that Bubble Tea reported, limited by limitTerminalSize
	activeOutputReader *outputReader     // reader of the followed output; nil if no output is followed
	runningEditors     sync.WaitGroup
	ignoreSIGINTUntil  atomic.Int64 // time in nanoseconds since 1970; the maximum while an editor is running
}

// editorSignalGrace is how long after an editor has ended a SIGINT is ignored. The user may have pressed
// Ctrl-C in the editor.
const editorSignalGrace = time.Second

// endProgramOnInterrupt ends the program on SIGINT, except if the user has pressed Ctrl-C in an editor. In that case,
// the terminal sends SIGINT not only to the editor but also to this program, which may receive it only after the editor
// has ended.
func (s *effectExecutor) endProgramOnInterrupt(ctx context.Context, endProgram func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			if time.Now().UnixNano() > s.ignoreSIGINTUntil.Load() {
				endProgram()
			}
		case <-ctx.Done():
			return
		}
	}
}

// editJob lets the user edit a job in an editor in the terminal.
func (s *effectExecutor) editJob(id string) error {
	s.runningEditors.Add(1)
	defer s.runningEditors.Done()
	s.ignoreSIGINTUntil.Store(math.MaxInt64)
	defer func() { s.ignoreSIGINTUntil.Store(time.Now().Add(editorSignalGrace).UnixNano()) }()
	return s.options.EditJob(s.ctx, id)
}

// Init starts the clock.
func (s *effectExecutor) Init() tea.Cmd { return s.nextTick() }

// nextTick returns a command that sends a tick at the next full second.
func (s *effectExecutor) nextTick() tea.Cmd {
	return tea.Every(time.Second, func(now time.Time) tea.Msg { return clockTick{now} })
}

// View draws the model.
func (s *effectExecutor) View() tea.View {
	v := tea.NewView(s.model.view())
	v.AltScreen = true
	return v
}

// Update passes a message to the model and starts the effects (requests) that the model returns.
func (s *effectExecutor) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var commands []tea.Cmd
	var message any = msg
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.terminalSize = msg
	case tea.KeyPressMsg:
		message = keyPress{msg.Keystroke(), msg.Text}
		if len(msg.Text) > 0 && msg.Text != " " { // if a key types text, its name is that text
			message = keyPress{msg.Text, msg.Text}
		}
	case tea.ResumeMsg:
		message = clockTick{time.Now()}
	case clockTick:
		commands = append(commands, s.nextTick(), s.detectResize)
	case outputUpdate:
		if s.activeOutputReader != nil && msg.source == s.activeOutputReader.source && !msg.isComplete {
			commands = append(commands, s.activeOutputReader.awaitOutputMessage)
		}
	}
	for _, e := range s.model.update(message) {
		commands = append(commands, s.effectCommand(e))
	}
	return s, tea.Batch(commands...)
}

// detectResize returns the size of the terminal if that differs from the last size that Bubble Tea has
// reported, and otherwise nil.
func (s *effectExecutor) detectResize() tea.Msg {
	if s.options.Stdout == nil {
		return nil
	}
	w, h, err := term.GetSize(int(s.options.Stdout.Fd()))
	if size := limitTerminalSize(w, h); err == nil && w > 0 && h > 0 && size != s.terminalSize {
		return size
	}
	return nil
}

// effectCommand returns the Bubble Tea command that executes an effect.
func (s *effectExecutor) effectCommand(e effect) tea.Cmd {
	switch e := e.(type) {
	case fetchSnapshotEffect:
		return func() tea.Msg { return s.fetchSnapshot(e) }
	case followOutputEffect:
		return s.followOutput(e)
	case actionEffect:
		return func() tea.Msg {
			r, err := sendRequest(s, actionTimeout, func(ctx context.Context, c Client) (control.BulkResult, error) {
				return e.verb.execute(ctx, c, &e)
			})
			return actionResult{e, r, err}
		}
	case explainJobEffect:
		return func() tea.Msg {
			why, err := sendRequest(s, fetchTimeout, func(ctx context.Context, c Client) (control.WaitingExplanation, error) {
				return c.ExplainWaiting(ctx, control.ExplainWaitingParams{ID: control.JobID(e.id)})
			})
			return explainJobResult{e.id, why, err}
		}
	case editJobEffect:
		editor := foregroundFunc(func() error { return s.editJob(e.id) })
		return tea.Exec(editor, func(err error) tea.Msg { return editJobResult{e.id, err} })
	case suspendEffect:
		return tea.Suspend
	case redrawEffect:
		return tea.ClearScreen
	case quitEffect:
		return tea.Quit
	}
	panic(fmt.Sprintf("top: unknown effect %T", e))
}

// foregroundFunc is a function that Bubble Tea calls after it has released the terminal, so that the function
// can use it.
type foregroundFunc func() error

// Run calls the function, which uses the terminal's streams directly.
func (f foregroundFunc) Run() error { return f() }

func (foregroundFunc) SetStdin(io.Reader)  {}
func (foregroundFunc) SetStdout(io.Writer) {}
func (foregroundFunc) SetStderr(io.Writer) {}

// sendRequest sends one request over a new client.
func sendRequest[R any](s *effectExecutor, timeout time.Duration, call func(context.Context, Client) (R, error)) (R,
	error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c := s.options.Connect()
	defer c.Close()
	r, err := call(ctx, c)
	return r, s.addNextStepToError(err)
}

// addNextStepToError adds the user's next step to an error.
func (s *effectExecutor) addNextStepToError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return queue.Errorf(queue.CodeUnavailable, "the service did not answer in time; check it with: queuectl status")
	}
	if err != nil {
		err = s.options.AddNextStepToError(err)
	}
	return err
}

// fetchSnapshot reads the state of the queue from the service.
func (s *effectExecutor) fetchSnapshot(f fetchSnapshotEffect) fetchSnapshotResult {
	got, err := sendRequest(s, fetchTimeout, func(ctx context.Context, c Client) (snapshot, error) {
		return readSnapshot(ctx, c, f)
	})
	return fetchSnapshotResult{got, err}
}

// readSnapshot reads the parts of a snapshot that f requests.
func readSnapshot(ctx context.Context, api control.API, f fetchSnapshotEffect) (s snapshot, err error) {
	s.list = f.list
	if f.fetchesWhoami {
		who, err := api.Whoami(ctx, control.NoParams{})
		if err != nil {
			return s, err
		}
		s.whoami = &who
	}
	if s.screen, err = api.ReadOverviewScreen(ctx, control.OverviewScreenParams{JobsPerSection: f.maxRows}); err != nil {
		return s, err
	}
	switch states := listDefinitions()[f.list].jobStates; {
	case f.list == queueList:
		page, err := api.ListQueues(ctx, control.QueueListParams{})
		s.queues, s.hasMoreRows = page.Queues, page.Next != ""
		return s, err
	case f.list == scheduleList:
		page, err := api.ListSchedules(ctx, control.ScheduleListParams{})
		s.schedules, s.hasMoreRows = page.Schedules, page.Next != nil
		return s, err
	case f.searchText != "":
		p := control.JobListParams{PageSize: maxFetchedRows, IDGlob: f.searchText, States: queue.StateNames(states)}
		if !strings.ContainsAny(f.searchText, "*?[") {
			p.IDGlob = "*" + f.searchText + "*"
		}
		page, err := api.ListJobs(ctx, p)
		if errors.Is(err, queue.ErrInvalid) { // such a text cannot be part of an id, but may be part of a command
			err = nil
		}
		s.searchMatches = page.Jobs
		return s, err
	}
	return s, nil
}

// followOutput starts reading an output and stops reading the previous one.
func (s *effectExecutor) followOutput(f followOutputEffect) tea.Cmd {
	if s.activeOutputReader != nil {
		s.activeOutputReader.stop()
		s.activeOutputReader = nil
	}
	if f.jobID == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(s.ctx)
	r := &outputReader{source: f.outputSource, ctx: ctx, stop: cancel, updateSignal: make(chan struct{}, 1)}
	s.activeOutputReader = r
	return tea.Batch(r.awaitOutputMessage, func() tea.Msg {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(outputFollowDelay):
		}
		c := s.options.Connect()
		defer c.Close()
		lines := f.maxKeptLines
		_, err := c.StreamOutput(ctx, control.JobOutputParams{ID: control.JobID(f.jobID), Follow: f.isRunning,
			LastLineCount: &lines},
			r.addPiece)
		r.markComplete(s.addNextStepToError(err))
		return nil
	})
}

// maxUnreadOutputBytes is how many bytes of output may wait to be displayed. If more arrives, the oldest is dropped.
const maxUnreadOutputBytes = 1 << 20

// outputReader collects the output of a job. Output that arrives in many small pieces is displayed in fewer,
// larger ones.
type outputReader struct {
	source       outputSource
	ctx          context.Context
	stop         context.CancelFunc // ends ctx
	updateSignal chan struct{}      // receives a value when output arrives or ends

	mu               sync.Mutex
	pendingPieces    []outputPiece // guarded by mu
	pendingTextBytes int           // number of bytes of text in pendingPieces; guarded by mu
	isComplete       bool          // guarded by mu
	err              error         // guarded by mu
}

// addPiece adds a piece of output that the service has sent.
func (r *outputReader) addPiece(p control.OutputPiece) error {
	r.mu.Lock()
	text, gap := p.String(), p.MissingOutputText()
	if gap != "" {
		text = gap + "\n"
	}
	r.pendingPieces = append(r.pendingPieces, outputPiece{stream: p.Stream, time: p.PrintedAt, text: text,
		isFromTerminal: p.FromTerminal, isGapNote: gap != ""})
	r.pendingTextBytes += len(text)
	first := 0
	for ; r.pendingTextBytes > maxUnreadOutputBytes; first++ {
		r.pendingTextBytes -= len(r.pendingPieces[first].text)
	}
	r.pendingPieces = slices.Delete(r.pendingPieces, 0, first)
	r.mu.Unlock()
	queue.TrySend(r.updateSignal, struct{}{})
	return nil
}

// markComplete records that no more output will arrive. err is the reason, or nil if the output is complete.
func (r *outputReader) markComplete(err error) {
	r.mu.Lock()
	r.isComplete, r.err = true, err
	r.mu.Unlock()
	queue.TrySend(r.updateSignal, struct{}{})
}

// awaitOutputMessage waits for output and returns it as a message.
func (r *outputReader) awaitOutputMessage() tea.Msg {
	select {
	case <-r.updateSignal:
	case <-r.ctx.Done():
		return nil
	}
	select { // wait a moment, because more output may follow
	case <-time.After(outputDisplayInterval):
	case <-r.ctx.Done():
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := outputUpdate{source: r.source, pieces: r.pendingPieces, isComplete: r.isComplete, err: r.err}
	r.pendingPieces, r.pendingTextBytes = nil, 0
	return p
}
