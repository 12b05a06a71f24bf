package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// EventsVerb returns the command events. Only queuectld links it, to keep queuectl small.
func EventsVerb(app *App) *cobra.Command {
	a := admin{app}
	var p control.Events
	var since string
	var s selection
	cmd := &cobra.Command{
		Use: "events [ID…]", Short: "Print past events, or follow new ones with -f",
		RunE: func(cmd *cobra.Command, ids []string) error {
			// Without a queue there are no past events and no batch.
			p.ID, a.missingIsEmpty = ids, !p.Follow || s.Batch != ""
			if seq, err := strconv.ParseInt(since, 10, 64); err == nil {
				p.Since = &seq
			} else if since != "" {
				if p.From, err = sinceWhen(since); err != nil {
					return Usage("--since: %v", err)
				}
			}
			if s.Batch != "" {
				if found, err := a.eventsOfBatch(cmd, &s, &p); !found {
					return err
				}
			}
			return a.whileRead(cmd.Context(), func(ctx context.Context) error { return a.events(ctx, p) })
		},
	}
	cmd.ValidArgsFunction = a.completeIDs()
	cmd.Flags().BoolVar(&p.Audit, "audit", false, "print the audit log: which user ran which command on which job or setting (for admins)")
	cmd.Flags().BoolVarP(&p.Follow, "follow", "f", false, "print new events as they happen (with --since: past events first)")
	cmd.Flags().StringSliceVar((*[]string)(&p.Event), "event", nil, "only events of this `KIND`, such as ended")
	cmd.Flags().Var(givenOnce(&s.Batch), "batch", "only events of jobs that are in your batch `NAME` when queuectl starts")
	cmd.Flags().Var(NonEmpty(&since), "since", "only events since `TIME` (2h: 2 hours ago); a number N means: after event N")
	instantVar(cmd.Flags(), &p.Until, "until", "only events before `TIME`; 2h means 2 hours ago")
	return cmd
}

// eventsOfBatch restricts the events to the jobs of a batch. It reports whether the batch has jobs.
func (a admin) eventsOfBatch(cmd *cobra.Command, s *selection, p *control.Events) (found bool, err error) {
	c, err := a.readerUnless(cmd.Context(), p.Follow)
	if err != nil {
		return false, err
	}
	defer c.Close()
	jobs, err := s.resolved(cmd, c, p.ID)
	switch n := len(jobs); {
	case err != nil:
		return false, err
	case n > control.MaxNames:
		return false, Usage("--batch: the batch has %d jobs, but queuectl events accepts at most %d; give some of the job ids instead", n, control.MaxNames)
	case n == 0:
		a.sayNone()
		if a.JSON && !a.JSONL && !p.Follow {
			return false, PrintList(&a.Output, jobs)
		}
		return false, nil
	}
	for i := range jobs {
		p.ID = append(p.ID, jobs[i].ID)
	}
	return true, nil
}

// events prints events as they arrive, one per line as text or JSON. With --json and without
// --follow it prints one array.
func (a admin) events(ctx context.Context, p control.Events) error {
	c, err := a.readerUnless(ctx, p.Follow)
	if err != nil {
		return err
	}
	defer c.Close()
	whole := a.JSON && !a.JSONL && !p.Follow
	list := newArray(a.Out)
	_, err = c.Events(ctx, p, func(e control.Event) error {
		switch {
		case whole:
			return list.add(&e)
		case a.Structured():
			return a.PrintJSON(e)
		case a.Quiet:
			return a.Println(strconv.FormatInt(e.Seq, 10))
		}
		return a.Println(a.cleanText(eventLine(&e)))
	})
	if err != nil || !whole {
		return err
	}
	return list.end()
}

// stream starts to follow events and passes every event to the function in the parameter each. The
// channel gets the error when the connection is lost or ctx ends.
func stream(ctx context.Context, c *control.Client, p control.Events, each func(control.Event) error) (ended <-chan error) {
	end := make(chan error, 1)
	p.Follow = true
	go func() { // this goroutine ends when the stream ends
		_, err := c.Events(ctx, p, each)
		end <- err
	}()
	return end
}

// eventLine formats an event for people.
func eventLine(e *control.Event) string {
	line := fmt.Sprintf("%6d  %s  %-9s", e.Seq, local(e.At), e.Event)
	add := func(format string, args ...any) { line += fmt.Sprintf(format, args...) }
	text := func(text string) { add("  %s", oneLine(text)) }
	// The target of an audit event already contains the job's id.
	if e.ID != "" && e.Event != string(queue.EventAudit) {
		text(e.ID)
	}
	if e.Schedule != "" {
		text(e.Schedule)
	}
	if e.Instant != 0 {
		text(local(e.Instant))
	}
	if e.Count != 0 {
		add("  %d", e.Count)
	}
	if e.State != "" {
		text(e.State)
	}
	if e.Attempt != 0 {
		add("  attempt %d", e.Attempt)
	}
	if e.Percent != nil {
		add("  %d %%", *e.Percent)
	}
	if e.ExitCode != nil {
		add("  exit code %d", *e.ExitCode)
	}
	if e.Signal != 0 {
		add("  %s", queue.SignalText(e.Signal))
	}
	if e.Reason != "" {
		text(e.Reason)
	}
	if e.Key != "" && e.Event != string(queue.EventSetting) {
		text("everything")
	} else if e.Key != "" {
		text(e.Key + " = " + strconv.Quote(e.Value))
	}
	if e.Event == string(queue.EventAudit) {
		text(e.Verb + " " + e.Target)
	}
	if e.User != "" {
		text("by " + e.User)
	}
	if e.UID != nil {
		add(" (uid %d)", *e.UID)
	}
	if e.Event != string(queue.EventAudit) && e.Verb != "" {
		text(e.Verb)
	}
	return line
}

// DrainVerb returns the command drain. Only queuectld links it, to keep queuectl small.
func DrainVerb(app *App) *cobra.Command {
	a := admin{app}
	var p control.Drain
	cmd := &cobra.Command{
		Use: "drain [--wait | --off]", Short: "Start no new jobs until drain --off, even after a restart", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).Drain, p, func(got control.Draining) error {
				switch {
				case !got.Draining:
					a.Say("draining is off: jobs start again")
				case got.Running == 0:
					a.Say("draining: no new jobs start until queuectl drain --off; nothing is running")
				default:
					a.Say("draining: no new jobs start until queuectl drain --off; %s still running", Jobs(got.Running))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&p.Wait, "wait", false, "wait until no job is running")
	cmd.Flags().BoolVar(&p.Off, "off", false, "stop draining, so that jobs start again")
	return cmd
}

// ReloadVerb returns the command reload. Only queuectld links it, to keep queuectl small.
func ReloadVerb(app *App) *cobra.Command {
	a := admin{app}
	return &cobra.Command{
		Use: "reload", Short: "Reload the settings file of the service", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).Reload, control.Nothing{}, func(got control.Reloaded) error {
				if len(got.Hidden) > 0 {
					fmt.Fprintf(a.Err, "queuectl: overridden settings in the file have no effect: %s; list the values in use with: queuectl config list\n", strings.Join(got.Hidden, ", "))
				}
				if got.Note != "" {
					fmt.Fprintf(a.Err, "queuectl: settings reloaded, but %s\n", got.Note)
					return nil
				}
				a.Say("settings reloaded")
				return nil
			})
		},
	}
}

// holdWorkers adds workers and removes them on Ctrl-C. Their running jobs may finish.
func (a *App) holdWorkers(ctx context.Context, c *control.Client, n int) error {
	signals := make(chan os.Signal, 1)
	// This call comes before the request, because the user may press Ctrl-C at the moment when the
	// answer arrives.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	got, err := c.WorkerStart(ctx, control.Count{Count: &n})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Err, "queuectl: the service now has %s; press Ctrl-C to remove %d of them (running jobs finish first)\n", workers(got.Workers), n)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-signals:
	case err := <-stream(waiting, c, control.Events{Event: control.Texts{string(queue.EventSetting)}}, func(control.Event) error { return nil }):
		return err // the service has ended, and the error says so
	}
	signal.Stop(signals) // from now on, a second signal ends this process immediately
	return answerOf(ctx, a, c, (*control.Client).WorkerStop, control.WorkerStop{Count: &n}, a.printCount)
}
