//go:build unix

package cli

import (
	"context"
	"os"
	"os/exec"

	"golang.org/x/term"
)

// These are commands in messages, and the message about a service that ends at logout.
const (
	StartSystem  = "systemctl start queuectl"
	EndsAtLogout = "lingering is off, so your service and its jobs end when you log out, and the service does not start at boot"
	Staying      = "keep the service running with: loginctl enable-linger"
)

// makeDir is the command that creates a directory.
const makeDir = "mkdir -p"

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// defaultEditor is the editor that every system has.
const defaultEditor = "vi"

// editorOn returns the command that opens a file in the user's editor. The editor may include
// arguments.
func editorOn(ctx context.Context, editor, file string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, editor, file)
}

// sameVariable reports whether two names denote the same environment variable.
func sameVariable(a, b string) bool { return a == b }

// usual lists the variables that a job gets from its caller, in addition to LC_*.
var usual = []string{"PATH", "LANG", "TZ"}
