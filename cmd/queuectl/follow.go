package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// following follows all jobs of a queue until none of them is left to run.
type following struct {
	a     *app
	c     *control.Client
	began time.Time
	shown time.Time       // when the progress was
	quiet <-chan struct{} // closed once what is left is not to be run now

	state  control.Status
	before int64 // jobs that had ended when it began
	open   int64 // jobs that are to end before it is worth to look again
	seen   int64 // the last event that was told
	over   bool  // quiet is closed
	ill    bool  // it was told that the service is not well
}

// start notes from where on it follows.
func (f *following) start(ctx context.Context) (err error) {
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return err
	}
	f.seen = f.state.LastEvent
	_, f.before = f.left()
	return nil
}

// left is how many jobs are still to run, and how many have ended.
func (f *following) left() (open, ended int64) {
	for _, s := range queue.States() {
		switch n := f.state.Jobs[s.String()]; {
		case s == queue.Held: // somebody has to release it
		case s.Ended():
			ended += n
		default:
			open += n
		}
	}
	return open, ended
}

// showEvery is how often progress is shown, and the queue asked how it stands.
const showEvery = 100 * time.Millisecond

// run follows the jobs. Events say when to look, and whose output to print; how the
// queue stands says when it is done.
func (f *following) run(ctx context.Context) error {
	err := f.events(ctx)
	if !closedPipe(err) {
		return err
	}
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return err
	}
	if open, _ := f.left(); open > 0 {
		f.a.exit = exitDetached
		fmt.Fprintf(f.a.err, "queuectl: nobody reads what the jobs print, so %s are left; the same command goes on later\n", jobs(int(open)))
	}
	return nil
}

func (f *following) events(ctx context.Context) error {
	stream := control.NewClient(f.c.Path()) // a stream that is ended takes its connection with it
	defer stream.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan control.Event)
	streamed := make(chan error, 1)
	go func() { // ends with the connection, or cancel
		_, err := stream.Events(ctx, control.Events{Since: &f.seen, Follow: true}, func(e control.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		streamed <- err
	}()
	quiet := f.quiet
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for changed := true; ; {
		if changed {
			if done, err := f.look(ctx); done || err != nil {
				return err
			}
			changed = false
		}
		for waiting := true; waiting; {
			select {
			case e := <-events:
				f.seen, changed = e.Seq, true
				if err := f.event(ctx, &e); err != nil {
					return err
				}
				waiting = f.open > 0
			case <-tick.C:
				waiting = !changed
			case <-quiet:
				quiet, f.over, changed = nil, true, true
				waiting = false
			case err := <-streamed:
				return err
			}
		}
	}
}

// look asks how the queue stands and shows it; done says that nothing is left to do.
func (f *following) look(ctx context.Context) (done bool, err error) {
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return false, err
	}
	if ill := f.state.Health != "ok"; ill != f.ill {
		if f.ill = ill; ill {
			f.a.progress("")
			fmt.Fprintf(f.a.err, "queuectl: %s\n", f.state.Health)
		}
	}
	open, ended := f.left()
	f.open = open
	switch {
	case f.seen < f.state.LastEvent || open > 0 && !f.over:
		note := fmt.Sprintf("%d running", f.state.Workers.Busy)
		if dead := f.state.Jobs[queue.Dead.String()]; dead > 0 {
			note += fmt.Sprintf(", %d dead", dead)
		}
		f.a.bar(bar{done: ended, of: open + ended + f.state.Jobs[queue.Held.String()], since: f.began, from: f.before, note: note})
		return false, nil
	case open > 0:
		return true, nil
	}
	f.a.progress("")
	return true, f.summary(ctx, ended)
}

// event prints what a job printed that has ended for good.
func (f *following) event(ctx context.Context, e *control.Event) error {
	if e.Event != string(queue.EventEnded) || e.State != queue.Completed.String() && e.State != queue.Dead.String() {
		return nil
	}
	f.open--
	err := f.print(ctx, e)
	var gone *queue.Error
	if errors.As(err, &gone) && gone.Code == queue.CodeNotFound {
		return nil // somebody has removed it
	}
	return err
}

// print prints the job that an event is of, or what it printed.
func (f *following) print(ctx context.Context, e *control.Event) error {
	switch {
	case f.a.jsonl:
		job, err := f.c.Show(ctx, control.Show{ID: control.Name(e.ID)})
		if err != nil {
			return err
		}
		return f.a.printJSON(job)
	case f.a.json || f.a.quiet || !e.Output:
		return nil
	}
	f.a.progress("")
	return f.a.printOutput(ctx, f.c, control.Logs{ID: control.Name(e.ID), Attempt: e.Attempt})
}

// summary says how all of it ended.
func (f *following) summary(ctx context.Context, ended int64) error {
	count := func(s queue.State) int64 { return f.state.Jobs[s.String()] }
	dead, held := count(queue.Dead), count(queue.Held)
	if dead > 0 || held > 0 {
		f.a.exit = 1
	}
	took := time.Since(f.began)
	if f.a.json {
		return f.a.printJSON(map[string]any{"jobs": f.state.Jobs, "ended_now": ended - f.before, "elapsed_ms": took.Milliseconds()})
	}
	if f.a.structured() || f.a.quiet {
		return nil
	}
	text := fmt.Sprintf("%s: %d completed", jobs(int(ended+held)), count(queue.Completed))
	for _, s := range []queue.State{queue.Dead, queue.Cancelled, queue.Held} {
		if n := count(s); n > 0 {
			text += fmt.Sprintf(", %d %s", n, s)
		}
	}
	if f.before > 0 {
		text += fmt.Sprintf(" (%d of them before)", f.before)
	}
	fmt.Fprintf(f.a.err, "queuectl: %s, in %s\n", text, span(took.Milliseconds()))
	if dead == 0 {
		return nil
	}
	page, err := f.c.List(ctx, control.List{State: control.Texts{queue.Dead.String()}, Limit: maxNamed})
	if err != nil {
		return err
	}
	for _, j := range page.Jobs {
		reason := ""
		if j.Error != nil {
			reason = *j.Error
		}
		fmt.Fprintf(f.a.err, "queuectl: %s is dead: %s\n", j.ID, oneLine(f.a.clean(f.a.err, reason))+": "+cut(oneLine(f.a.clean(f.a.err, title(&j))), 60))
	}
	fmt.Fprintf(f.a.err, "queuectl: try the dead ones again with the same command and --retry-dead; look at all with: queuectl serve --dir %s --workers 0\n", f.a.dir)
	return nil
}

// bar is how far something long has come.
type bar struct {
	done, of int64
	from     int64 // what was done before it began
	since    time.Time
	note     string
	bytes    bool
}

// bar shows it on a terminal, in place of what was shown before.
func (a *app) bar(b bar) {
	if !isTerminal(a.err) || a.quiet {
		return
	}
	of := max(b.of, b.done, 1)
	text := fmt.Sprintf("%3d%% %d/%d", b.done*100/of, b.done, of)
	if b.bytes {
		text = fmt.Sprintf("%3d%% %s/%s", b.done*100/of, size(b.done), size(of))
	}
	if b.note != "" {
		text += ", " + b.note
	}
	if took := time.Since(b.since); b.done > b.from && b.done < of && took > time.Second {
		left := time.Duration(float64(took) * float64(of-b.done) / float64(b.done-b.from))
		text += ", " + queue.FormatDuration(left.Round(time.Second)) + " left"
	}
	width := a.width(a.err) - 1 // a full line would wrap
	if room := min(width-len(text)-3, 40); room >= 10 {
		full := int(int64(room) * b.done / of)
		text = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + text
	}
	a.progress("%s", cut(text, width))
}
