package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/queue"
)

// AcceptNames prepares cmd for arguments that are names of objects of one kind, such as "job". The function complete
// completes the names. If no queue exists yet, the error of cmd says that these objects do not exist.
func (a *App) AcceptNames(cmd *cobra.Command, kind string, complete cobra.CompletionFunc) {
	cmd.ValidArgsFunction = complete
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		a.requestedKind, a.requestedNames = kind, names
		return run(cmd, names)
	}
}

// explainMissingQueue returns the error of a command that needs a queue, if no queue exists yet. If the command
// names objects, they do not exist, so the error has the same code as in a queue without these objects.
func (a *App) explainMissingQueue() error {
	if len(a.requestedNames) == 0 {
		return connect.ErrNoQueue
	}
	var quotedNames []string
	for _, name := range UniqueIDs(a.requestedNames) {
		quotedNames = append(quotedNames, fmt.Sprintf("%q", queue.ClipForMessage(name)))
	}
	subject := "is no " + a.requestedKind
	if len(quotedNames) > 1 {
		subject = "are no " + a.requestedKind + "s"
	}
	return queue.Errorf(queue.CodeNotFound, "there %s %s, because %s", subject,
		firstIDsText(quotedNames), connect.ErrNoQueue.Message)
}
