package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
)

func statusVerb(a *App) *cobra.Command {
	var check, verbose, watch bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the queue's health, and running, next and failed jobs",
		Args: ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check && watch {
				return fault.Usagef("--check: cannot be combined with --watch; use one of them")
			}
			a.MissingIsEmpty = !check
			if watch {
				return a.WhileOutputRead(cmd.Context(), func(ctx context.Context) error {
					return a.watch(ctx, func() error { return a.status(ctx, statusOptions{verbose: verbose, watched: true}) })
				})
			}
			return a.status(cmd.Context(), statusOptions{healthOnly: check, verbose: verbose, showService: !verbose})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print only the health; exit code: 0 ok, 1 degraded, 2 failing")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also show the service, its database, socket and version")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep running and print again after each change")
	return cmd
}

// statusOptions select what status prints.
type statusOptions struct {
	healthOnly  bool // print only the health of the queue
	verbose     bool // also print details of the service
	watched     bool // the screen is printed again after each change
	showService bool // print a line that names the service
}

// status prints the state of the queue or, with --check, only its health, which also sets the exit
// code.
func (a *App) status(ctx context.Context, o statusOptions) error {
	c, err := a.ReadOrWaitClient(ctx, o.watched)
	if o.healthOnly && err == error(connect.ErrNoQueue) {
		return errNothingToCheck
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if o.healthOnly || a.Structured() {
		st, err := c.Status(ctx, control.NoParams{})
		switch {
		case err != nil:
			return err
		case o.healthOnly && strings.HasPrefix(st.Health, "failing"):
			a.ExitCode = 2
		case o.healthOnly && st.Health != "ok":
			a.ExitCode = 1
		}
		if a.Structured() {
			return a.PrintJSON(st)
		}
		return a.Println(a.EscapeFor(a.Stdout, st.Health))
	}
	rows := a.screenRows()
	screen, err := c.Screen(ctx, control.ScreenParams{Rows: rows})
	if err != nil {
		return err
	}
	p := &screenPrinter{a: a, text: present.ScreenText{Screen: &screen, CurrentTime: time.Now()}, watched: o.watched}
	if st := &screen.Status; st.Service != "" && o.showService {
		p.service = "Service: " + a.EscapeFor(a.Stdout, present.DescribeService(st.Service, st.Socket))
	}
	if err := p.print(); err != nil || !o.verbose {
		return err
	}
	return a.statusDetails(&screen.Status)
}

// serviceKinds describes the kinds of services.
var serviceKinds = map[string]string{"own": "own (one user's, not the machine's)", "system": "system (the machine's)",
	"directory": "directory (serves one queue, chosen with --dir)"}

// statusDetails prints the details of the service, its database and its socket.
func (a *App) statusDetails(st *control.Status) error {
	service := fmt.Sprintf("version %s, pid %d, started %s", st.Version, st.PID, present.LocalTime(st.StartedAt))
	if st.PID == 0 {
		service = "not running"
	}
	oldest := "nothing waiting"
	if st.OldestReadySince != 0 {
		oldest = "waiting since " + present.LocalTime(st.OldestReadySince)
	}
	lines := [][2]string{
		{"Workers", fmt.Sprintf("%d (%d busy, %d idle)", st.Workers.Total, st.Workers.Busy, st.Workers.Idle)},
		{"Oldest", oldest}, {"Enqueued", fmt.Sprintf("%d in total", st.EnqueuedTotal)},
		{"Finished", present.Plural(st.ThroughputPerMinute, "attempt") + " in the last minute"},
		{"Database", fmt.Sprintf("%s, %s; job output %s", cmp.Or(st.StoreLocation, st.StateDir),
			present.SizeText(st.DatabaseBytes),
			present.SizeText(st.OutputBytes))}, {"Your jobs", present.UsageText(st.UserBytes, st.MaxBytesPerUser) +
			" for input and output"}, {"Socket", st.Socket},
		{"Service", cmp.Or(serviceKinds[st.Service], st.Service)}, {"Process", service}, {"Client", Version},
		{"Health", st.Health},
	}
	a.Println("")
	return a.PrintPairs(10, lines)
}
