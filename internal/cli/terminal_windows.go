package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/control"
)

// JoinTerminal returns an error, because jobs have no terminal on Windows.
func (a *App) JoinTerminal(_ context.Context, _ *control.Client, f *followedJob, _ <-chan os.Signal) error {
	return fmt.Errorf("jobs have no terminal on Windows, so job %s gets no input; read its output with: queuectl "+
		"logs -f %[1]s", f.id)
}
