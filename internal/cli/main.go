// Package cli implements the command line: it parses arguments into requests and prints the replies.
//
// Both programs link it. queuectl contains little more than this package and the runner, so it is small and starts
// fast. Commands that need large libraries are only in queuectld. For such a command, queuectl executes queuectld
// (App.execQueuectld).
//
// Start with App.RootCommand and the table of commands in the function verbTable. The packages below this one
// contain what several commands share: term prints, connect finds the service, input reads jobs,
// enqueue sends them.
package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// App executes one command. It holds everything that several commands need.
type App struct {
	term.Output           // prints results and messages
	connect.ServiceFinder // finds the service and connects to it

	ExitCode int // exit code of the process if no error occurred

	Program       Program
	verbs         []Verb          // commands of this program
	programArgs   []string        // arguments of the process, without the program name
	Cmd           *cobra.Command  // the command that is running; nil before it starts
	offlineClient *control.Client // client that reads the files of a queue without a service; nil if not used
	helpExecErr   error           // error of the attempt to execute queuectld, which prints the help; nil if none
	// MissingQueueIsEmpty says that the command only lists things. If no queue exists yet, such a command
	// prints an empty list instead of an error.
	MissingQueueIsEmpty bool
	requestedKind       string   // kind of the objects that the command's arguments name, such as "job"
	requestedNames      []string // names of these objects

	// These fields hold flags that several commands have.
	RequireEnforcedLimits bool // --require-limits: reject jobs with limits that the service cannot enforce
	startBeforeOwnJobs    bool // --next: start the new job before the user's other waiting jobs
	PrintJobEnvironments  bool // --full: print jobs with their environment
}

// Main executes the command that the process's arguments name, and exits.
func Main(p Program) {
	// If Explorer has started a program, for example at logon, Cobra prints this text and exits. An empty text turns this
	// off.
	cobra.MousetrapHelpText = ""
	a := NewApp(p, os.Stdin, term.PrepareOutput(os.Stdout), term.PrepareOutput(os.Stderr))
	// The context is never cancelled. With a context that can be cancelled, each command would need an additional
	// goroutine and thread (see Client.roundTrip in package control).
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// NewApp returns an App for one command of a program.
func NewApp(p Program, stdin, stdout, stderr *os.File) *App {
	a := &App{Program: p, verbs: mergeVerbs(p.Verbs)}
	a.Stdin, a.Stdout, a.Stderr = stdin, stdout, stderr
	a.ServiceFinder = connect.NewServiceFinder(&a.Output, Version)
	return a
}

// main executes the command that the arguments name, and returns the exit code of the process.
func (a *App) main(ctx context.Context, args []string) int {
	v := a.requestedVerb(args)
	leave, err := a.setLocalTimeZone(v, args)
	switch {
	case err != nil:
	case leave || v != nil && v.BuildCommand == nil:
		err = a.execQueuectld()
	default:
		if v != nil && v.ExitsWithJobCode && !requestsHelp(args) {
			a.FailureExitCode = fault.ExitCodeFailure
		}
		root := a.RootCommand(args)
		var cmd *cobra.Command
		if cmd, err = root.ExecuteContextC(ctx); err == nil {
			err = a.helpExecErr
		}
		err = input.NameFlagsInError(cmd, err)
	}
	if err == nil || term.IsClosedPipeError(err) || errors.Is(err, errExecutedQueuectld) {
		return a.ExitCode
	}
	if own, ok := errors.AsType[*queue.Error](err); ok && own == connect.ErrNoQueue {
		if a.MissingQueueIsEmpty {
			a.PrintMessage("%v", connect.ErrNoQueue)
			if a.JSON && !a.JSONL {
				a.Println("[]")
			}
			return 0
		}
		err = a.explainMissingQueue()
	}
	code := cmp.Or(a.FailureExitCode, fault.ExitCode(err))
	// A message may list several errors, one per line.
	for line := range strings.Lines(fault.UserMessage(err) + a.VersionSkewHint(err)) {
		a.PrintMessage("%s", strings.TrimSuffix(line, "\n"))
	}
	return code
}

// setLocalTimeZone sets time.Local to the time zone in the environment variable TZ, if package time could not read that
// zone. If only queuectld can load the zone, needsQueuectld is true, and the caller must execute queuectld.
//
// An unknown zone is an error, because the command would print or read wrong times. Commands that set AllowsUnknownTZ
// do not use local times, so setLocalTimeZone ignores an unknown zone for them.
func (a *App) setLocalTimeZone(v *Verb, args []string) (needsQueuectld bool, err error) {
	value, unread := zone.UnreadableTZ()
	source := "TZ=" + value
	if _, set := os.LookupEnv("TZ"); !set {
		source = "the time zone of this machine"
	}
	switch {
	case !unread || v != nil && v.AllowsUnknownTZ || requestsHelp(args):
		return false, nil
	case a.Program.LoadTimeZone == nil:
		if _, err := a.DaemonPath(); err != nil {
			return false, fault.Usagef("%s: no time zone data found; install tzdata, or set TZ=UTC", source)
		}
		return true, nil
	}
	if time.Local, err = a.Program.LoadTimeZone(value); err != nil {
		return false, fault.Usagef("%s: %v", source, err)
	}
	return false, nil
}

// Root returns the root command for the given arguments. If the arguments name a command, the root command
// contains only that command, otherwise all commands.
func (a *App) RootCommand(args []string) *cobra.Command {
	a.programArgs = args
	root := &cobra.Command{
		Use:           "queuectl [COMMAND]",
		Short:         "A durable queue for shell commands",
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.Cmd = cmd
			return input.RejectEmptyListFlags(cmd)
		},
		Args: a.rejectUnknownCommand,
	}
	var asksVersion bool
	root.Flags().BoolVar(&asksVersion, "version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if asksVersion {
			return versionVerb(a).RunE(cmd, nil)
		}
		return a.printStatus(cmd.Context(), statusOptions{})
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpVerb())
	root.SetFlagErrorFunc(a.translateFlagError)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	a.addGlobalFlags(root.PersistentFlags())
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if a.Program.HelpFunc == nil {
			a.helpExecErr = a.execQueuectld()
			return
		}
		a.Program.HelpFunc(requestsAllHelp(args))(cmd, words)
	})
	cobra.EnableCommandSorting = false // the help lists commands in the order of the table
	a.addVerbs(root, a.requestedVerb(args))
	if slices.Contains(args, cobra.ShellCompRequestCmd) || slices.Contains(args, cobra.ShellCompNoDescRequestCmd) {
		a.addFlagCompletions(root)
	}
	root.SetArgs(protectNegativeNumberArg(withoutAllFlag(args)))
	return root
}

// rejectUnknownCommand returns an error if the root command gets arguments. The root command gets only arguments that
// do not begin with a known command.
func (a *App) rejectUnknownCommand(_ *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && slices.Contains(a.verbNames(), args[0]):
		return fault.Usagef("unexpected -- before the command; write: queuectl %s", args[0])
	case len(args) > 0:
		return fault.Usagef("unknown command %q%s", args[0], unknownVerbHint(args[0], a.verbNames()))
	}
	return nil
}

// addGlobalFlags adds the flags that all commands have.
func (a *App) addGlobalFlags(f *pflag.FlagSet) {
	f.Var(input.NonEmptyValue(&a.SocketPath), "socket", "use the service whose socket is `FILE`")
	f.Var(input.NonEmptyValue(&a.ServiceDir), "dir", "use the service whose data is in `DIR`")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	f.BoolVar(&a.JSONL, "jsonl", false, "print one JSON object per line")
	f.BoolVarP(&a.Quiet, "quiet", "q", false, "print only IDs")
	f.BoolVar(&a.KeepControlCharacters, "raw", false, "print control characters unchanged")
}

// addVerbs adds commands to the root command: only the requested command, or all commands if requested is nil.
func (a *App) addVerbs(root *cobra.Command, requested *Verb) {
	for i := range a.verbs {
		v := &a.verbs[i]
		if v.Group != "" && !root.ContainsGroup(v.Group) {
			root.AddGroup(&cobra.Group{ID: v.Group, Title: v.Group})
		}
		switch {
		case requested != nil && requested != v:
		case v.BuildCommand == nil: // queuectld implements the command; queuectl only lists it in the help
			root.AddCommand(&cobra.Command{Use: v.Name, Short: v.Short, GroupID: v.Group,
				Run: func(*cobra.Command, []string) {}})
		default:
			cmd := v.BuildCommand(a)
			cmd.GroupID = v.Group
			if v.Alias != "" {
				cmd.Aliases = []string{v.Alias}
			}
			root.AddCommand(cmd)
		}
	}
}

// requestedVerb returns the command that the arguments name. The arguments may request that the command is executed,
// that its help is printed, or that a shell completes its arguments. requestedVerb returns nil if all commands are
// needed.
func (a *App) requestedVerb(args []string) *Verb {
	about := false // an earlier argument requests help or completion
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--socket" || arg == "--dir":
			i++
		case strings.HasPrefix(arg, "-"):
		case arg == "help" && !about:
			about = true
		case (arg == cobra.ShellCompRequestCmd || arg == cobra.ShellCompNoDescRequestCmd) && !about:
			if about = true; len(args)-i < 3 {
				return nil // the user is still typing the name of the command, so all commands are needed
			}
		default:
			if i := slices.IndexFunc(a.verbs, func(v Verb) bool { return v.Name == arg || v.Alias == arg }); i >= 0 {
				return &a.verbs[i]
			}
			return nil
		}
	}
	return nil
}

func (a *App) verbNames() []string {
	var names []string
	for _, v := range a.verbs {
		if names = append(names, v.Name); v.Alias != "" {
			names = append(names, v.Alias)
		}
	}
	return names
}

// Program holds the functions that only one of the programs queuectl and queuectld contains. In the other program, the
// function is nil. If a command needs a function that queuectl does not contain, queuectl executes queuectld instead.
type Program struct {
	// Verbs are additional rows of the table of commands; see mergeVerbs.
	Verbs []Verb
	// ServePrivate runs a service in this process, with its data in App.Dir, until ctx ends. It calls onReady
	// when the service accepts requests.
	ServePrivate func(ctx context.Context, a *App, onReady func()) error
	// RunPrivate runs a list of jobs to their end ("queuectl run --private"). It is a field so that only
	// queuectld contains its code.
	RunPrivate func(ctx context.Context, a *App, f PrivateFlags, commonSpec *queue.Spec, noCwd bool, workerCount int) error
	// JoinTerminal is App.JoinTerminal. It is a field so that only queuectld contains its code.
	JoinTerminal func(a *App, ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error
	// OpenOffline returns a client that reads the queue's files in dir while no service runs. It returns
	// fs.ErrNotExist if dir contains no queue.
	OpenOffline func(ctx context.Context, a *App, dir string) (*control.Client, error)
	// EachTOMLJob calls handleJob(raw, line) for every job of a TOML file. name is the name of the file, for errors. It is
	// a field so that only queuectld contains the TOML parser.
	EachTOMLJob func(name string, in io.Reader, handleJob func(raw []byte, line int) error) error
	// HelpFunc returns the function that prints the help of a command, with all flags if showAll is true. It
	// is a field so that only queuectld contains the help texts.
	HelpFunc func(showAll bool) func(*cobra.Command, []string)
	// LoadTimeZone returns the time zone for a value of TZ that the time package cannot read. It is a field so
	// that only queuectld contains the built-in zone database, which takes 400 KB.
	LoadTimeZone func(value string) (*time.Location, error)
}
