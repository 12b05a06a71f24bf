package cli

import (
	"context"
	"errors"
	"os"

	"github.com/queuectl/queuectl/control"
)

// JoinTerminal joins the terminal of a job with the person's. A service on Windows gives its
// jobs none.
func (a *App) JoinTerminal(context.Context, *control.Client, *followed, <-chan os.Signal) error {
	return errors.New("jobs have no terminal on Windows")
}
