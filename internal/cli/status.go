package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

func statusVerb(a *App) *cobra.Command {
	var check, verbose, watch bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the queue's health, and running, next and failed jobs",
		Args: ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check && watch {
				return fault.Usage("--check: cannot be combined with --watch; use one of them")
			}
			a.MissingIsEmpty = !check
			if watch {
				return a.WhileRead(cmd.Context(), func(ctx context.Context) error {
					return a.watch(ctx, func() error { return a.status(ctx, statusOptions{verbose: verbose, watched: true}) })
				})
			}
			return a.status(cmd.Context(), statusOptions{check: check, verbose: verbose, service: !verbose})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print only the health; exit code: 0 ok, 1 degraded, 2 failing")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also show the service, its database, socket and version")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep running and print again after each change")
	return cmd
}

// statusOptions select what status prints.
type statusOptions struct {
	check   bool // print only the health of the queue
	verbose bool // also print details of the service
	watched bool // the screen is printed again after each change
	service bool // print a line that names the service
}

// status prints the state of the queue or, with --check, only its health, which also sets the exit
// code.
func (a *App) status(ctx context.Context, o statusOptions) error {
	c, err := a.ReaderUnless(ctx, o.watched)
	if o.check && err == error(connect.ErrNoQueue) {
		return errNothingToCheck
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if o.check || a.Structured() {
		st, err := c.Status(ctx, control.Nothing{})
		switch {
		case err != nil:
			return err
		case o.check && strings.HasPrefix(st.Health, "failing"):
			a.Exit = 2
		case o.check && st.Health != "ok":
			a.Exit = 1
		}
		if a.Structured() {
			return a.PrintJSON(st)
		}
		return a.Println(a.Clean(a.Stdout, st.Health))
	}
	rows := a.screenRows()
	screen, err := c.Screen(ctx, control.ScreenRows{Rows: rows})
	if errors.Is(err, queue.ErrUnsupported) { // an older service does not know this request
		screen.Status, err = c.Status(ctx, control.Nothing{})
	}
	if err != nil {
		return err
	}
	p := &screenPrinter{a: a, text: present.ScreenText{Screen: &screen, CurrentTime: time.Now()}, watched: o.watched}
	if st := &screen.Status; st.Service != "" && o.service {
		p.service = "Service: " + a.Clean(a.Stdout, present.DescribeService(st.Service, st.Socket))
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
	service := fmt.Sprintf("version %s, pid %d, started %s", st.Version, st.PID, present.Local(st.Started))
	if st.PID == 0 {
		service = "not running"
	}
	oldest := "nothing waiting"
	if st.Oldest != 0 {
		oldest = "waiting since " + present.Local(st.Oldest)
	}
	lines := [][2]string{
		{"Workers", fmt.Sprintf("%d (%d busy, %d idle)", st.Workers.Total, st.Workers.Busy, st.Workers.Idle)},
		{"Oldest", oldest}, {"Enqueued", fmt.Sprintf("%d in total", st.EnqueuedTotal)},
		{"Finished", present.Plural(st.Throughput, "attempt") + " in the last minute"},
		{"Database", fmt.Sprintf("%s, %s; job output %s", cmp.Or(st.Store, st.Database), present.Size(st.Bytes),
			present.Size(st.Outputs))}, {"Your jobs", present.Used(st.UserBytes, st.MaxBytesUser) +
			" for input and output"}, {"Socket", st.Socket},
		{"Service", cmp.Or(serviceKinds[st.Service], st.Service)}, {"Process", service}, {"Client", Version},
		{"Health", st.Health},
	}
	a.Println("")
	return a.Rows(10, lines)
}
