package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/register"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

func doctorVerb(a *app) *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong with the queue, its disk, its service and its runners", Args: exactly(0, "no arguments"),
		Long: `Look for what is wrong with the queue, its disk, its service and its runners, and say
what to do about it. Exit code 1 means that something is to be mended. Where the
service does not run, what its folder says is looked at.

With --verify all rows are held against each other and against the files of outputs, on
a copy of the database.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), verify) },
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "look at every row and every output too")
	return cmd
}

func (a *app) doctor(ctx context.Context, verify bool) error {
	found, err := a.diagnosis(ctx, verify)
	a.progress("")
	if err != nil {
		return err
	}
	if found.Level == "failure" {
		a.exit = 1
	}
	switch {
	case a.jsonl:
		return printList(a, found.Findings)
	case a.json:
		return a.printJSON(found)
	}
	for _, f := range found.Findings {
		if a.quiet && f.Level == "ok" {
			continue
		}
		if err := a.printFinding(&f); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printFinding(f *control.Finding) error {
	level := f.Level
	if level != "ok" {
		level = strings.ToUpper(level)
	}
	text := f.Message
	if f.Next != "" {
		text += "\n" + f.Next
	}
	return a.println(fmt.Sprintf("%-7s  %-11s  %s", level, f.Check, below(a.clean(a.out, text), 22)))
}

// diagnosis asks the service or, where none runs, looks at its folder.
func (a *app) diagnosis(ctx context.Context, verify bool) (control.Diagnosis, error) {
	c, err := a.client()
	if errors.Is(err, queue.ErrUnavailable) {
		p, failed := a.folder()
		if failed != nil {
			return control.Diagnosis{}, err
		}
		t, failed := a.choose()
		if failed != nil {
			return control.Diagnosis{}, failed
		}
		return service.Examine(p, t.start, verify)
	}
	if err != nil {
		return control.Diagnosis{}, err
	}
	defer c.Close()
	began := time.Now()
	found, err := c.Doctor(ctx, control.Doctor{Verify: verify}, func(p control.Progress) error {
		a.bar(bar{done: p.Done, of: p.Of, since: began, note: "copying", bytes: true})
		return nil
	})
	if err != nil {
		return found, err
	}
	return a.examineClient(ctx, c, found)
}

// examineClient adds whether this program is the one that serves, and whether a user's
// own service outlives the session.
func (a *app) examineClient(ctx context.Context, c *control.Client, found control.Diagnosis) (control.Diagnosis, error) {
	st, err := c.Status(ctx, control.Nothing{})
	if err != nil {
		return found, err
	}
	if st.Version != version {
		found.Level = "failure"
		found.Findings = append(found.Findings, control.Finding{Check: "program", Level: "failure", Message: fmt.Sprintf("this program has version %s, the running service %s", version, st.Version), Next: "restart the service with the newer one; jobs go on meanwhile: queuectl service stop --keep-jobs, then start it"})
	}
	if t, err := a.choose(); err == nil && t.own && register.EndsAtLogout() {
		if found.Level == "ok" {
			found.Level = "warning"
		}
		found.Findings = append(found.Findings, control.Finding{Check: "session", Level: "warning", Message: endsAtLogout, Next: staying})
	}
	return found, nil
}
