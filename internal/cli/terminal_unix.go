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
	"golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// joint is a person's terminal that is joined with a job's.
type joint struct {
	a     *App
	c     *control.Client
	f     *followed
	typed chan []byte // what was typed for the job
	left  chan struct{}
	ended chan int // the last attempt that has ended, by number, until join has heard of it

	mu    sync.Mutex
	saved *term.State // how the terminal was, while an attempt has it; nil else; guarded by mu, as is all below
	over  int         // attempts up to this one have ended
	gone  bool        // the user has left the job; nothing more of it is shown
	modes termtext.Modes
}

// everyAttempt stands for all attempts of a job that has ended.
const everyAttempt = 1 << 30

// JoinTerminal joins the terminal of a job with the person's while an attempt runs, and follows
// the job to its end as attached does. It leaves the person's as it was.
func (a *App) JoinTerminal(ctx context.Context, c *control.Client, f *followed, interrupts <-chan os.Signal) error {
	j := &joint{a: a, c: c, f: f, typed: make(chan []byte, typedAhead), left: make(chan struct{}), ended: make(chan int, 1)}
	defer j.leaveJob()
	ends := make(chan os.Signal, 4)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(ends)
	ctx, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	done := make(chan error, 1)
	go func() { // ends with the job, or stop
		defer j.leave(everyAttempt) // also where it panics
		done <- a.follow(ctx, c, f, j.print)
	}()
	loops.Go(func() {
		defer j.leave(everyAttempt)
		j.join(ctx)
	})
	select {
	case err := <-done:
		return err
	case <-j.left:
		j.leaveJob()
		fmt.Fprintf(a.Err, "\n%s\n", continuesText(f.id))
	case s := <-ends:
		j.leaveJob()
		a.Exit = 128 + int(s.(syscall.Signal))
		fmt.Fprintf(a.Err, "\n%s\n", continuesText(f.id))
		return nil
	case <-interrupts: // no attempt has the terminal, or somebody else has sent it
		j.leaveJob()
		if !f.cancelOnExit && a.detachOrCancel(f.id, interrupts, done) {
			return a.cancelAndExit(c, f.id)
		}
	}
	if f.cancelOnExit {
		return a.cancelAndExit(c, f.id)
	}
	a.Exit = exitDetached
	return nil
}

// enter gives the terminal to an attempt, unless that has ended.
func (j *joint) enter(attempt int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if attempt <= j.over || j.saved != nil {
		return nil
	}
	saved, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("cannot connect your terminal to the job: %w", err)
	}
	j.saved = saved
	return nil
}

// leave takes the terminal back from attempts up to this one, and leaves it as it was.
func (j *joint) leave(attempt int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = max(j.over, attempt)
	_, columns := j.size()
	j.a.Out.WriteString(j.modes.Undo(columns)) // also where the terminal only showed the output
	j.modes = termtext.Modes{}
	if j.saved == nil {
		return
	}
	term.Restore(int(os.Stdin.Fd()), j.saved)
	j.saved = nil
}

// leaveJob takes the terminal back from all attempts. What the job prints from now on is not shown.
func (j *joint) leaveJob() {
	j.mu.Lock()
	j.gone = true
	j.mu.Unlock()
	j.leave(everyAttempt)
}

// show writes the job's output unchanged, since it is meant for a terminal.
func (j *joint) show(data []byte) error {
	j.mu.Lock() // until it is written, so that nothing is shown after leave has undone what it changes
	defer j.mu.Unlock()
	if j.gone {
		return nil
	}
	j.modes.Write(data)
	_, err := j.a.Out.Write(data)
	return err
}

// print is a printer of the job's output. What there is of an attempt that runs already is not
// shown where it was a full screen, which the job draws again.
func (j *joint) print(ctx context.Context, c *control.Client, p control.Logs, ended func(attempt int) error) error {
	if j.f.later {
		lines, err := j.comeLater(ctx)
		if err != nil {
			return err
		}
		p.N = &lines
	}
	_, err := c.Logs(ctx, p, func(p control.Piece) error {
		switch {
		case p.Ended:
			j.leave(p.Attempt)
			select {
			case <-j.ended: // join has not heard of the one before, and need not
			default:
			}
			j.ended <- p.Attempt
			return ended(p.Attempt)
		}
		if gap := p.Gap(); gap != "" {
			return j.show([]byte("\r\n" + gap + "\r\n"))
		}
		return j.show(p.Bytes())
	})
	j.leave(everyAttempt)
	return err
}

// comeLater gives the terminal the modes that the job has already set on its own, and returns how many
// of the last lines are worth showing.
func (j *joint) comeLater(ctx context.Context) (lines int, err error) {
	joined, err := j.c.Attach(ctx, control.Attach{ID: control.Name(j.f.id), Controls: true})
	if err != nil && ctx.Err() != nil {
		return 0, err
	} // where no attempt runs, no modes are set
	var m termtext.Modes
	m.Write([]byte(joined.Controls))
	if !m.FullScreen() {
		rows, _ := j.size()
		lines = rows - 1
	}
	return lines, j.show([]byte(m.Again()))
}

// size is that of the person's terminal.
func (j *joint) size() (rows, cols int) {
	cols, rows, err := term.GetSize(int(j.a.Out.Fd()))
	if err != nil || rows < 1 || cols < 1 {
		return 24, 80
	}
	return rows, cols
}

// join joins the terminal of one attempt after another, until ctx ends or the person leaves.
func (j *joint) join(ctx context.Context) {
	redraw := j.f.later
	for next := 0; ctx.Err() == nil; {
		joined, err := j.attach(ctx, next, true)
		if err == nil {
			err = j.enter(joined.Attempt)
		}
		switch {
		case err == nil:
			if redraw {
				j.redraw(ctx, joined.Attempt)
			}
			redraw = false
			if n := j.serve(ctx, joined.Attempt); n > 0 {
				next = n + 1
				continue
			}
		case errors.Is(err, queue.ErrWrongState): // it was over before it could be joined
		case ctx.Err() != nil, errors.Is(err, queue.ErrUnavailable), errors.Is(err, queue.ErrNotFound):
			return // who follows the job says so
		default:
			fmt.Fprintf(j.a.Err, "queuectl: view only, input is not sent to the job: %s\n", oneLine(j.a.Clean(j.a.Err, err.Error())))
			return
		}
		select {
		case n := <-j.ended:
			next = n + 1
		case <-ctx.Done():
		}
	}
}

// attach asks for the terminal of an attempt, and gives it the size of the person's.
func (j *joint) attach(ctx context.Context, attempt int, wait bool) (control.Attached, error) {
	rows, cols := j.size()
	return j.c.Attach(ctx, control.Attach{ID: control.Name(j.f.id), Attempt: attempt, Wait: wait, Rows: rows, Cols: cols})
}

// redrawAfter is how long a program has to see that its terminal has another size, before it
// has the old one again: so it draws its screen anew.
const redrawAfter = 100 * time.Millisecond

// redraw has the program of an attempt draw its screen anew.
func (j *joint) redraw(ctx context.Context, attempt int) {
	rows, cols := j.size()
	other := rows - 1
	if other == 0 {
		other = rows + 1
	}
	if _, err := j.c.Attach(ctx, control.Attach{ID: control.Name(j.f.id), Attempt: attempt, Rows: other, Cols: cols}); err != nil {
		return // it has ended, or who follows the job says so
	}
	select {
	case <-time.After(redrawAfter):
	case <-ctx.Done():
	}
	j.attach(ctx, attempt, false)
}

// serve passes on what is typed, and the terminal's size, until an attempt has ended, which it
// returns, or ctx does.
func (j *joint) serve(ctx context.Context, attempt int) (ended int) {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	ctx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	reading.Go(func() {
		defer j.leave(attempt)
		j.read(ctx)
	})
	var data []byte // not typed yet
	pause := typeAgain
	for {
		typed, again := j.typed, (<-chan time.Time)(nil)
		if len(data) > 0 { // the job is to read first
			typed, again = nil, time.After(pause)
		}
		var err error
		select {
		case data = <-typed:
			data, err = j.send(ctx, attempt, data)
			pause = typeAgain
		case <-again:
			had := len(data)
			data, err = j.send(ctx, attempt, data)
			if pause = min(2*pause, typeAgainLast); len(data) < had {
				pause = typeAgain
			}
		case <-sizes:
			_, err = j.attach(ctx, attempt, false)
		case n := <-j.ended:
			return n
		case <-ctx.Done():
			return 0
		}
		if err != nil { // it has ended, or who follows the job says so
			data = nil
		}
	}
}

// typeAgain is how long it is waited for a job to read what was typed, at first and at most.
const (
	typeAgain     = 5 * time.Millisecond
	typeAgainLast = 200 * time.Millisecond
)

// send types into the job's terminal, and is what there was no room for.
func (j *joint) send(ctx context.Context, attempt int, data []byte) (rest []byte, err error) {
	got, err := j.c.Attach(ctx, control.Attach{ID: control.Name(j.f.id), Attempt: attempt, Base64: data})
	if err != nil {
		return nil, err
	}
	return data[got.Taken:], nil
}

// typedAhead is how many reads of a terminal wait for a job that does not read, and refuseAfter
// how long one more waits before it is refused, with the bell: so the keys that leave a job
// are heard whatever it does.
const (
	typedAhead  = 256
	refuseAfter = time.Second
)

// read takes what is typed until ctx ends.
func (j *joint) read(ctx context.Context) {
	wake, end, err := os.Pipe()
	if err != nil {
		fmt.Fprintf(j.a.Err, "queuectl: cannot read your terminal: %v\r\n", err)
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
	var k keys
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
			return // the terminal is gone
		}
		for typed := buffer[:n]; len(typed) > 0; {
			var data []byte
			var w wish
			data, w, typed = k.take(typed)
			switch w {
			case wishLeave:
				close(j.left)
				return
			case wishHelp:
				fmt.Fprint(j.a.Err, "~?\r\nqueuectl: after Enter, type ~. to detach (the job continues), ~~ for a tilde, ~? for this help\r\n")
			}
			if len(data) == 0 {
				continue
			}
			select {
			case j.typed <- data:
			case <-ctx.Done():
				return
			case <-time.After(refuseAfter):
				fmt.Fprint(j.a.Err, "\a")
			}
		}
	}
}
