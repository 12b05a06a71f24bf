// Package admin implements the commands that only queuectld links, because they are used rarely or
// would make queuectl larger: schedules, queues, settings, nodes, statistics, backups.
//
// Each command has a function like ScheduleVerb, which cmd/queuectld adds to the table of commands.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// command implements the commands of this package.
type command struct{ *cli.App }

// checkChanges returns an error if the argument with the changes is not valid JSON or contains no changes.
func checkChanges(set json.RawMessage) error {
	if strings.Join(strings.Fields(string(set)), "") == "{}" {
		return errors.New("no changes given")
	}
	return queue.CheckJSON(set)
}

// EditVerb returns the command edit. Only queuectld links it, to keep queuectl small.
func EditVerb(app *cli.App) *cobra.Command {
	a := command{app}
	var s cli.Selection
	var spec queue.Spec
	cmd := &cobra.Command{
		Use: "edit ID… [FLAGS | '{JSON}']", Short: "Change waiting jobs with flags, JSON or $EDITOR",
		RunE: func(cmd *cobra.Command, ids []string) error {
			var set json.RawMessage
			if n := len(ids); n > 0 && strings.HasPrefix(ids[n-1], "{") {
				set, ids = json.RawMessage(ids[n-1]), ids[:n-1]
				if err := checkChanges(set); err != nil {
					return fault.Usage(`%v; write the changes like '{"priority":5}'`, err)
				}
			}
			if err := input.WholePaths(&spec); err != nil {
				return err
			}
			given := spec.GivenFields()
			for _, name := range []string{"lock", "rate_limit", "on", "unique"} {
				if given[name] == "" { // an empty value removes the field
					given[name] = nil
				}
			}
			var err error
			switch {
			case len(given) > 0 && set != nil:
				return fault.Usage("give the changes as flags or as JSON, not both")
			case len(given) > 0:
				if set, err = json.Marshal(given); err != nil {
					return err
				}
			case set == nil && len(ids) != 1:
				return fault.Usage("%s: no changes given; give them as flags or as JSON, or give one job id to edit "+
					"that job in $EDITOR", cmd.CommandPath())
			case set == nil && !(term.IsTerminal(a.Stdin) && term.IsTerminal(a.Stdout)):
				return fault.Usage("%s: no changes given; give them as flags or as JSON (editing in $EDITOR needs a terminal)",
					cmd.CommandPath())
			case set == nil:
				p, err := s.Of(cmd, ids)
				if err != nil {
					return err
				}
				return a.editInEditor(cmd.Context(), p, ids[0])
			}
			var changed queue.Spec
			// An error is ignored here, because the service reports invalid fields.
			_ = changed.UnmarshalJSON(set)
			enqueue.WarnExpired(&a.Output, &changed, a.Quiet || !term.IsTerminal(a.Stderr))
			input.NamedFiles{}.Warn(&a.Output, a.Cmd, &changed)
			return a.OnSelection(cmd, &s, ids, "is changed"+present.WhenDue(&changed, time.Now()),
				func(c *control.Client, ctx context.Context, p control.Selection) (control.BulkResult, error) {
					return c.Edit(ctx, control.Edit{Selection: p, Set: set})
				})
		},
	}
	// The flag --user selects jobs. So JSON is the only way to change a job's user.
	input.SpecFlags(cmd, &spec, "id", "env_pass", "user")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		// Omit the default, because a field that no flag sets keeps its value.
		f.Usage, _, _ = strings.Cut(f.Usage, " (default: ")
	})
	cmd.Flags().Lookup("queue").Usage = "move the job to this queue, which is created if it does not exist"
	s.LabelFlag = "where-label" // --label changes a job's labels, so the selection needs another flag
	s.States = []string{"waiting"}
	s.Add(cmd, "s")
	s.Act(cmd)
	cmd.ValidArgsFunction = a.CompleteIDs("waiting")
	return cmd
}
