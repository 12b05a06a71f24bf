// Package admin implements the commands that are used rarely or would make queuectl larger. Only queuectld
// contains them, and queuectl executes queuectld for these commands. The commands are about schedules, queues,
// settings, nodes, statistics and backups.
//
// Each command has a function like ScheduleVerb, which cmd/queuectld adds to the table of commands.
package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	xterm "golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// adminCommands implements the commands of this package.
type adminCommands struct{ *cli.App }

// checkJobChanges returns an error if changes is not valid JSON or contains no changes.
func checkJobChanges(changes json.RawMessage) error {
	if strings.Join(strings.Fields(string(changes)), "") == "{}" {
		return errors.New("no changes given")
	}
	return queue.CheckJSON(changes)
}

// EditVerb returns the command "queuectl edit".
func EditVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	var s cli.SelectionFlags
	var spec queue.Spec
	cmd := cli.NewCommand("edit ID… [FLAGS | '{JSON}']", "Change waiting jobs with flags, JSON or $EDITOR",
		nil, func(ctx context.Context, ids []string) error {
			var changes json.RawMessage
			if n := len(ids); n > 0 && strings.HasPrefix(ids[n-1], "{") {
				changes, ids = json.RawMessage(ids[n-1]), ids[:n-1]
				if err := checkJobChanges(changes); err != nil {
					return fault.Usagef(`%v; write the changes like '{"priority":5}'`, err)
				}
			}
			if err := input.MakePathsAbsolute(&spec); err != nil {
				return err
			}
			given := spec.GivenFields()
			for _, name := range []string{"lock", "rate_limit", "on", "unique"} {
				if given[name] == "" { // the user gave an empty value, which removes the field
					given[name] = nil
				}
			}
			var err error
			switch {
			case len(given) > 0 && changes != nil:
				return fault.Usagef("give the changes as flags or as JSON, not both")
			case len(given) > 0:
				if changes, err = json.Marshal(given); err != nil {
					return err
				}
			case changes == nil && len(ids) != 1:
				return fault.Usagef("%s: no changes given; give them as flags or as JSON, or give one job id to edit "+
					"that job in $EDITOR", a.Cmd.CommandPath())
			case changes == nil && !(term.IsTerminal(a.Stdin) && term.IsTerminal(a.Stdout)):
				return fault.Usagef("%s: no changes given; give them as flags or as JSON (editing in $EDITOR needs a terminal)",
					a.Cmd.CommandPath())
			case changes == nil:
				p, err := s.SelectionParams(a.Cmd, ids)
				if err != nil {
					return err
				}
				return a.editJobInEditor(ctx, p, ids[0])
			}
			var changedSpec queue.Spec
			// Ignore an error, because the service reports invalid fields.
			_ = changedSpec.UnmarshalJSON(changes)
			enqueue.WarnIfJobExpired(&a.Output, &changedSpec, !a.ShowsInfo())
			input.CheckedFiles{}.WarnUnusableFiles(&a.Output, a.Cmd, &changedSpec)
			return a.ActOnSelection(ctx, &s, ids, "is changed"+present.DueAndExpirySuffix(&changedSpec, time.Now()),
				func(c *control.Client, ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
					return c.EditJobs(ctx, control.JobEditParams{JobSelection: p, FieldsToSet: changes})
				})
		})
	// Here, --user selects the jobs of a user. So no flag can change the user of a job; only changes in JSON can.
	input.AddSpecFlags(cmd, &spec, "id", "env_pass", "user")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		// Remove the default from the description, because "queuectl edit" keeps the fields that no flag sets.
		f.Usage, _, _ = strings.Cut(f.Usage, " (default: ")
	})
	cmd.Flags().Lookup("queue").Usage = "move the job to this queue, which is created if it does not exist"
	s.LabelFlagName = "where-label" // --label changes a job's labels, so the selection needs another flag
	s.AcceptedStates = []string{"waiting"}
	s.AddFlags(cmd, "s")
	s.AddActionFlags(cmd)
	a.AcceptJobIDs(cmd, "waiting")
	return cmd
}

// EditJob edits one job in $VISUAL or $EDITOR.
func EditJob(ctx context.Context, app *cli.App, jobID string) error {
	return adminCommands{app}.editJobInEditor(ctx, control.JobSelection{IDs: control.JobIDs{jobID}}, jobID)
}

// editJobInEditor lets the user edit a job's fields in $VISUAL or $EDITOR. If the editor fails, or the changes are
// invalid or rejected, it keeps the edited file. It then prints the file's name and offers to open the file again.
func (a adminCommands) editJobInEditor(ctx context.Context, p control.JobSelection, id string) error {
	return a.WithClient(func(c *control.Client) error {
		job, err := cli.ShowJob(ctx, c, id)
		if err != nil {
			return err
		}
		if _, _, _, err := queue.VerbEdit.EffectOn(&queue.Job{ID: job.ID,
			State: present.ParseStateOrZero(job.State)}); err != nil {
			return err // before the user edits the fields, report that the job cannot be changed
		}
		before := job.Spec
		delete(before, "id")
		e, err := a.newJobEditFile(before)
		if err != nil {
			return err
		}
		for {
			patch, err := e.runEditor(ctx)
			if err == nil && patch != nil {
				err = a.sendJobChanges(ctx, c, control.JobEditParams{JobSelection: p, FieldsToSet: patch}, id)
			}
			if err == nil {
				os.Remove(e.path)
				if patch == nil {
					a.PrintTerminalMessage("job %s was not changed", id)
				}
				return nil
			}
			if !e.keepFileIfChanged() {
				return fmt.Errorf("%w; nothing was changed", err)
			}
			err = fmt.Errorf("%w; your edited text is in %s", err, e.path)
			if !a.CanAskUser() {
				return err
			}
			a.PrintMessage("%s", fault.UserMessage(err))
			if !a.AskYesNo("edit the text again?") {
				a.ExitCode = fault.ExitCode(err)
				return nil
			}
		}
	})
}

// sendJobChanges sends the changes to the service and prints the result. It returns an error if the job
// was not changed.
func (a adminCommands) sendJobChanges(ctx context.Context, c *control.Client, p control.JobEditParams,
	id string) error {
	v, err := c.EditJobs(ctx, p)
	if err != nil {
		return err
	}
	if len(v.Refusals) > 0 {
		return v.Refusals[0].AsError()
	}
	var changedSpec queue.Spec
	_ = changedSpec.UnmarshalJSON(p.FieldsToSet) // cannot fail, because the service has accepted the changes
	return a.RunBulkRequests("is changed"+present.DueAndExpirySuffix(&changedSpec, time.Now()), "", []string{id},
		func([]string, string) (control.BulkResult, error) { return v, nil })
}

// jobEditFile is a temporary file in which the user edits the fields of a job.
type jobEditFile struct {
	commands       adminCommands
	path           string
	originalText   []byte         // content of the file when the editor starts
	originalFields map[string]any // the fields of the job that originalText contains
}

// newJobEditFile writes a job's fields to a temporary file.
func (a adminCommands) newJobEditFile(fields map[string]any) (*jobEditFile, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the text is for people, so keep <, > and & readable
	e.SetIndent("", "  ")
	if err := e.Encode(fields); err != nil {
		return nil, err
	}
	// CreateTemp sets mode 0600, which is necessary because the text may contain secrets.
	f, err := os.CreateTemp("", "queuectl-*.json")
	if err != nil {
		return nil, files.UnwritableError("edit: TMPDIR", os.TempDir(), err)
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return nil, files.UnwritableError("edit: TMPDIR", os.TempDir(), err)
	}
	return &jobEditFile{commands: a, path: f.Name(), originalText: text.Bytes(), originalFields: fields}, nil
}

// keepFileIfChanged reports whether the user has changed the file. If not, it removes the file.
func (e *jobEditFile) keepFileIfChanged() bool {
	if text, err := os.ReadFile(e.path); err != nil || !bytes.Equal(text, e.originalText) {
		return true
	}
	os.Remove(e.path)
	return false
}

// runEditor runs the editor and returns the user's changes as a JSON merge patch, or nil without changes.
func (e *jobEditFile) runEditor(ctx context.Context) (json.RawMessage, error) {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), defaultEditor)
	cmd := editorCommand(ctx, editor, e.path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = e.commands.Stdin, e.commands.Stdout, e.commands.Stderr
	if err := e.commands.runInForeground(cmd); err != nil {
		return nil, fmt.Errorf("editor %s: %w", editor, err)
	}
	edited, err := os.ReadFile(e.path)
	if err != nil {
		return nil, files.UnreadableError("edit", e.path, err)
	}
	if err := queue.CheckJSON(edited); err != nil {
		return nil, err
	}
	var editedFields map[string]any
	if err := json.Unmarshal(edited, &editedFields); err != nil || editedFields == nil {
		return nil, fault.Usagef("the edited text must be one JSON object, in { and }")
	}
	patch := jsonMergePatch(e.originalFields, editedFields)
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(patch)
}

// runInForeground runs a program that uses the terminal. While the program runs, Ctrl-C does not end this process. If
// the program fails, runInForeground restores the state of the terminal.
func (a adminCommands) runInForeground(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	before, none := xterm.GetState(int(a.Stdin.Fd()))
	err := cmd.Run()
	if err != nil && none == nil {
		xterm.Restore(int(a.Stdin.Fd()), before) // on an error, nothing else can restore the terminal
		if term.IsTerminal(a.Stderr) {
			fmt.Fprint(a.Stderr, showCursorCode)
		}
	}
	return err
}

// showCursorCode makes a terminal show its cursor.
const showCursorCode = "\x1b[?25h"

// jsonMergePatch returns the JSON merge patch (RFC 7396) that turns before into after.
func jsonMergePatch(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	names := maps.Clone(before)
	maps.Copy(names, after)
	for name := range names {
		was := before[name]
		is, kept := after[name]
		wasMap, wasObject := was.(map[string]any)
		isMap, isObject := is.(map[string]any)
		switch {
		case !kept:
			patch[name] = nil
		case wasObject && isObject:
			if inner := jsonMergePatch(wasMap, isMap); len(inner) > 0 {
				patch[name] = inner
			}
		case !reflect.DeepEqual(was, is):
			patch[name] = is
		}
	}
	return patch
}
