package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// progressTimeout is how long sendProgress waits for the runner to read a report.
const progressTimeout = 5 * time.Second

func progressVerb(a *App) *cobra.Command {
	return NewCommand("progress N [MESSAGE]", "Report progress in percent from inside a job", nil,
		func(_ context.Context, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return fault.Usagef("progress takes a number from 0 to 100 and an optional quoted text; example: queuectl " +
					"progress 40 'epoch 4 of 10'")
			}
			line, err := formatProgressLine(args)
			if err != nil {
				return err
			}
			return sendProgress(os.Getenv("QUEUECTL_PROGRESS"), line)
		})
}

// formatProgressLine formats the arguments of "queuectl progress" as a line for the runner.
func formatProgressLine(args []string) (string, error) {
	n, err := strconv.Atoi(strings.TrimSuffix(args[0], "%"))
	if err != nil || n < 0 || n > 100 {
		return "", fault.Usagef("progress: %q is not a whole number from 0 to 100", queue.ClipForMessage(args[0]))
	}
	line := strconv.Itoa(n)
	if len(args) == 2 {
		line += " " + strings.Join(strings.Fields(args[1]), " ")
	}
	if len(line) > queue.MaxProgressTextBytes {
		line = strings.ToValidUTF8(line[:queue.MaxProgressTextBytes], "")
	}
	return line + "\n", nil
}

// sendProgress writes a line with a progress report to the runner. It returns an error if no runner reads the reports,
// or if the runner does not read this report within progressTimeout.
func sendProgress(progressFile, line string) error {
	if progressFile == "" {
		return queue.Errorf(queue.CodeWrongState, "progress works only inside a job, because it needs the "+
			"variable QUEUECTL_PROGRESS")
	}
	f, err := os.OpenFile(progressFile, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		if f, err = os.OpenFile(progressFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); errors.Is(err, os.ErrNotExist) {
			return queue.Errorf(queue.CodeWrongState, "the job of this process has ended and can no longer report "+
				"progress (%s is gone)", progressFile)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot report progress: %w", err)
	}
	// Ignore the error. SetWriteDeadline fails for a regular file, but writing to a regular file does not block.
	f.SetWriteDeadline(time.Now().Add(progressTimeout))
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
