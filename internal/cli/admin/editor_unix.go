//go:build unix

package admin

import (
	"context"
	"os/exec"
)

// defaultEditor is the editor that every system has.
const defaultEditor = "vi"

// editorCommand returns the command that opens a file in the user's editor. The parameter editor may include
// arguments, as in "code --wait".
func editorCommand(ctx context.Context, editor, file string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, editor, file)
}
