package main

import (
	"fmt"

	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

func migrateVerb(a *app) *cobra.Command {
	var from, to, toFile string
	cmd := &cobra.Command{
		Use: "migrate --to STORE", Short: "Move the queue to another store, while its service is stopped", Args: cobra.NoArgs,
		Long: `Move the queue to another store, while its service is stopped: from the file in
the state folder to a database on a PostgreSQL server, or back. Jobs, history,
outputs, schedules and settings go along, and what runs goes on. Nothing holds in
the new place before all of it is there and was read again; then the old one is
marked, and no service opens it any more. A move that was cut off goes on when
the same command is run again. Outputs in files stay where they are.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cli.PrivateFiles()
			places, err := a.Folder()
			if err != nil {
				return err
			}
			if to != "" && toFile != "" {
				return cli.Usage("--to: cannot be combined with --to-file; give one of them")
			}
			if toFile != "" {
				if to, err = config.ReadStore("to-file", toFile); err != nil {
					return err
				}
			}
			if to == "" {
				return queue.Invalid("to", "no target given; use --to postgres://USER@HOST/DATABASE, --to-file FILE or --to %s", config.StoreSQLite)
			}
			tell := func(table string, rows int64) { a.Progress("%s: %d rows", table, rows) }
			done, err := service.Migrate(cmd.Context(), service.Options{Places: places, Version: cli.Version, Log: a.Err}, from, to, tell)
			a.Progress("")
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.PrintJSON(done)
			}
			if done.Before {
				a.Say("the queue was already moved to %s", done.To)
				return nil
			}
			a.Say("%s moved from %s to %s", cli.Jobs(int(done.Jobs)), done.From, done.To)
			next := "store_file or store to the URL of that database"
			if strings.HasSuffix(done.To, ".db") {
				next = `store to "sqlite", or remove store and store_file`
			}
			fmt.Fprintf(a.Err, "queuectl: in the settings, set %s; then start the service\n", next)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "`STORE` to move to: postgres://USER@HOST/DATABASE, or sqlite for the file in the state folder")
	f.StringVar(&toFile, "to-file", "", "`FILE` that has the URL, which keeps its password out of sight")
	f.StringVar(&from, "from", "", "`STORE` that has the queue; else what the settings say")
	return cmd
}
