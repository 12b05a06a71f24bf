//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// This file connects the user's terminal to the terminal of a job. Two goroutines share one terminalSession. The first
// one runs printOutput, which prints the job's output unchanged. The second one runs joinAttempts, which connects the
// input to one attempt after another: it attaches to the attempt, puts the user's terminal into raw mode, and passes
// keys and size changes to the job. When the attempt ends, the method leaveAttempt restores the terminal.
//
// The output may also change modes of the user's terminal, for example hide the cursor. termtext.Modes tracks
// these modes, so that leaveAttempt can reset them.

// terminalSession connects the user's terminal to a job's terminal.
type terminalSession struct {
	*App
	client         *control.Client
	job            *followedJob
	typedInput     chan []byte   // input for the job
	userLeftSignal chan struct{} // closed when the user leaves the job
	endedAttempts  chan int      // numbers of ended attempts, which printOutput sends to joinAttempts

	mu sync.Mutex
	// savedState is the state that the user's terminal had before raw mode, while an attempt uses the terminal. Otherwise
	// savedState is nil. mu guards savedState and all fields below.
	savedState       *xterm.State
	lastEndedAttempt int  // number of the newest attempt that has ended, or that leaveAttempt has disconnected
	userHasLeft      bool // the user has left the job, so writeOutput prints nothing more
	jobTerminalModes termtext.TerminalModes
}

// aboveAllAttemptNumbers is higher than the number of any attempt, so leaveAttempt(aboveAllAttemptNumbers) disconnects
// the terminal from every attempt.
const aboveAllAttemptNumbers = 1 << 30

// JoinTerminal connects the user's terminal to the terminal of each attempt of a job. It returns when the job
// ends or the user leaves the job, and then restores the user's terminal.
func (a *App) JoinTerminal(ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error {
	j := &terminalSession{App: a, client: c, job: f, typedInput: make(chan []byte, typedInputCapacity),
		userLeftSignal: make(chan struct{}), endedAttempts: make(chan int, 1)}
	defer j.leaveJob()
	ends := make(chan os.Signal, 4)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(ends)
	ctx, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	done := make(chan error, 1)
	go func() { // this goroutine ends when the job ends or JoinTerminal returns
		defer j.leaveAttempt(aboveAllAttemptNumbers) // the deferred call restores the terminal even after a panic
		done <- a.followJob(ctx, c, f, j.printOutput)
	}()
	loops.Go(func() {
		defer j.leaveAttempt(aboveAllAttemptNumbers)
		j.joinAttempts(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-j.userLeftSignal:
		j.leaveJob()
		fmt.Fprintf(a.Stderr, "\n%s\n", jobContinuesText(f.id))
	case s := <-ends:
		j.leaveJob()
		a.ExitCode = 128 + int(s.(syscall.Signal))
		fmt.Fprintf(a.Stderr, "\n%s\n", jobContinuesText(f.id))
		return nil
	case <-interrupts: // Ctrl-C while no attempt uses the terminal, or a SIGINT from another process
		j.leaveJob()
		if !f.cancelOnExit && a.awaitSecondInterrupt(f.id, interrupts, done) {
			return a.cancelAndExit(c, f.id)
		}
	}
	if f.cancelOnExit {
		return a.cancelAndExit(c, f.id)
	}
	a.ExitCode = fault.ExitCodeDetached
	return nil
}

// enterRawMode puts the user's terminal into raw mode for an attempt. It does nothing if the attempt has already ended.
func (s *terminalSession) enterRawMode(attempt int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt <= s.lastEndedAttempt || s.savedState != nil {
		return nil
	}
	saved, err := xterm.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("your terminal does not support raw mode (%w); try another terminal program", err)
	}
	s.savedState = saved
	return nil
}

// leaveAttempt disconnects the user's terminal from the given attempt and all earlier attempts, and restores the state
// of the terminal.
func (s *terminalSession) leaveAttempt(attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastEndedAttempt = max(s.lastEndedAttempt, attempt)
	_, columns := s.terminalSize()
	// Reset the terminal modes even if no attempt has used the terminal, because output that was shown may have set modes.
	s.Stdout.WriteString(s.jobTerminalModes.RestoreSequences(columns))
	s.jobTerminalModes = termtext.TerminalModes{}
	if s.savedState == nil {
		return
	}
	xterm.Restore(int(os.Stdin.Fd()), s.savedState)
	s.savedState = nil
}

// leaveJob disconnects the terminal from all attempts. Later output of the job is not shown.
func (s *terminalSession) leaveJob() {
	s.mu.Lock()
	s.userHasLeft = true
	s.mu.Unlock()
	s.leaveAttempt(aboveAllAttemptNumbers)
}

// writeOutput writes the job's output unchanged, because the output is meant for a terminal.
func (s *terminalSession) writeOutput(data []byte) error {
	s.mu.Lock() // held during the write, so that no output is written after leaveAttempt has reset the modes
	defer s.mu.Unlock()
	if s.userHasLeft {
		return nil
	}
	s.jobTerminalModes.Write(data)
	_, err := s.Stdout.Write(data)
	return err
}

// printOutput implements outputPrinter for a connected terminal. If the running attempt is in full-screen
// mode, printOutput skips earlier output, because the program of the job will redraw its screen.
func (s *terminalSession) printOutput(
	ctx context.Context, c *control.Client, p control.JobOutputParams, onAttemptEnd func(attempt int) error,
) error {
	if s.job.mayHaveStarted {
		lines, err := s.setAttemptTerminalModes(ctx)
		if err != nil {
			return err
		}
		p.LastLineCount = &lines
	}
	_, err := c.StreamOutput(ctx, p, func(p control.OutputPiece) error {
		switch {
		case p.AttemptEnded:
			s.leaveAttempt(p.Attempt)
			select {
			case <-s.endedAttempts: // drop an unreceived number: joinAttempts needs only the newest one
			default:
			}
			s.endedAttempts <- p.Attempt
			return onAttemptEnd(p.Attempt)
		}
		if gap := p.MissingOutputText(); gap != "" {
			return s.writeOutput([]byte("\r\n" + gap + "\r\n"))
		}
		return s.writeOutput(p.Bytes())
	})
	s.leaveAttempt(aboveAllAttemptNumbers)
	return err
}

// setAttemptTerminalModes sets, on the user's terminal, the modes that the running attempt has set on its terminal.
// linesToShow is how many of the last lines of the attempt's output the caller should show.
func (s *terminalSession) setAttemptTerminalModes(ctx context.Context) (linesToShow int, err error) {
	joined, err := s.client.AttachTerminal(ctx, control.AttachTerminalParams{ID: control.JobID(s.job.id),
		WantControlSequences: true})
	if err != nil && ctx.Err() != nil {
		return 0, err
	} // ignore any other error: no attempt is running, so no modes are set
	var m termtext.TerminalModes
	m.Write([]byte(joined.ControlSequences))
	if !m.IsFullScreen() {
		rows, _ := s.terminalSize()
		linesToShow = rows - 1
	}
	return linesToShow, s.writeOutput([]byte(m.ReplaySequences()))
}

// terminalSize returns the size of the user's terminal, or 24 by 80 if it is unknown.
func (s *terminalSession) terminalSize() (rows, cols int) {
	cols, rows, err := xterm.GetSize(int(s.Stdout.Fd()))
	if err != nil || rows < 1 || cols < 1 {
		return 24, 80
	}
	return rows, cols
}

// joinAttempts connects the user's terminal to one attempt after another, until ctx ends or the user leaves.
func (s *terminalSession) joinAttempts(ctx context.Context) {
	redraw := s.job.mayHaveStarted
	for next := 0; ctx.Err() == nil; {
		joined, err := s.attachToAttempt(ctx, next, true)
		if err == nil {
			err = s.enterRawMode(joined.Attempt)
		}
		switch {
		case err == nil:
			if redraw {
				s.makeProgramRedraw(ctx, joined.Attempt)
			}
			redraw = false
			if n := s.forwardTerminalToAttempt(ctx, joined.Attempt); n > 0 {
				next = n + 1
				continue
			}
		case errors.Is(err, queue.ErrWrongState): // the attempt has already ended
		case ctx.Err() != nil, errors.Is(err, queue.ErrUnavailable), errors.Is(err, queue.ErrNotFound):
			return // followJob reports the error
		default:
			s.printViewOnlyReason(err)
			return
		}
		select {
		case n := <-s.endedAttempts:
			next = n + 1
		case <-ctx.Done():
		}
	}
}

// attachToAttempt connects to the terminal of an attempt, and gives it the size of the user's terminal. If
// waitForStart is true, it waits for the attempt to start.
func (s *terminalSession) attachToAttempt(ctx context.Context, attempt int,
	waitForStart bool) (control.AttachTerminalResult,
	error) {
	rows, cols := s.terminalSize()
	return s.client.AttachTerminal(ctx, control.AttachTerminalParams{ID: control.JobID(s.job.id), Attempt: attempt,
		WaitForStart: waitForStart, TerminalRows: rows, TerminalCols: cols})
}

// redrawResizeDuration is how long makeProgramRedraw gives the job's terminal another size before it restores the
// original size. The job's program notices the changes of the size and redraws its screen.
const redrawResizeDuration = 100 * time.Millisecond

// makeProgramRedraw makes the program of an attempt redraw its screen.
func (s *terminalSession) makeProgramRedraw(ctx context.Context, attempt int) {
	rows, cols := s.terminalSize()
	other := rows - 1
	if other == 0 {
		other = rows + 1
	}
	if _, err := s.client.AttachTerminal(ctx, control.AttachTerminalParams{ID: control.JobID(s.job.id), Attempt: attempt,
		TerminalRows: other,
		TerminalCols: cols}); err != nil {
		return // the attempt has ended, or followJob reports the error
	}
	select {
	case <-time.After(redrawResizeDuration):
	case <-ctx.Done():
	}
	s.attachToAttempt(ctx, attempt, false)
}

// forwardTerminalToAttempt passes input and size changes to an attempt until any attempt of the job ends. It returns
// the number of the ended attempt, or 0 if ctx ends first.
func (s *terminalSession) forwardTerminalToAttempt(ctx context.Context, attempt int) (endedAttempt int) {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	ctx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	reading.Go(func() {
		defer s.leaveAttempt(attempt)
		s.readTypedInput(ctx)
	})
	var data []byte // input that the job has not accepted yet
	pause := minInputResendDelay
	for {
		typed, resend := s.typedInput, (<-chan time.Time)(nil)
		if len(data) > 0 { // send the remaining input before reading more
			typed, resend = nil, time.After(pause)
		}
		var err error
		select {
		case data = <-typed:
			data, err = s.sendInput(ctx, attempt, data)
			pause = minInputResendDelay
		case <-resend:
			had := len(data)
			data, err = s.sendInput(ctx, attempt, data)
			if pause = min(2*pause, maxInputResendDelay); len(data) < had {
				pause = minInputResendDelay
			}
		case <-sizes:
			_, err = s.attachToAttempt(ctx, attempt, false)
		case n := <-s.endedAttempts:
			return n
		case <-ctx.Done():
			return 0
		}
		if err != nil { // the attempt has ended, or followJob reports the error
			data = nil
		}
	}
}

// If a job does not read its input, the client sends the rest of the input again after a pause. The pause grows from
// minInputResendDelay to maxInputResendDelay.
const (
	minInputResendDelay = 5 * time.Millisecond
	maxInputResendDelay = 200 * time.Millisecond
)

// sendInput sends input to the job's terminal. It returns the rest of the input that did not fit into the buffer of the
// job's terminal.
func (s *terminalSession) sendInput(ctx context.Context, attempt int, data []byte) (unsent []byte, err error) {
	got, err := s.client.AttachTerminal(ctx, control.AttachTerminalParams{ID: control.JobID(s.job.id), Attempt: attempt,
		TypedBytes: data})
	if err != nil {
		return nil, err
	}
	return data[got.AcceptedBytes:], nil
}

// typedInputCapacity is how many reads of the user's terminal are buffered while the job does not read its input. If
// the buffer is full, readTypedInput waits for fullInputBufferWait, drops the input, and rings the terminal's bell. It
// does not wait longer, because the user must always be able to leave the job with keys.
const (
	typedInputCapacity  = 256
	fullInputBufferWait = time.Second
)

// readTypedInput reads the user's input until ctx ends.
func (s *terminalSession) readTypedInput(ctx context.Context) {
	wake, end, err := os.Pipe()
	if err != nil {
		fmt.Fprintf(s.Stderr, "queuectl: cannot read your terminal: %v\r\n", err)
		return
	}
	defer wake.Close()
	stop := context.AfterFunc(ctx, func() { end.Close() })
	defer func() {
		if stop() {
			end.Close()
		}
	}()
	buffer := make([]byte, 4<<10)
	var k keyParser
	for {
		fds := []unix.PollFd{{Fd: int32(os.Stdin.Fd()), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) || fds[1].Revents != 0 {
			return
		}
		if fds[0].Revents == 0 {
			continue
		}
		n, err := os.Stdin.Read(buffer)
		if err != nil {
			return // reading fails if the terminal no longer exists
		}
		for typed := buffer[:n]; len(typed) > 0; {
			var data []byte
			var action keyAction
			data, action, typed = k.parseTypedInput(typed)
			switch action {
			case leaveJobAction:
				close(s.userLeftSignal)
				return
			case showHelpAction:
				fmt.Fprint(s.Stderr, "~?\r\nqueuectl: after Enter, type ~. to detach (the job continues), ~~ for a tilde, "+
					"~? for this help\r\n")
			}
			if len(data) == 0 {
				continue
			}
			select {
			case s.typedInput <- data:
			case <-ctx.Done():
				return
			case <-time.After(fullInputBufferWait):
				fmt.Fprint(s.Stderr, "\a")
			}
		}
	}
}
