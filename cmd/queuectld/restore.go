package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/service"
)

func restoreVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "restore FILE", Short: "Restore the queue from a backup (stop the service first)",
		Args: cli.ExactArgs(1, "the backup file"),
		RunE: func(_ *cobra.Command, args []string) error {
			files.RestrictUmaskToOwner()
			places, err := a.ServicePaths()
			if err != nil {
				return err
			}
			file, err := files.Open("restore", args[0])
			if err != nil {
				return err
			}
			file.Close() // the file was opened only to check that this process can read it
			began := time.Now()
			done, err := service.RestoreBackup(places, args[0], func(done, total int64) {
				a.DrawProgressBar(term.ProgressBar{Current: done, Total: total, StartedAt: began, TextAfterNumbers: "copying",
					ValuesAreBytes: true})
			})
			a.ShowProgress("")
			if err != nil {
				return err
			}
			if a.WantsJSON() {
				return a.PrintJSON(done)
			}
			a.PrintTerminalMessage("%s restored to %s", present.JobCountText(int(done.RestoredJobs)), places.StateDir)
			if done.PreviousFilesDir != "" {
				fmt.Fprintf(a.Stderr, "queuectl: the previous queue is kept in %s\n", done.PreviousFilesDir)
			}
			return nil
		},
	}
}
