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

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/metrics"
	"github.com/queuectl/queuectl/queue"
)

func metricsVerb(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "metrics", Short: "Print metrics in the Prometheus format", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				return writeMetricsFile(cmd.Context(), a, file)
			}
			c, err := a.ReadOnlyClient(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if a.WantsJSON() {
				list, err := metrics.ReadMetricFamilies(cmd.Context(), c)
				if err != nil {
					return err
				}
				return term.PrintJSONList(&a.Output, list)
			}
			return metrics.WriteMetricsText(cmd.Context(), c, a.Stdout)
		},
	}
	cmd.Flags().Var(input.NonEmptyValue(&file), "textfile",
		"write the metrics to `FILE`, for the textfile collector of node_exporter; queuectl_healthy is 0 if the "+
			"service does not answer")
	return cmd
}

// writeMetricsFile replaces the file at path with the current metrics. If the service does not answer, the new file
// reports the service as unhealthy: the old file would continue to report a stopped service as healthy.
func writeMetricsFile(ctx context.Context, a *app, path string) error {
	text, err := gatherMetrics(ctx, a)
	if err != nil {
		text = []byte(metrics.ServiceDownMetricsText)
	}
	return errors.Join(err, replaceFileAtomically(path, text))
}

// gatherMetrics returns the metrics as text.
func gatherMetrics(ctx context.Context, a *app) ([]byte, error) {
	c, err := a.Client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var text bytes.Buffer
	err = metrics.WriteMetricsText(ctx, c, &text)
	return text.Bytes(), err
}

// replaceFileAtomically replaces a file in one step, so that a reader sees either the old or the new text. The new file
// is readable for all users.
func replaceFileAtomically(filePath string, text []byte) error {
	if target, err := filepath.EvalSymlinks(filePath); err == nil {
		filePath = target // replace the target of a symbolic link, and keep the link itself
	}
	if info, err := os.Lstat(filePath); err == nil && !info.Mode().IsRegular() {
		return queue.InvalidFieldError("textfile", "%s is not a regular file; to print the metrics instead, leave out "+
			"--textfile",
			filePath)
	}
	err := atomicfile.Write(filePath, text, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return queue.InvalidFieldError("textfile", "there is no directory %[1]s; make it with: mkdir -p %[1]s",
			queue.QuoteShellWord(filepath.Dir(filePath)))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", filePath, err)
	}
	return nil
}
