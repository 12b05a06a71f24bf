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

// This file connects the user's terminal to the terminal of a job. Two goroutines share one
// terminalSession. The first follows the job and prints its output unchanged (print). The second
// connects the input to one attempt after another (join): it attaches to the attempt, puts the user's
// terminal into raw mode (enter), and passes keys and size changes on (serve). When the attempt ends,
// leave restores the terminal.
//
// The output may also change modes of the user's terminal, for example hide the cursor.
// termtext.Modes tracks these modes, so that leave can reset them.

// terminalSession connects the user's terminal to a job's terminal.
type terminalSession struct {
	a             *App
	c             *control.Client
	f             *followedJob
	typedInput    chan []byte // input for the job
	userLeft      chan struct{}
	endedAttempts chan int // sends the number of the last ended attempt to join

	mu sync.Mutex
	// savedState is the terminal's original state while an attempt uses the terminal, and nil otherwise.
	// mu guards it and all fields below.
	savedState       *xterm.State
	lastEndedAttempt int  // number of the newest attempt that has ended
	hasLeft          bool // the user has left the job, so show prints nothing more
	modes            termtext.Modes
}

// allAttempts is higher than any attempt number. leave(allAttempts) disconnects from all attempts.
const allAttempts = 1 << 30

// JoinTerminal connects the user's terminal to the job's terminal while an attempt runs. Like attached,
// it follows the job to its end. At the end it restores the user's terminal.
func (a *App) JoinTerminal(ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error {
	j := &terminalSession{a: a, c: c, f: f, typedInput: make(chan []byte, typedInputCapacity),
		userLeft:      make(chan struct{}),
		endedAttempts: make(chan int, 1)}
	defer j.leaveJob()
	ends := make(chan os.Signal, 4)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(ends)
	ctx, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	done := make(chan error, 1)
	go func() { // this goroutine ends when the job ends or stop is called
		defer j.leave(allAttempts) // the deferred call restores the terminal even after a panic
		done <- a.follow(ctx, c, f, j.printOutput)
	}()
	loops.Go(func() {
		defer j.leave(allAttempts)
		j.joinAttempts(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-j.userLeft:
		j.leaveJob()
		fmt.Fprintf(a.Stderr, "\n%s\n", continuesText(f.id))
	case s := <-ends:
		j.leaveJob()
		a.ExitCode = 128 + int(s.(syscall.Signal))
		fmt.Fprintf(a.Stderr, "\n%s\n", continuesText(f.id))
		return nil
	case <-interrupts: // no attempt uses the terminal, or another process sent the signal
		j.leaveJob()
		if !f.cancelOnExit && a.detachOrCancel(f.id, interrupts, done) {
			return a.cancelAndExit(c, f.id)
		}
	}
	if f.cancelOnExit {
		return a.cancelAndExit(c, f.id)
	}
	a.ExitCode = fault.ExitDetached
	return nil
}

// enterRawMode puts the user's terminal into raw mode for an attempt, unless the attempt has ended.
func (j *terminalSession) enterRawMode(attempt int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if attempt <= j.lastEndedAttempt || j.savedState != nil {
		return nil
	}
	saved, err := xterm.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("your terminal does not support raw mode (%w); try another terminal program", err)
	}
	j.savedState = saved
	return nil
}

// leave disconnects the terminal from this attempt and all earlier ones, and restores the terminal.
func (j *terminalSession) leave(attempt int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastEndedAttempt = max(j.lastEndedAttempt, attempt)
	_, columns := j.size()
	// Reset the modes even if the terminal was not connected, because earlier output may have set some.
	j.a.Stdout.WriteString(j.modes.Restore(columns))
	j.modes = termtext.Modes{}
	if j.savedState == nil {
		return
	}
	xterm.Restore(int(os.Stdin.Fd()), j.savedState)
	j.savedState = nil
}

// leaveJob disconnects the terminal from all attempts. Later output of the job is not shown.
func (j *terminalSession) leaveJob() {
	j.mu.Lock()
	j.hasLeft = true
	j.mu.Unlock()
	j.leave(allAttempts)
}

// writeOutput writes the job's output unchanged, because the output is meant for a terminal.
func (j *terminalSession) writeOutput(data []byte) error {
	j.mu.Lock() // held during the write, so that no output follows after leave has reset the modes
	defer j.mu.Unlock()
	if j.hasLeft {
		return nil
	}
	j.modes.Write(data)
	_, err := j.a.Stdout.Write(data)
	return err
}

// printOutput is the function printer for a connected terminal. If the running attempt is in full-screen
// mode, printOutput skips the previous output, because the program will redraw its screen.
func (j *terminalSession) printOutput(
	ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error,
) error {
	if j.f.mayHaveStarted {
		lines, err := j.restoreModes(ctx)
		if err != nil {
			return err
		}
		p.LastLines = &lines
	}
	_, err := c.Logs(ctx, p, func(p control.OutputPiece) error {
		switch {
		case p.Ended:
			j.leave(p.Attempt)
			select {
			case <-j.endedAttempts: // drop the previous number if join has not received it, because join does not need it
			default:
			}
			j.endedAttempts <- p.Attempt
			return ended(p.Attempt)
		}
		if gap := p.GapText(); gap != "" {
			return j.writeOutput([]byte("\r\n" + gap + "\r\n"))
		}
		return j.writeOutput(p.Bytes())
	})
	j.leave(allAttempts)
	return err
}

// restoreModes sets the terminal modes that the running attempt has set before. It returns how many of
// the last lines of output to show.
func (j *terminalSession) restoreModes(ctx context.Context) (lines int, err error) {
	joined, err := j.c.Attach(ctx, control.Attach{ID: control.JobID(j.f.id), Controls: true})
	if err != nil && ctx.Err() != nil {
		return 0, err
	} // on any other error, no attempt is running and no modes are set
	var m termtext.Modes
	m.Write([]byte(joined.Controls))
	if !m.FullScreen() {
		rows, _ := j.size()
		lines = rows - 1
	}
	return lines, j.writeOutput([]byte(m.Replay()))
}

// size returns the size of the user's terminal, or 24 by 80 if it is unknown.
func (j *terminalSession) size() (rows, cols int) {
	cols, rows, err := xterm.GetSize(int(j.a.Stdout.Fd()))
	if err != nil || rows < 1 || cols < 1 {
		return 24, 80
	}
	return rows, cols
}

// joinAttempts connects the terminal to one attempt after another, until ctx ends or the user leaves.
func (j *terminalSession) joinAttempts(ctx context.Context) {
	redraw := j.f.mayHaveStarted
	for next := 0; ctx.Err() == nil; {
		joined, err := j.attach(ctx, next, true)
		if err == nil {
			err = j.enterRawMode(joined.Attempt)
		}
		switch {
		case err == nil:
			if redraw {
				j.redraw(ctx, joined.Attempt)
			}
			redraw = false
			if n := j.serveAttempt(ctx, joined.Attempt); n > 0 {
				next = n + 1
				continue
			}
		case errors.Is(err, queue.ErrWrongState): // the attempt ended before it could be joined
		case ctx.Err() != nil, errors.Is(err, queue.ErrUnavailable), errors.Is(err, queue.ErrNotFound):
			return // follow reports the error
		default:
			j.a.sayViewOnly(err)
			return
		}
		select {
		case n := <-j.endedAttempts:
			next = n + 1
		case <-ctx.Done():
		}
	}
}

// attach connects to the terminal of an attempt and sets its size to the size of the user's
// terminal.
func (j *terminalSession) attach(ctx context.Context, attempt int, wait bool) (control.AttachResult, error) {
	rows, cols := j.size()
	return j.c.Attach(ctx, control.Attach{ID: control.JobID(j.f.id), Attempt: attempt, Wait: wait, Rows: rows, Cols: cols})
}

// redrawAfter is how long redraw gives the job's terminal another size before it restores the original
// size. The program notices the change and redraws its screen.
const redrawAfter = 100 * time.Millisecond

// redraw makes the program of an attempt redraw its screen.
func (j *terminalSession) redraw(ctx context.Context, attempt int) {
	rows, cols := j.size()
	other := rows - 1
	if other == 0 {
		other = rows + 1
	}
	if _, err := j.c.Attach(ctx, control.Attach{ID: control.JobID(j.f.id), Attempt: attempt, Rows: other,
		Cols: cols}); err != nil {
		return // the attempt has ended, or the method follow reports the error
	}
	select {
	case <-time.After(redrawAfter):
	case <-ctx.Done():
	}
	j.attach(ctx, attempt, false)
}

// serveAttempt sends input and size changes to an attempt. It returns the number of the attempt that has
// ended, or 0 if ctx ends first.
func (j *terminalSession) serveAttempt(ctx context.Context, attempt int) (ended int) {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	ctx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	reading.Go(func() {
		defer j.leave(attempt)
		j.readInput(ctx)
	})
	var data []byte // input that the job has not accepted yet
	pause := resendAfter
	for {
		typed, resend := j.typedInput, (<-chan time.Time)(nil)
		if len(data) > 0 { // send the remaining input before reading more
			typed, resend = nil, time.After(pause)
		}
		var err error
		select {
		case data = <-typed:
			data, err = j.sendInput(ctx, attempt, data)
			pause = resendAfter
		case <-resend:
			had := len(data)
			data, err = j.sendInput(ctx, attempt, data)
			if pause = min(2*pause, maxResendAfter); len(data) < had {
				pause = resendAfter
			}
		case <-sizes:
			_, err = j.attach(ctx, attempt, false)
		case n := <-j.endedAttempts:
			return n
		case <-ctx.Done():
			return 0
		}
		if err != nil { // the attempt has ended, or the method follow reports the error
			data = nil
		}
	}
}

// If a job does not read its input, the program sends the input again after a pause. These constants
// are the first and the longest pause.
const (
	resendAfter    = 5 * time.Millisecond
	maxResendAfter = 200 * time.Millisecond
)

// sendInput sends input to the job's terminal. It returns the rest that did not fit into the terminal's
// buffer.
func (j *terminalSession) sendInput(ctx context.Context, attempt int, data []byte) (rest []byte, err error) {
	got, err := j.c.Attach(ctx, control.Attach{ID: control.JobID(j.f.id), Attempt: attempt, Base64: data})
	if err != nil {
		return nil, err
	}
	return data[got.Written:], nil
}

// typedInputCapacity is how many reads of the user's terminal are buffered while the job does not read its
// input. If the buffer is full, each read waits for fullBufferWait and is then dropped with a bell. So the
// keys that leave the job always work.
const (
	typedInputCapacity = 256
	fullBufferWait     = time.Second
)

// readInput reads the user's input until ctx ends.
func (j *terminalSession) readInput(ctx context.Context) {
	wake, end, err := os.Pipe()
	if err != nil {
		fmt.Fprintf(j.a.Stderr, "queuectl: cannot read your terminal: %v\r\n", err)
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
			return // reading fails if the terminal is gone
		}
		for typed := buffer[:n]; len(typed) > 0; {
			var data []byte
			var w keyAction
			data, w, typed = k.parse(typed)
			switch w {
			case actLeave:
				close(j.userLeft)
				return
			case actHelp:
				fmt.Fprint(j.a.Stderr, "~?\r\nqueuectl: after Enter, type ~. to detach (the job continues), ~~ for a tilde, "+
					"~? for this help\r\n")
			}
			if len(data) == 0 {
				continue
			}
			select {
			case j.typedInput <- data:
			case <-ctx.Done():
				return
			case <-time.After(fullBufferWait):
				fmt.Fprint(j.a.Stderr, "\a")
			}
		}
	}
}
