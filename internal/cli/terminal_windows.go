package cli

import (
	"context"
	"errors"
	"os"

	"github.com/queuectl/queuectl/control"
)

// JoinTerminal returns an error, because jobs have no terminal on Windows.
func (a *App) JoinTerminal(context.Context, *control.Client, *followedJob, <-chan os.Signal) error {
	return errors.New("jobs have no terminal on Windows")
}
