package admin

import (
	"context"
	"os/exec"
	"syscall"
)

// defaultEditor is the editor that every system has.
const defaultEditor = "notepad"

// editorCommand returns the command that opens a file in the user's editor. The parameter editor may include
// arguments, as in "code --wait".
func editorCommand(ctx context.Context, editor, file string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /D /S /C "` + editor + ` "` + file + `""`}
	return cmd
}
