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
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

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
	// PrivateRun is App.RunPrivate. It is a field so that queuectl does not link it.
	PrivateRun func(a *App, ctx context.Context, f privateFlags, common *queue.Spec, noCwd bool, count int) error
	// Join is App.JoinTerminal. It is a field so that queuectl does not link it.
	Join func(a *App, ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error
	// Look returns a client that reads the queue's files in dir while no service runs. It returns
	// fs.ErrNotExist if dir contains no queue.
	Look func(ctx context.Context, a *App, dir string) (*control.Client, error)
	// Settings reads a settings file. A missing file is an error only if required is true.
	Settings func(path string, required bool) (config.Layer, error)
	// Tables parses a TOML text, with the same syntax as a settings file. The name is for error
	// messages.
	Tables func(name string, text []byte) (map[string]any, error)
	// EachTable is App.EachTable. It is a field so that queuectl does not link it.
	EachTable func(a *App, name string, in io.Reader, each func(raw []byte, line int) error) error
	// Hash returns a SHA-256 hash, for backups and for the lines of private runs. It is a field so that
	// queuectl does not link the hash library, which would make it a tenth larger.
	Hash func() hash.Hash
	// Help is the function Help. It is a field so that queuectl does not link the help texts.
	Help func(args []string) func(*cobra.Command, []string)
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

// App holds the options that all commands share, the output files and the functions of the Program.
type App struct {
	Socket, Dir    string
	JSON, JSONL    bool
	Quiet          bool
	requireLimits  bool // the value of require_limits in the request; a flag of enqueue and run sets it
	next           bool // the new job starts before the user's other waiting jobs (flag --next)
	raw            bool
	full           bool        // print jobs with their environment
	barShown       atomic.Bool // a progress line is on the screen
	missingIsEmpty bool        // the command only lists things, so it treats a missing queue as an empty list
	ownColumns     bool        // the user chose the table's columns
	in             *os.File
	Out, Err       *os.File
	// frame collects a full screen, which is then written in one piece. nil means that output goes
	// directly to Out.
	frame *bytes.Buffer
	// ownFailure is the exit code for every failure of queuectl itself. If it is 0, the exit code
	// depends on the error.
	ownFailure  int
	Exit        int             // exit code if no error occurred
	lastClient  *control.Client // the client of the most recent request; nil before the first
	client      string          // version of the queuectl that executed this process; "" if none did
	verbs       []Verb          // commands of this program
	private     func(ctx context.Context, a *App, ready func()) error
	openOffline func(ctx context.Context, a *App, dir string) (*control.Client, error)
	offline     *control.Client // client that reads the files of a stopped queue; nil if not used
	args        []string        // arguments of the process, without the program name
	cmd         *cobra.Command  // the command that is running; nil before it starts
	settings    func(path string, required bool) (config.Layer, error)
	tables      func(name string, text []byte) (map[string]any, error)
	eachTable   func(a *App, name string, in io.Reader, with func(raw []byte, line int) error) error
	hash        func() hash.Hash
	help        func(args []string) func(*cobra.Command, []string)
	helpFailed  error // why queuectld, which contains the help, could not be executed
	zone        func(value string) (*time.Location, error)
	join        func(a *App, ctx context.Context, c *control.Client, f *followedJob, interrupts <-chan os.Signal) error
	privateRun  func(a *App, ctx context.Context, f privateFlags, common *queue.Spec, noCwd bool, count int) error
}

// Main executes the command that the process's arguments name, and exits.
func Main(p Program) {
	// Explorer may start this program, for example at logon. Cobra would print a message and exit.
	cobra.MousetrapHelpText = ""
	a := &App{in: os.Stdin, Out: alias(os.Stdout), Err: alias(os.Stderr), client: takeClientVersion(), verbs: withVerbs(p.Verbs), private: p.Private, openOffline: p.Look, settings: p.Settings, tables: p.Tables, eachTable: p.EachTable, hash: p.Hash, help: p.Help, zone: p.Zone, privateRun: p.PrivateRun, join: p.Join}
	// The context is never cancelled. A cancelable one would cost each command a goroutine, and with it
	// a thread.
	os.Exit(a.main(context.Background(), os.Args[1:]))
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
		root.SetArgs(apart(withoutAll(args)))
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
	if a.ownFailure != 0 {
		code = a.ownFailure
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
	case a.zone == nil:
		if _, err := a.daemonPath(); err != nil {
			return false, Usage("%s: this machine has no data for this time zone; install tzdata or set another TZ (queuectld has its own data, but cannot be started: %v)", source, err)
		}
		return true, nil
	}
	if time.Local, err = a.zone(value); err != nil {
		return false, Usage("%s: %v", source, err)
	}
	return false, nil
}

// Root returns the root command with the requested command, or with all commands if the arguments
// name none.
func (a *App) Root(args []string) *cobra.Command {
	var asksVersion bool
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
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && slices.Contains(a.verbNames(), args[0]):
				return Usage("unexpected -- before the command; write: queuectl %s", args[0])
			case len(args) > 0:
				return Usage("unknown command %q%s", args[0], nearVerb(args[0], a.verbNames()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asksVersion {
				return versionVerb(a).RunE(cmd, nil)
			}
			a.missingIsEmpty = true
			return a.status(cmd.Context(), statusOptions{})
		},
	}
	root.Flags().BoolVar(&asksVersion, "version", false, "print the version")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpVerb())
	root.SetFlagErrorFunc(a.flagError)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	f := root.PersistentFlags()
	f.Var(NonEmpty(&a.Socket), "socket", "use the service whose socket is `FILE`")
	f.Var(NonEmpty(&a.Dir), "dir", "use the service whose data is in `DIR`")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	f.BoolVar(&a.JSONL, "jsonl", false, "print one JSON object per line")
	f.BoolVarP(&a.Quiet, "quiet", "q", false, "print only IDs")
	f.BoolVar(&a.raw, "raw", false, "print control characters unchanged")
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if a.help == nil {
			a.helpFailed = a.execDaemon()
			return
		}
		a.help(args)(cmd, words)
	})
	cobra.EnableCommandSorting = false // the help lists commands in the order of the table
	asked := a.askedVerb(args)
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
	if slices.Contains(args, cobra.ShellCompRequestCmd) || slices.Contains(args, cobra.ShellCompNoDescRequestCmd) {
		a.completeFlags(root)
	}
	return root
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
	return &UsageError{text}
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
