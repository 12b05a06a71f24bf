// Package cli implements the command line: it parses arguments into requests and prints the
// replies.
//
// Both programs link it. queuectl contains little more than this package and the runner, so it is
// small and starts fast. For a command that needs large code, queuectl replaces itself with
// queuectld (App.execDaemon).
//
// Start with App.Root and the table of commands in the function table.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
)

// Version is the version of both programs. The release build sets it.
var Version = "0.1.0-dev"

// Verb is one row of the table of commands. Root builds only the requested command, because
// building all of them takes longer than enqueueing a job.
type Verb struct {
	Name  string
	Build func(a *App) *cobra.Command // builds the command; nil if only queuectld implements it
	Short string                      // one-line description, set if Build is nil
	Alias string                      // second name; "" without one
	Group string                      // heading of the command in the help
	AnyTZ bool                        // an unknown TZ is accepted, because the command uses no local times
}

// Program holds the code that only one of the two programs links. A function is nil in the program
// that does not link it. A command of queuectl that needs such a function executes queuectld
// instead.
type Program struct {
	// Verbs are rows for the table of commands. Each replaces the row of the same name, or is appended
	// if the table has no such row.
	Verbs []Verb
	// Private runs a service in this process, with its data in App.Dir, until ctx ends. It calls ready
	// when the service accepts requests.
	Private func(ctx context.Context, a *App, ready func()) error
	// PrivateRun runs a list of jobs to their end (run --private). It is a field so that queuectl does not link it.
	PrivateRun func(ctx context.Context, a *App, f privateFlags, common *queue.Spec, noCwd bool, count int) error
	// Join is App.JoinTerminal. It is a field so that queuectl does not link it.
	Join func(a *App, ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error
	// Offline returns a client that reads the queue's files in dir while no service runs. It returns
	// fs.ErrNotExist if dir contains no queue.
	Offline func(ctx context.Context, a *App, dir string) (*control.Client, error)
	// Settings reads a settings file. A missing file is an error only if required is true.
	Settings func(path string, required bool) (config.Layer, error)
	// EachTable passes every job of a TOML file to the function each. It is a field so that queuectl
	// does not link the TOML parser. The name is for error messages.
	EachTable func(name string, in io.Reader, each func(raw []byte, line int) error) error
	// Hash returns a SHA-256 hash, for backups and for the lines of private runs. It is a field so that
	// queuectl does not link the hash library, which would make it a tenth larger.
	Hash func() hash.Hash
	// Help returns the function that prints the help of a command, with all of its flags if all is
	// true. It is a field so that queuectl does not link the help texts.
	Help func(all bool) func(*cobra.Command, []string)
	// Zone returns the time zone for a value of TZ that the time package cannot read. It is a field so
	// that queuectl does not link the built-in zone database, which takes 400 KB.
	Zone func(value string) (*time.Location, error)
}

// These are the headings of the command groups in the help.
const (
	groupJobs    = "Jobs:"
	groupOutput  = "Status and output:"
	groupControl = "Control:"
	groupQueues  = "Queues and schedules:"
	groupService = "Service:"
	groupOther   = "Other:"
)

// table returns the table of commands. Its rows hold only constants and functions, so the table is
// cheap to build.
func table() []Verb {
	return []Verb{
		{Group: groupJobs, Name: "enqueue", Build: enqueueVerb, Alias: "add"},
		{Group: groupJobs, Name: "run", Build: runVerb},
		{Group: groupJobs, Name: "attach", Build: attachVerb},
		{Group: groupJobs, Name: "wait", Build: waitVerb},
		{Group: groupJobs, Name: "progress", Build: progressVerb, AnyTZ: true},
		{Group: groupJobs, Name: "edit", Short: "Change waiting jobs with flags, JSON or $EDITOR"},
		{Group: groupJobs, Name: "retry", Build: retryVerb, Alias: "rerun", AnyTZ: true},
		{Group: groupJobs, Name: "cancel", Build: cancelVerb, AnyTZ: true},
		{Group: groupJobs, Name: "rm", Build: rmVerb, AnyTZ: true},
		{Group: groupJobs, Name: "dequeue", Build: dequeueVerb},

		{Group: groupOutput, Name: "status", Build: statusVerb},
		{Group: groupOutput, Name: "top", Short: "Show a live screen of all jobs, with keys to control them", Alias: "ui"},
		{Group: groupOutput, Name: "list", Build: listVerb, Alias: "ls"},
		{Group: groupOutput, Name: "ps", Build: psVerb},
		{Group: groupOutput, Name: "show", Build: showVerb},
		{Group: groupOutput, Name: "logs", Build: logsVerb, Alias: "log"},
		{Group: groupOutput, Name: "why", Build: whyVerb},
		{Group: groupOutput, Name: "tree", Short: "Show the dependencies and dependants of a job as a tree"},
		{Group: groupOutput, Name: "simulate", Short: "List the jobs that would start if workers were free"},
		{Group: groupOutput, Name: "stats", Short: "Show statistics: outcomes, waiting times, run times"},
		{Group: groupOutput, Name: "events", Short: "Print past events, or follow new ones with -f"},
		{Group: groupOutput, Name: "dlq", Build: dlqVerb},
		{Group: groupOutput, Name: "whoami", Short: "Show your identity and rights", AnyTZ: true},

		{Group: groupControl, Name: "worker", Build: workerVerb},
		{Group: groupControl, Name: "hold", Build: holdVerb, AnyTZ: true},
		{Group: groupControl, Name: "release", Build: releaseVerb, AnyTZ: true},
		{Group: groupControl, Name: "pause", Build: pauseVerb},
		{Group: groupControl, Name: "resume", Build: resumeVerb, AnyTZ: true},
		{Group: groupControl, Name: "requeue", Build: requeueVerb, AnyTZ: true},
		{Group: groupControl, Name: "kill", Build: killVerb, AnyTZ: true},
		{Group: groupControl, Name: "drain", Short: "Start no new jobs until drain --off, even after a restart", AnyTZ: true},
		{Group: groupControl, Name: "clear", Build: clearVerb, AnyTZ: true},
		{Group: groupControl, Name: "cleanup", Short: "Remove old finished jobs and their history"},

		{Group: groupQueues, Name: "queue", Short: "Configure, pause and list named queues"},
		{Group: groupQueues, Name: "schedule", Short: "Manage recurring jobs"},
		{Group: groupQueues, Name: "gate", Short: "List locks, rate limits and resources; set shared limits", AnyTZ: true},
		{Group: groupQueues, Name: "hook", Short: "Test hooks and webhooks", AnyTZ: true},

		{Group: groupService, Name: "service", Short: "Install, start, stop and check the service", AnyTZ: true},
		{Group: groupService, Name: "serve", Short: "Run the service in the foreground"},
		{Group: groupService, Name: "node", Short: "List, drain and remove the nodes that share a queue"},
		{Group: groupService, Name: "config", Short: "Show and change the settings of the service", AnyTZ: true},
		{Group: groupService, Name: "reload", Short: "Reload the settings file of the service", AnyTZ: true},
		{Group: groupService, Name: "doctor", Short: "Diagnose problems with the queue, disk, service and runners"},
		{Group: groupService, Name: "backup", Short: "Back up the whole queue to one file while it is in use"},
		{Group: groupService, Name: "restore", Short: "Restore the queue from a backup (stop the service first)"},
		{Group: groupService, Name: "migrate", Short: "Move the queue to another database (stop the service first)"},
		{Group: groupService, Name: "web", Short: "Start, stop and open the web dashboard"},
		{Group: groupService, Name: "metrics", Short: "Print metrics in the Prometheus format", AnyTZ: true},
		{Group: groupService, Name: "mcp", Short: "Offer the queue to coding agents (Model Context Protocol)", AnyTZ: true},

		{Group: groupOther, Name: "completion", Short: "Print a shell completion script", AnyTZ: true},
		{Group: groupOther, Name: "man", Short: "Write the manual pages to a directory", AnyTZ: true},
		{Group: groupOther, Name: "schema", Short: "Print the JSON Schemas of the protocol methods", AnyTZ: true},
		{Group: groupOther, Name: "init", Build: initVerb, AnyTZ: true},
		{Group: groupOther, Name: "version", Build: versionVerb, AnyTZ: true},
	}
}

// App executes one command. It holds what all commands share.
type App struct {
	Output // prints results and messages
	Finder // finds the service and connects to it

	Exit int // exit code if no error occurred

	program        Program
	verbs          []Verb          // commands of this program
	args           []string        // arguments of the process, without the program name
	cmd            *cobra.Command  // the command that is running; nil before it starts
	offline        *control.Client // client that reads the files of a stopped queue; nil if not used
	helpFailed     error           // why queuectld, which contains the help, could not be executed
	missingIsEmpty bool            // the command only lists things, so it treats a missing queue as an empty list

	// These fields hold flags that several commands have.
	requireLimits bool // --require-limits: reject jobs with limits that the service cannot enforce
	next          bool // --next: the new job starts before the user's other waiting jobs
	full          bool // --full: print jobs with their environment
}

// Main executes the command that the process's arguments name, and exits.
func Main(p Program) {
	// Explorer may start this program, for example at logon. Cobra would print a message and exit.
	cobra.MousetrapHelpText = ""
	a := newApp(p, os.Stdin, alias(os.Stdout), alias(os.Stderr))
	// The context is never cancelled. A cancelable one would cost each command a goroutine, and with it
	// a thread.
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// newApp returns an App for one command of a program.
func newApp(p Program, in, out, err *os.File) *App {
	a := &App{program: p, verbs: withVerbs(p.Verbs)}
	a.In, a.Out, a.Err = in, out, err
	a.Finder = NewFinder(&a.Output, Version)
	return a
}

// withVerbs returns the table of commands with the program's own rows: they replace rows of the
// same name or are appended.
func withVerbs(own []Verb) []Verb {
	list := table()
	for _, v := range own {
		if i := slices.IndexFunc(list, func(w Verb) bool { return w.Name == v.Name }); i >= 0 {
			list[i].Build = v.Build
		} else {
			list = append(list, v)
		}
	}
	return list
}

func (a *App) main(ctx context.Context, args []string) int {
	v := a.askedVerb(args)
	leave, err := a.readZone(v, args)
	switch {
	case err != nil:
	case leave || v != nil && v.Build == nil:
		err = a.execDaemon()
	default:
		root := a.Root(args)
		var cmd *cobra.Command
		if cmd, err = root.ExecuteContextC(ctx); err == nil {
			err = a.helpFailed
		}
		err = nameFlags(cmd, err)
	}
	if err == nil || isClosedPipe(err) || errors.Is(err, errOther) {
		return a.Exit
	}
	if own, ok := errors.AsType[*queue.Error](err); ok && own == errNoQueue && a.missingIsEmpty {
		fmt.Fprintf(a.Err, "queuectl: %v\n", errNoQueue)
		if a.JSON && !a.JSONL {
			a.Println("[]")
		}
		return 0
	}
	code := ExitCode(err)
	if a.FailureCode != 0 {
		code = a.FailureCode
	}
	// A message may list several errors, one per line.
	for line := range strings.Lines(a.Clean(a.Err, Message(err)+a.skew(err))) {
		fmt.Fprintf(a.Err, "queuectl: %s\n", strings.TrimSuffix(line, "\n"))
	}
	return code
}

// asksHelp reports whether the arguments ask for help before the command or right after it. Later
// arguments may belong to a job's program.
func asksHelp(args []string) bool {
	verb := false
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--help", arg == "-h", arg == "help" && !verb:
			return true
		case verb:
			return false
		case arg == "--socket" || arg == "--dir":
			i++
		case !strings.HasPrefix(arg, "-"):
			verb = true
		}
	}
	return false
}

// asksAll reports whether the arguments ask for the complete help, with --help --all.
func asksAll(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--all") && (asksHelp(args) || slices.Contains(args, "--help") || slices.Contains(args, "-h"))
}

// withoutAll removes --all from arguments that ask for the complete help, because not every command
// has that flag.
func withoutAll(args []string) []string {
	if !asksAll(args) {
		return args
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--all" })
}

// readZone sets time.Local to the zone in TZ if the time package could not read it. leave is true
// if only queuectld can load the zone; the caller must then execute queuectld. An unknown zone is
// an error for a command that reads or prints times, because they would be wrong.
func (a *App) readZone(v *Verb, args []string) (leave bool, err error) {
	value, unread := zone.Unread()
	source := "TZ=" + value
	if _, set := os.LookupEnv("TZ"); !set {
		source = "TZ is not set, so the zone of this machine applies"
	}
	switch {
	case !unread || v != nil && v.AnyTZ || asksHelp(args):
		return false, nil
	case a.program.Zone == nil:
		if _, err := a.daemonPath(); err != nil {
			return false, Usage("%s: this machine has no data for this time zone; install tzdata or set another TZ (queuectld has its own data, but cannot be started: %v)", source, err)
		}
		return true, nil
	}
	if time.Local, err = a.program.Zone(value); err != nil {
		return false, Usage("%s: %v", source, err)
	}
	return false, nil
}

// Root returns the root command with the requested command, or with all commands if the arguments
// name none. Its arguments are set.
func (a *App) Root(args []string) *cobra.Command {
	a.args = args
	root := &cobra.Command{
		Use:           "queuectl [COMMAND]",
		Short:         "A durable queue for shell commands",
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.cmd = cmd
			return checkLists(cmd)
		},
		Args: a.noArguments,
	}
	var asksVersion bool
	root.Flags().BoolVar(&asksVersion, "version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if asksVersion {
			return versionVerb(a).RunE(cmd, nil)
		}
		a.missingIsEmpty = true
		return a.status(cmd.Context(), statusOptions{})
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpVerb())
	root.SetFlagErrorFunc(a.flagError)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	a.globalFlags(root.PersistentFlags())
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if a.program.Help == nil {
			a.helpFailed = a.execDaemon()
			return
		}
		a.program.Help(asksAll(args))(cmd, words)
	})
	cobra.EnableCommandSorting = false // the help lists commands in the order of the table
	a.addVerbs(root, a.askedVerb(args))
	if slices.Contains(args, cobra.ShellCompRequestCmd) || slices.Contains(args, cobra.ShellCompNoDescRequestCmd) {
		a.completeFlags(root)
	}
	root.SetArgs(apart(withoutAll(args)))
	return root
}

// noArguments rejects arguments that name no command.
func (a *App) noArguments(_ *cobra.Command, args []string) error {
	switch {
	case len(args) > 0 && slices.Contains(a.verbNames(), args[0]):
		return Usage("unexpected -- before the command; write: queuectl %s", args[0])
	case len(args) > 0:
		return Usage("unknown command %q%s", args[0], nearVerb(args[0], a.verbNames()))
	}
	return nil
}

// globalFlags adds the flags that all commands have.
func (a *App) globalFlags(f *pflag.FlagSet) {
	f.Var(NonEmpty(&a.Socket), "socket", "use the service whose socket is `FILE`")
	f.Var(NonEmpty(&a.Dir), "dir", "use the service whose data is in `DIR`")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	f.BoolVar(&a.JSONL, "jsonl", false, "print one JSON object per line")
	f.BoolVarP(&a.Quiet, "quiet", "q", false, "print only IDs")
	f.BoolVar(&a.raw, "raw", false, "print control characters unchanged")
}

// addVerbs adds the requested command, or all commands if asked is nil.
func (a *App) addVerbs(root *cobra.Command, asked *Verb) {
	for i := range a.verbs {
		v := &a.verbs[i]
		if v.Group != "" && !root.ContainsGroup(v.Group) {
			root.AddGroup(&cobra.Group{ID: v.Group, Title: v.Group})
		}
		switch {
		case asked != nil && asked != v:
		case v.Build == nil: // queuectld implements it; this entry is only for the list of commands
			root.AddCommand(&cobra.Command{Use: v.Name, Short: v.Short, GroupID: v.Group, Run: func(*cobra.Command, []string) {}})
		default:
			cmd := v.Build(a)
			cmd.GroupID = v.Group
			if v.Alias != "" {
				cmd.Aliases = []string{v.Alias}
			}
			root.AddCommand(cmd)
		}
	}
}

// apart inserts -- before a last argument that is a negative number, so that cobra does not parse
// it as a flag.
func apart(args []string) []string {
	if len(args) < 3 {
		return args
	}
	last := args[len(args)-1]
	digits := len(last) > 1 && last[0] == '-' && (last[1] == '.' || last[1] >= '0' && last[1] <= '9')
	for i := range args[:len(args)-2] {
		if digits && (args[i] == "config" && args[i+1] == "set" || args[i] == "worker" && args[i+1] == "scale") {
			return append(args[:len(args)-1:len(args)-1], "--", last)
		}
	}
	return args
}

// askedVerb returns the command that the arguments name, whether to execute, to explain or to
// complete. It returns nil if all commands are needed.
func (a *App) askedVerb(args []string) *Verb {
	about := false // "help" or a completion request preceded this argument
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--socket" || arg == "--dir":
			i++
		case strings.HasPrefix(arg, "-"):
		case arg == "help" && !about:
			about = true
		case (arg == cobra.ShellCompRequestCmd || arg == cobra.ShellCompNoDescRequestCmd) && !about:
			if about = true; len(args)-i < 3 {
				return nil // the user is typing the command's name, so all commands are needed
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

// UsageError is a mistake in the command line.
type UsageError struct{ text string }

// Error returns the message.
func (e *UsageError) Error() string { return e.text }

// Usage returns a UsageError with a formatted message for the user.
func Usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ExitCode returns the process's exit code for an error.
func ExitCode(err error) int {
	type chosen interface {
		error
		ExitsWith() int
	}
	// This check comes first, because a usage error of serve can have its own exit code.
	if e, ok := errors.AsType[chosen](err); ok {
		return e.ExitsWith()
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		return 2
	}
	return control.RowOf(err).Exit
}

// Message returns the text of an error for the user, as one line. If a denial does not begin with
// its subject, Message prepends "denied: ".
func Message(err error) string {
	text := err.Error()
	if what, _, _ := strings.Cut(text, ";"); errors.Is(err, queue.ErrDenied) && !strings.Contains(what, ":") {
		text = "denied: " + text
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		text = strings.TrimPrefix(text, "queuectl ") // the program's name is already printed before the text
	}
	return strings.TrimSpace(text)
}

// Exactly returns a check that exactly n arguments are given. The parameter what describes the
// expected arguments in the error, for example "the name of a queue".
func Exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return checkCount(cmd, args, n, what) }
}

// checkCount returns an error if there are not n arguments. It is separate from Exactly, because
// the compiler copies the body of Exactly into every command.
func checkCount(cmd *cobra.Command, args []string, n int, what string) error {
	if len(args) == n {
		return nil
	}
	text := fmt.Sprintf("%s takes %s; %s given", cmd.CommandPath(), what, plural(len(args), "argument"))
	if n == 0 {
		text += argumentHint(strings.TrimPrefix(cmd.CommandPath(), "queuectl "), args)
	}
	return Usage("%s", text)
}

// atLeastOne returns a check that one or more arguments are given.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usage("%s takes %s; none given", cmd.CommandPath(), what)
		}
		return nil
	}
}

// atMostOne returns a check that no more than one argument is given.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return Usage("%s takes at most one argument (%s); %d given", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}

// Group returns a command that only contains subcommands. It rejects an unknown subcommand with a
// hint.
func Group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use + " COMMAND", Short: short}
	var names []string
	for _, v := range verbs {
		cmd.AddCommand(v)
		names = append(names, v.Name())
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usage("queuectl %s: no command given; use one of: %s", use, strings.Join(names, ", "))
		}
		return Usage("unknown command %q%s", use+" "+args[0], cmp.Or(argumentHint(use, args), groupHint(use, args[0], verbs), near(args[0], names, "use one of: "+strings.Join(names, ", "))))
	}
	cmd.Args = cobra.ArbitraryArgs
	return cmd
}

func versionVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: Exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.JSON || a.JSONL {
				return a.PrintJSON(map[string]any{"version": Version, "protocol": control.Protocol})
			}
			return a.Println("queuectl " + Version)
		},
	}
}
