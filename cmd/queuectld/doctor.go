package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

func doctorVerb(a *app) *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Diagnose problems with the queue, disk, service and runners",
		Args: cli.ExactArgs(0, "no arguments"),
		Long: `Diagnose problems with the queue, its disk, its service and its runners, and
show how to fix them. The exit code is 1 if a check fails; warnings do not
change it. If the service is not running, doctor checks the files in its
directory.

With --verify, doctor also checks all rows of the database and the output files
for consistency, using a copy of the database.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.printDiagnosis(cmd.Context(), verify) },
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "also check all rows of the database and all output files")
	return cmd
}

// printDiagnosis prints the result of `queuectl doctor`. It sets the exit code to 1 if a check fails.
func (a *app) printDiagnosis(ctx context.Context, verifyDatabase bool) error {
	found, err := a.requestDiagnosis(ctx, verifyDatabase)
	a.ShowProgress("")
	if err != nil {
		return err
	}
	if found.WorstLevel == "failure" {
		a.ExitCode = 1
	}
	switch {
	case a.JSONL:
		return term.PrintJSONList(&a.Output, found.Findings)
	case a.JSON:
		return a.PrintJSON(found)
	}
	for _, f := range found.Findings {
		if a.Quiet && f.Level == "ok" {
			continue
		}
		if err := a.PrintDoctorFinding(&f); err != nil {
			return err
		}
	}
	return nil
}

// requestDiagnosis requests a diagnosis from the service. If the service does not run, requestDiagnosis itself
// examines the files in the service's directory.
func (a *app) requestDiagnosis(ctx context.Context, verifyDatabase bool) (control.Diagnosis, error) {
	c, err := a.Client()
	if errors.Is(err, queue.ErrUnavailable) {
		p, failed := a.ServicePaths()
		if failed != nil {
			return control.Diagnosis{}, err
		}
		t, failed := a.ChooseTarget()
		if failed != nil {
			return control.Diagnosis{}, failed
		}
		startCommand := t.StartCommand
		if t.IsUserService {
			// Suggest `queuectl enqueue`, because this command starts the user's own service.
			startCommand = "queuectl enqueue true"
		}
		return service.ExamineStoppedService(p, t.StartCommand, startCommand, verifyDatabase)
	}
	if err != nil {
		return control.Diagnosis{}, err
	}
	defer c.Close()
	began := time.Now()
	found, err := c.RunDoctor(ctx, control.DoctorParams{VerifyDatabase: verifyDatabase},
		func(p control.DoctorProgress) error {
			a.DrawProgressBar(term.ProgressBar{Current: p.CheckedBytes, Total: p.TotalBytes, StartedAt: began,
				TextAfterNumbers: "copying", ValuesAreBytes: true})
			return nil
		})
	if err != nil {
		return found, err
	}
	return a.addClientFindings(ctx, c, found)
}

// addClientFindings adds the results of the checks that only the client can make: whether the client has another
// version than the service, and whether a user's own service ends at logout.
func (a *app) addClientFindings(ctx context.Context, c *control.Client, diagnosis control.Diagnosis) (control.Diagnosis,
	error) {
	st, err := c.Status(ctx, control.NoParams{})
	if err != nil {
		return diagnosis, err
	}
	add := func(check, level, message, advice string) {
		diagnosis.Findings = append(diagnosis.Findings, control.Finding{CheckName: check, Level: level,
			Message: message, Advice: advice})
		if level == "failure" || diagnosis.WorstLevel == "ok" {
			diagnosis.WorstLevel = level
		}
	}
	if st.Version != cli.Version {
		add("program", "failure", fmt.Sprintf("this program has version %s, but the running service has version %s",
			cli.Version, st.Version), "stop the service with: queuectl service stop --keep-jobs (jobs keep running); then "+
			"start it with the newer version")
	}
	if client := a.ClientVersion(); client != cli.Version {
		add("program", "failure", fmt.Sprintf("queuectl has version %s, but queuectld has version %s", client, cli.Version),
			"install the same version of both programs, then restart the service")
	}
	if t, err := a.ChooseTarget(); err == nil && t.IsUserService && osservice.UserServiceEndsAtLogout() {
		add("session", "warning", connect.ServiceEndsAtLogoutText, connect.KeepServiceRunningAdvice)
	}
	return diagnosis, nil
}
