package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"
)

// These are commands in messages, and the message about a service that ends at logoff.
const (
	StartSystem  = "sc start queuectl"
	EndsAtLogout = "your service and its jobs end when you log off, and the service does not start at boot"
	Staying      = "to keep the service running, install it for all users, in an elevated prompt (right-click, Run as administrator): queuectl service install"
)

// makeDir is the command that creates a directory.
const makeDir = "mkdir"

// IsTerminal reports whether a file is a terminal. An output must be a console that shows colours.
func IsTerminal(f *os.File) bool {
	var mode uint32
	return windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) == nil && mode&windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING != 0
}

// defaultEditor is the editor that every system has.
const defaultEditor = "notepad"

// editorOn returns the command that opens a file in the user's editor. The editor may include
// arguments.
func editorOn(ctx context.Context, editor, file string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /D /S /C "` + editor + ` "` + file + `""`}
	return cmd
}

// sameVariable reports whether two names denote the same environment variable.
func sameVariable(a, b string) bool { return strings.EqualFold(a, b) }

// usual lists the variables that a job gets from its caller, in addition to LC_*, in the spelling
// that the job gets.
var usual = []string{"PATH", "PATHEXT", "LANG", "TZ"}
