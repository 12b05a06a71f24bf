package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Program holds the code that only one of the two programs links. A function is nil in the program that
// does not link it. If a command of queuectl needs such a function, queuectl executes queuectld
// instead.
type Program struct {
	// Verbs are rows for the table of commands. Each replaces the row of the same name, or is appended
	// if the table has no such row.
	Verbs []Verb
	// ServePrivate runs a service in this process, with its data in App.Dir, until ctx ends. It calls ready
	// when the service accepts requests.
	ServePrivate func(ctx context.Context, a *App, ready func()) error
	// RunPrivate runs a list of jobs to their end (run --private). It is a field so that queuectl does not link it.
	RunPrivate func(ctx context.Context, a *App, f PrivateFlags, common *queue.Spec, noCwd bool, count int) error
	// JoinTerminal is App.JoinTerminal. It is a field so that queuectl does not link it.
	JoinTerminal func(a *App, ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error
	// OpenOffline returns a client that reads the queue's files in dir while no service runs. It returns
	// fs.ErrNotExist if dir contains no queue.
	OpenOffline func(ctx context.Context, a *App, dir string) (*control.Client, error)
	// EachTOMLJob passes every job of a TOML file to the function each. It is a field so that queuectl
	// does not link the TOML parser. The name is for error messages.
	EachTOMLJob func(name string, in io.Reader, each func(raw []byte, line int) error) error
	// HelpFunc returns the function that prints the help of a command, with all of its flags if all is
	// true. It is a field so that queuectl does not link the help texts.
	HelpFunc func(all bool) func(*cobra.Command, []string)
	// LoadZone returns the time zone for a value of TZ that the time package cannot read. It is a field so
	// that queuectl does not link the built-in zone database, which takes 400 KB.
	LoadZone func(value string) (*time.Location, error)
}
