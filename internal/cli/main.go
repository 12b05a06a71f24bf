// Package cli is the command line: words to requests, and replies to words. Both programs
// have it. queuectl has it alone, with the runner, and is small; what is heavy it leaves to
// queuectld, which it becomes where a verb needs that.
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

// Version is of both programs; it is set when a release is built.
var Version = "0.1.0-dev"

// Verb is one row of the table of verbs. Only the one that is asked for is built, for
// building all of them costs more than enqueueing a job.
type Verb struct {
	Name  string
	Build func(a *App) *cobra.Command // nil if the other program has it
	Short string                      // what it does, of those
	Alias string                      // another name, "" for none
	Group string                      // the title of the help that it stands under
	AnyTZ bool                        // it reads and prints no local times, so it runs whatever TZ says
}

// Program is what one of the two programs has beside what both have.
type Program struct {
	// Verbs stand in for the rows of the same name, or are added to them.
	Verbs []Verb
	// Private runs a service in this process, in the folder App.Dir, until ctx ends;
	// ready is called once it can be asked. Where this or another function is nil,
	// queuectld does what needs it.
	Private func(ctx context.Context, a *App, ready func()) error
	// PrivateRun is App.RunPrivate, which is not linked into a program that has none.
	PrivateRun func(a *App, ctx context.Context, f privateFlags, common *queue.Spec, noCwd bool, count int) error
	// Join is App.JoinTerminal, the same.
	Join func(a *App, ctx context.Context, c *control.Client, f *followed, interrupts <-chan os.Signal) error
	// Look makes a client that is answered from the files of the folder App.Dir, whose service
	// does not run; an error is fs.ErrNotExist if there is no queue in it.
	Look func(ctx context.Context, a *App, dir string) (*control.Client, error)
	// Settings reads a file of them; a missing one is empty unless it is required.
	Settings func(path string, required bool) (config.Layer, error)
	// Tables reads the text of a file of tables, as Settings does.
	Tables func(name string, text []byte) (map[string]any, error)
	// EachTable is App.EachTable. It is nil in a program that does not link it.
	EachTable func(a *App, name string, in io.Reader, with func(raw []byte, line int) error) error
	// Hash makes a SHA-256, for backups and the lines of private runs: the library would make
	// the client larger by a tenth.
	Hash func() hash.Hash
	// Help is Help, whose texts are not linked into a small program.
	Help func(args []string) func(*cobra.Command, []string)
	// Zone returns the zone that a value of TZ names, if the time package could not read it: the
	// names of zones without their files take 400 KB.
	Zone func(value string) (*time.Location, error)
}

// Titles of the groups of commands in the help.
const (
	ofJobs    = "Jobs:"
	ofLook    = "Status and output:"
	ofControl = "Control:"
	ofQueues  = "Queues and schedules:"
	ofService = "Service:"
	ofInside  = "Other:"
)

// table is the table of verbs. Its rows hold nothing that has to be made before one is asked for.
func table() []Verb {
	return []Verb{
		{Group: ofJobs, Name: "enqueue", Build: enqueueVerb, Alias: "add"},
		{Group: ofJobs, Name: "run", Build: runVerb},
		{Group: ofJobs, Name: "attach", Build: attachVerb},
		{Group: ofJobs, Name: "wait", Build: waitVerb},
		{Group: ofJobs, Name: "progress", Build: progressVerb, AnyTZ: true},
		{Group: ofJobs, Name: "edit", Short: "Change waiting jobs with flags, JSON or $EDITOR"},
		{Group: ofJobs, Name: "retry", Build: retryVerb, Alias: "rerun", AnyTZ: true},
		{Group: ofJobs, Name: "cancel", Build: cancelVerb, AnyTZ: true},
		{Group: ofJobs, Name: "rm", Build: rmVerb, AnyTZ: true},
		{Group: ofJobs, Name: "dequeue", Build: dequeueVerb},

		{Group: ofLook, Name: "status", Build: statusVerb},
		{Group: ofLook, Name: "top", Short: "Show a live screen of all jobs, with keys to control them", Alias: "ui"},
		{Group: ofLook, Name: "list", Build: listVerb, Alias: "ls"},
		{Group: ofLook, Name: "ps", Build: psVerb},
		{Group: ofLook, Name: "show", Build: showVerb},
		{Group: ofLook, Name: "logs", Build: logsVerb, Alias: "log"},
		{Group: ofLook, Name: "why", Build: whyVerb},
		{Group: ofLook, Name: "tree", Short: "Show the dependencies and dependants of a job as a tree"},
		{Group: ofLook, Name: "simulate", Short: "List the jobs that would start if workers were free"},
		{Group: ofLook, Name: "stats", Short: "Show statistics: outcomes, waiting times, run times"},
		{Group: ofLook, Name: "events", Short: "Print past events, or follow new ones with -f"},
		{Group: ofLook, Name: "dlq", Build: dlqVerb},
		{Group: ofLook, Name: "whoami", Short: "Show your identity and rights", AnyTZ: true},

		{Group: ofControl, Name: "worker", Build: workerVerb},
		{Group: ofControl, Name: "hold", Build: holdVerb, AnyTZ: true},
		{Group: ofControl, Name: "release", Build: releaseVerb, AnyTZ: true},
		{Group: ofControl, Name: "pause", Build: pauseVerb},
		{Group: ofControl, Name: "resume", Build: resumeVerb, AnyTZ: true},
		{Group: ofControl, Name: "requeue", Build: requeueVerb, AnyTZ: true},
		{Group: ofControl, Name: "kill", Build: killVerb, AnyTZ: true},
		{Group: ofControl, Name: "drain", Short: "Start no new jobs until drain --off, even after a restart", AnyTZ: true},
		{Group: ofControl, Name: "clear", Build: clearVerb, AnyTZ: true},
		{Group: ofControl, Name: "cleanup", Short: "Remove old finished jobs and their history"},

		{Group: ofQueues, Name: "queue", Short: "Configure, pause and list named queues"},
		{Group: ofQueues, Name: "schedule", Short: "Manage recurring jobs"},
		{Group: ofQueues, Name: "gate", Short: "List locks, rate limits and resources; set shared limits", AnyTZ: true},
		{Group: ofQueues, Name: "hook", Short: "Test hooks and webhooks", AnyTZ: true},

		{Group: ofService, Name: "service", Short: "Install, start, stop and check the service", AnyTZ: true},
		{Group: ofService, Name: "serve", Short: "Run the service in the foreground"},
		{Group: ofService, Name: "node", Short: "List, drain and remove the nodes that share a queue"},
		{Group: ofService, Name: "config", Short: "Show and change the settings of the service", AnyTZ: true},
		{Group: ofService, Name: "reload", Short: "Reload the settings file of the service", AnyTZ: true},
		{Group: ofService, Name: "doctor", Short: "Diagnose problems with the queue, disk, service and runners"},
		{Group: ofService, Name: "backup", Short: "Back up the whole queue to one file while it is in use"},
		{Group: ofService, Name: "restore", Short: "Restore the queue from a backup (stop the service first)"},
		{Group: ofService, Name: "migrate", Short: "Move the queue to another database (stop the service first)"},
		{Group: ofService, Name: "web", Short: "Start, stop and open the web dashboard"},
		{Group: ofService, Name: "metrics", Short: "Print metrics in the Prometheus format", AnyTZ: true},
		{Group: ofService, Name: "mcp", Short: "Offer the queue to coding agents (Model Context Protocol)", AnyTZ: true},

		{Group: ofInside, Name: "completion", Short: "Print a shell completion script", AnyTZ: true},
		{Group: ofInside, Name: "man", Short: "Write the manual pages to a directory", AnyTZ: true},
		{Group: ofInside, Name: "schema", Short: "Print the JSON Schemas of the protocol methods", AnyTZ: true},
		{Group: ofInside, Name: "init", Build: initVerb, AnyTZ: true},
		{Group: ofInside, Name: "version", Build: versionVerb, AnyTZ: true},
	}
}

// App is what every verb has: the flags that all share, and where to speak.
type App struct {
	Socket, Dir   string
	JSON, JSONL   bool
	Quiet         bool
	requireLimits bool // set by a flag of enqueue and run
	next          bool // set by a flag of enqueue
	raw           bool
	full          bool        // jobs are printed with their environment
	progresses    atomic.Bool // progress is shown
	lists         bool        // the verb only shows what there is: that there is nothing is no failure
	chosen        bool        // the columns of the table are those that a person asked for
	in            *os.File
	Out, Err      *os.File
	frame         *bytes.Buffer   // what is being drawn, for a terminal to get in one go; nil for what goes to Out as it comes
	ownFailure    int             // exit code of all of queuectl's own failures, 0 for each its own
	Exit          int             // exit code when nothing failed
	lastClient    *control.Client // that was asked, nil before
	client        string          // the version of the queuectl that became this process, "" if none did
	verbs         []Verb          // of this program
	private       func(ctx context.Context, a *App, ready func()) error
	look          func(ctx context.Context, a *App, dir string) (*control.Client, error)
	looked        *control.Client // from the files of a folder, nil before
	args          []string        // the words of the command line
	cmd           *cobra.Command  // the verb that is running; nil before one runs
	settings      func(path string, required bool) (config.Layer, error)
	tables        func(name string, text []byte) (map[string]any, error)
	eachTable     func(a *App, name string, in io.Reader, with func(raw []byte, line int) error) error
	hash          func() hash.Hash
	help          func(args []string) func(*cobra.Command, []string)
	helpFailed    error // queuectld, which has the help, could not be started
	zone          func(value string) (*time.Location, error)
	join          func(a *App, ctx context.Context, c *control.Client, f *followed, interrupts <-chan os.Signal) error
	privateRun    func(a *App, ctx context.Context, f privateFlags, common *queue.Spec, noCwd bool, count int) error
}

// Main carries out what the words of the process ask for, and ends it.
func Main(p Program) {
	cobra.MousetrapHelpText = "" // else whatever Explorer starts, as at logon, ends with a message
	a := &App{in: os.Stdin, Out: alias(os.Stdout), Err: alias(os.Stderr), client: takeClientVersion(), verbs: with(p.Verbs), private: p.Private, look: p.Look, settings: p.Settings, tables: p.Tables, eachTable: p.EachTable, hash: p.Hash, help: p.Help, zone: p.Zone, privateRun: p.PrivateRun, join: p.Join}
	os.Exit(a.main(context.Background(), os.Args[1:])) // one that never ends spares a verb a goroutine, and so a thread
}

// with are the verbs of both programs and those that one of them has of its own.
func with(own []Verb) []Verb {
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
		err = a.become()
	default:
		root := a.Root(args)
		root.SetArgs(apart(withoutAll(args)))
		var cmd *cobra.Command
		if cmd, err = root.ExecuteContextC(ctx); err == nil {
			err = a.helpFailed
		}
		err = nameFlags(cmd, err)
	}
	if err == nil || closedPipe(err) || errors.Is(err, errOther) {
		return a.Exit
	}
	if own, ok := errors.AsType[*queue.Error](err); ok && own == errNoQueue && a.lists {
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
	for line := range strings.Lines(a.Clean(a.Err, Message(err)+a.skew(err))) { // one an error, if several are told
		fmt.Fprintf(a.Err, "queuectl: %s\n", strings.TrimSuffix(line, "\n"))
	}
	return code
}

// asksHelp reports whether the command line asks for help before its verb or right after it; words further on may be
// those of a job's program.
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

// asksAll reports whether the command line asks for the complete help, with --help --all.
func asksAll(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--all") && (asksHelp(args) || slices.Contains(args, "--help") || slices.Contains(args, "-h"))
}

// withoutAll removes --all from a command line that asks for the complete help. Not every command has that flag.
func withoutAll(args []string) []string {
	if !asksAll(args) {
		return args
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--all" })
}

// readZone makes the zone that TZ names the local one, also where the time package could not read
// it. It reports whether queuectld has to do that. An unknown zone is an error for a verb that reads or
// prints times, because they would be wrong.
func (a *App) readZone(v *Verb, args []string) (leave bool, err error) {
	value, unread := zone.Unread()
	switch {
	case !unread || v != nil && v.AnyTZ || asksHelp(args):
		return false, nil
	case a.zone == nil:
		if _, err := a.other(); err != nil {
			return false, Usage("TZ=%s: this machine has no file for this time zone, and queuectld, which has all time zones built in, cannot be started: %v", value, err)
		}
		return true, nil
	}
	time.Local, err = a.zone(value)
	if _, set := os.LookupEnv("TZ"); err != nil && !set {
		return false, Usage("%v; set TZ to your time zone, such as TZ=UTC, until the file is repaired", err)
	}
	if err != nil {
		return false, Usage("TZ=%s: %v", value, err)
	}
	return false, nil
}

// Root is the command with the one verb that is asked for, or all of them.
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
			a.lists = true
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
			a.helpFailed = a.become()
			return
		}
		a.help(args)(cmd, words)
	})
	cobra.EnableCommandSorting = false // they stand as in their table
	asked := a.askedVerb(args)
	for i := range a.verbs {
		v := &a.verbs[i]
		if v.Group != "" && !root.ContainsGroup(v.Group) {
			root.AddGroup(&cobra.Group{ID: v.Group, Title: v.Group})
		}
		switch {
		case asked != nil && asked != v:
		case v.Build == nil: // to be listed
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

// apart puts -- before a negative number that is a value, not a flag.
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

// askedVerb is the verb that the arguments ask for, ask help about or are to be completed
// for; nil if all are needed.
func (a *App) askedVerb(args []string) *Verb {
	about := false // the word stood there after which a verb comes that is asked about
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--socket" || arg == "--dir":
			i++
		case strings.HasPrefix(arg, "-"):
		case arg == "help" && !about:
			about = true
		case (arg == cobra.ShellCompRequestCmd || arg == cobra.ShellCompNoDescRequestCmd) && !about:
			if about = true; len(args)-i < 3 {
				return nil // the verb is what is completed
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

// UsageError is a mistake in the words themselves.
type UsageError struct{ text string }

// Error is the text.
func (e *UsageError) Error() string { return e.text }

// Usage is such a mistake, told to a person.
func Usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ExitCode is what an error makes the process end with.
func ExitCode(err error) int {
	type chosen interface {
		error
		ExitsWith() int
	}
	if e, ok := errors.AsType[chosen](err); ok { // also of wrong words of serve
		return e.ExitsWith()
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		return 2
	}
	return control.RowOf(err).Exit
}

// Message returns the text of an error for a person: one line. A refusal that does not begin with its subject gets one.
func Message(err error) string {
	text := err.Error()
	if what, _, _ := strings.Cut(text, ";"); errors.Is(err, queue.ErrDenied) && !strings.Contains(what, ":") {
		text = "denied: " + text
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		text = strings.TrimPrefix(text, "queuectl ") // the program's name is printed before the text
	}
	return strings.TrimSpace(text)
}

// Exactly wants n arguments and says what they are.
func Exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return checkCount(cmd, args, n, what) }
}

// checkCount returns an error if there are not n arguments. It is separate from Exactly, because the compiler copies the
// function that Exactly returns into every command.
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

// atLeastOne wants one argument or more.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usage("%s takes %s; none given", cmd.CommandPath(), what)
		}
		return nil
	}
}

// atMostOne wants one argument or none.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return Usage("%s takes at most one argument (%s); %d given", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}

// Group is a verb that only holds others; a word that is none of them is refused.
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
