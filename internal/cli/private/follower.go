package private

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// runFollower follows all jobs of a private run until no more jobs will run.
type runFollower struct {
	a        *cli.App
	c        *control.Client
	began    time.Time
	stopping *atomic.Bool    // the user has stopped the run, so bad health is expected
	quiet    <-chan struct{} // closed once the user has stopped the run and no job is running
	log      *cli.JobLog

	state        control.Status
	endedBefore  int64 // number of jobs that had ended at the start
	untilStatus  int64 // number of jobs that must end before the next status request
	lastEvent    int64 // number of the last event that was handled
	quietClosed  bool  // this follower has seen that quiet is closed
	changed      bool  // there were events since the last status request
	warnedHealth bool  // the service's bad health was printed
}

// start records the state from which the follower starts.
func (f *runFollower) start(ctx context.Context) (err error) {
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return err
	}
	f.lastEvent, f.changed = f.state.LastEvent, true
	_, f.endedBefore = f.counts()
	return nil
}

// counts returns how many jobs will still run, and how many have ended.
func (f *runFollower) counts() (open, ended int64) {
	for _, s := range queue.States() {
		switch n := f.state.Jobs[s.String()]; {
		case s == queue.Held: // a held job does not run until a user releases it
		case s.Ended():
			ended += n
		default:
			open += n
		}
	}
	return open, ended
}

// run follows the jobs. An event about an ended job makes it print the job's output, and events also
// trigger status requests. The status shows when all jobs have ended.
func (f *runFollower) run(ctx context.Context) error {
	follower := cli.Follower{App: f.a, Client: f.c, Wake: f.quiet}
	err := follower.Follow(ctx, f, f.lastEvent)
	if !term.IsClosedPipe(err) {
		return err
	}
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return err
	}
	if open, _ := f.counts(); open > 0 {
		f.a.Exit = fault.ExitDetached
		f.a.Say("stopped with %s unfinished, because the output pipe is closed; to continue, repeat the command",
			present.Jobs(int(open)))
	}
	return nil
}

// Ended implements cli.FollowedJobs. It requests the status if jobs have changed, but not after each
// event, because a list may contain very many short jobs.
func (f *runFollower) Ended(ctx context.Context, isDue bool) (bool, error) {
	select {
	case <-f.quiet:
		f.changed, f.quietClosed = f.changed || !f.quietClosed, true
	default:
	}
	if !f.changed || !isDue && f.untilStatus > 0 {
		return false, nil
	}
	f.changed = false
	return f.checkStatus(ctx)
}

// checkStatus requests the status. The result done is true if no more jobs will run.
func (f *runFollower) checkStatus(ctx context.Context) (done bool, err error) {
	if f.state, err = f.c.Status(ctx, control.Nothing{}); err != nil {
		return false, err
	}
	if unhealthy := f.state.Health != "ok"; unhealthy != f.warnedHealth {
		if f.warnedHealth = unhealthy; unhealthy && !f.stopping.Load() {
			f.a.Progress("")
			f.a.Say("%s", f.state.Health)
		}
	}
	open, ended := f.counts()
	f.untilStatus = open
	switch {
	case f.lastEvent < f.state.LastEvent || open > 0 && !f.quietClosed:
		return false, nil
	case open > 0:
		f.a.Progress("")
		if !f.a.Structured() && !f.a.Quiet {
			f.a.Say("%d of %s finished, %d left", ended, present.Jobs(int(open+ended)), open)
		}
		return true, nil
	}
	f.a.Progress("")
	return true, f.summary(ctx, ended)
}

// Progress implements cli.FollowedJobs. It describes the last status.
func (f *runFollower) Progress() *cli.Progress {
	if f.quietClosed {
		return nil
	}
	count := func(s queue.State) int64 { return f.state.Jobs[s.String()] }
	open, ended := f.counts()
	return &cli.Progress{
		Bar: term.Bar{Current: ended, Total: open + ended + count(queue.Held), StartedAt: f.began, StartValue: f.endedBefore,
			Note: present.Notes(fmt.Sprintf("%d running", f.state.Workers.Busy), present.Count(count(queue.Dead), "dead"))},
		Failed: count(queue.Failed), IsRetrying: func(int64) bool { return true }}
}

// Waiting implements cli.FollowedJobs. It returns the job that is next to run for the first time. It
// ignores failed jobs, because the progress bar shows when they are retried.
func (f *runFollower) Waiting(ctx context.Context) string {
	if f.quietClosed || f.stopping.Load() {
		return ""
	}
	s, err := f.c.Screen(ctx, control.ScreenRows{Rows: 1})
	if err != nil || len(s.Running) > 0 { // the stream of events reports an error
		return ""
	}
	for _, list := range [][]control.Job{s.Ready, s.Timed} {
		for i := range list {
			if list[i].StartedAt == 0 {
				return list[i].ID
			}
		}
	}
	return ""
}

// Record implements cli.FollowedJobs. It prints the output of a job that has ended for good.
func (f *runFollower) Record(ctx context.Context, e *control.Event) (isOurs bool, err error) {
	f.lastEvent, f.changed = e.Seq, true
	if e.Event != string(queue.EventEnded) || e.State != queue.Completed.String() && e.State != queue.Dead.String() {
		return true, nil
	}
	f.untilStatus--
	// ErrNotFound means that a user has removed the job.
	if err := f.print(ctx, e); !errors.Is(err, queue.ErrNotFound) {
		return true, err
	}
	return true, nil
}

// print prints the job of an event, or its output.
func (f *runFollower) print(ctx context.Context, e *control.Event) error {
	var job control.JobDetail
	if f.log != nil || f.a.JSONL {
		var err error
		if job, err = f.c.Show(ctx, control.Show{ID: control.Name(e.ID)}); err != nil {
			return err
		}
	}
	if f.log != nil {
		line, _, _ := strings.Cut(e.ID, "-")
		n, _ := strconv.Atoi(line) // the id of a private run's job begins with its line number
		f.log.Add(n, &job.Job, job.StdoutBytes)
	}
	switch {
	case f.a.JSONL:
		return f.a.PrintJSON(&job.Job)
	case f.a.JSON || f.a.Quiet || !e.Output:
		return nil
	}
	f.a.Progress("")
	return f.a.PrintOutput(ctx, f.c, control.Logs{ID: control.Name(e.ID), Attempt: e.Attempt}, nil)
}

// summary prints how many jobs ended in each state.
func (f *runFollower) summary(ctx context.Context, ended int64) error {
	count := func(s queue.State) int64 { return f.state.Jobs[s.String()] }
	dead, held := count(queue.Dead), count(queue.Held)
	if dead > 0 || held > 0 {
		f.a.Exit = 1
	}
	took := time.Since(f.began)
	if f.a.JSON {
		return f.a.PrintJSON(map[string]any{"jobs": f.state.Jobs, "ended_now": ended - f.endedBefore,
			"elapsed_ms": took.Milliseconds()})
	}
	if f.a.Structured() || f.a.Quiet {
		return nil
	}
	text := present.CountsText(int(ended+held), func(state string) int64 { return f.state.Jobs[state] }, "completed",
		"dead", "cancelled", "held")
	text += ", in " + present.ApproxDuration(took.Milliseconds())
	if f.endedBefore > 0 {
		text += fmt.Sprintf(" (%s ended in earlier runs)", present.Jobs(int(f.endedBefore)))
	}
	f.a.Say("%s", text)
	if dead == 0 {
		return nil
	}
	page, err := f.c.List(ctx, control.List{State: control.Texts{queue.Dead.String()}, Limit: cli.MaxFailures})
	if err != nil {
		return err
	}
	for i := range page.Jobs {
		f.a.SayFailure(&page.Jobs[i])
	}
	list := "queuectl list --failed --dir " + queue.ShellWord(f.a.Dir)
	again := "to retry the dead jobs, repeat the command with --retry-dead"
	f.a.Say("%s%s", again, cmp.Or(cli.MoreFailures(int(dead), "dead jobs", list), "; list them with: "+list))
	return nil
}
