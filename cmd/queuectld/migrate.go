package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/service"
)

func migrateVerb(a *app) *cobra.Command {
	var sourceStore, targetStore, targetFile string
	cmd := &cobra.Command{
		Use: "migrate --to STORE", Short: "Move the queue to another database (stop the service first)", Args: cobra.NoArgs,
		Long: `Move the queue from the file in the state directory to a database on a
PostgreSQL server, or back. The service must be stopped; running jobs continue.

Jobs, history, outputs, schedules and settings move. Outputs that are stored in
files stay where they are. The new database is used only after everything has
been copied and verified. The old database is then marked, so that no service
opens it again. To continue an interrupted move, repeat the same command.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files.RestrictUmaskToOwner()
			places, err := a.ServicePaths()
			if err != nil {
				return err
			}
			if targetStore != "" && targetFile != "" {
				return fault.Usagef("--to: cannot be combined with --to-file; use one of them")
			}
			if targetFile != "" {
				if targetStore, err = config.ReadStoreURLFile("--to-file", targetFile); err != nil {
					return err
				}
			}
			if targetStore == "" {
				return fault.Usagef("%s: no target given; use --to postgres://USER@HOST/DATABASE, --to-file FILE (FILE "+
					"contains such a URL) or --to %s; "+
					"example: queuectl migrate --to-file /etc/queuectl/store", cmd.CommandPath(), config.StoreSQLite)
			}
			progress := func(table string, rows int64) { a.ShowProgress(`table %q: %d rows`, table, rows) }
			done, err := service.MigrateQueue(cmd.Context(), service.Options{Paths: places, Version: cli.Version,
				LogFile: a.Stderr},
				sourceStore, targetStore, progress)
			a.ShowProgress("")
			if err != nil {
				return err
			}
			if a.WantsJSON() {
				return a.PrintJSON(done)
			}
			if done.AlreadyMoved {
				a.PrintTerminalMessage("the queue was already moved to %s", done.Target)
				return nil
			}
			a.PrintTerminalMessage("%s moved from %s to %s", present.JobCountText(int(done.JobCount)), done.Source, done.Target)
			next := `change the setting "store" to the URL of the new database, or store_file to a file that contains this URL`
			if strings.HasSuffix(done.Target, ".db") {
				next = `change the setting "store" to "sqlite", or remove store and store_file`
			}
			fmt.Fprintf(a.Stderr, "queuectl: now %s; then start the service\n", next)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&targetStore, "to", "", "move to this `STORE`: postgres://USER@HOST/DATABASE, or sqlite for the file in "+
		"the state directory")
	f.StringVar(&targetFile, "to-file", "", "move to the store whose URL is in `FILE`, to keep its password "+
		"off the command line")
	f.StringVar(&sourceStore, "from", "", "move from this `STORE` (default: the store in the settings)")
	return cmd
}
