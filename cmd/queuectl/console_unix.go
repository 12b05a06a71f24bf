//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"

	"golang.org/x/term"
)

// What people are told to type, and what becomes of their own service.
const (
	startSystem  = "systemctl start queuectl"
	makeFolder   = "mkdir -p"
	endsAtLogout = "without lingering your service and its jobs end when you have logged out, and it does not start with the machine"
	staying      = "have it stay: loginctl enable-linger"
)

// leaveConsole lets go of a console that was made for this process alone, which is never.
func leaveConsole() {}

// isTerminal reports whether a stream is a person's terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// defaultEditor is the one that every system has.
const defaultEditor = "vi"

// editorOn is the command that opens a file in the editor that a person named, which may
// have arguments.
func editorOn(ctx context.Context, editor, file string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, editor, file)
}

// sameVariable reports whether two names are of the same variable of the environment.
func sameVariable(a, b string) bool { return a == b }

// usual are the variables that a job gets from its caller, LC_* beside.
var usual = []string{"PATH", "LANG", "TZ"}
