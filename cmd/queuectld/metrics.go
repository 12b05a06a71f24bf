package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/metrics"
	"github.com/queuectl/queuectl/queue"
)

func metricsVerb(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "metrics", Short: "Print how the queue is and what it has done, as Prometheus reads it", Args: cli.Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			connect := a.ReadingClient
			if file != "" { // which would stay as it was without a word
				connect = func(context.Context) (*control.Client, error) { return a.Client() }
			}
			c, err := connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if a.Structured() && file == "" {
				list, err := metrics.Families(cmd.Context(), c)
				if err != nil {
					return err
				}
				return cli.PrintList(a.App, list)
			}
			var text bytes.Buffer
			if err := metrics.WriteText(cmd.Context(), c, &text); err != nil {
				return err
			}
			if file != "" {
				return putWhole(file, text.Bytes())
			}
			_, err = a.Out.Write(text.Bytes())
			return err
		},
	}
	cmd.Flags().Var(cli.NonEmpty(&file), "textfile", "put them into this `FILE`, whole or not at all, as node_exporter's textfile collector reads it")
	return cmd
}

// putWhole has a file hold a text, which others may read. Nobody sees a part of it.
func putWhole(file string, text []byte) error {
	if at, err := filepath.EvalSymlinks(file); err == nil {
		file = at // what a link leads to is written, and the link stays
	}
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return queue.Invalid("textfile", "%s is no file, which another one could take the place of; without --textfile they are printed", file)
	}
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if errors.Is(err, fs.ErrNotExist) {
		return queue.Invalid("textfile", "there is no folder %[1]s; make it with: mkdir -p %[1]s", queue.Word(filepath.Dir(file)))
	}
	if err != nil {
		return fmt.Errorf("make a file beside %s: %w", file, err)
	}
	_, err = part.Write(text)
	if err == nil {
		err = part.Chmod(0o644)
	}
	if err == nil {
		err = part.Sync()
	}
	if closed := part.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		os.Remove(part.Name())
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
