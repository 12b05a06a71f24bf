// Command queuectl is a durable queue of shell commands: the service that runs
// them, and the words to talk to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

// version is set when a release is built.
var version = "0.1.0-dev"

// verb is one row of the table of verbs. Only the one that is asked for is
// built, for building all of them costs more than enqueueing a job.
type verb struct {
	name  string
	build func(a *app) *cobra.Command
}

var verbs []verb

func init() { // one of them asks for all
	verbs = []verb{
		{"enqueue", enqueueVerb},
		{"run", runVerb},
		{"list", listVerb},
		{"show", showVerb},
		{"logs", logsVerb},
		{"status", statusVerb},
		{"events", eventsVerb},
		{"wait", waitVerb},
		{"whoami", whoamiVerb},
		{"cancel", cancelVerb},
		{"retry", retryVerb},
		{"hold", holdVerb},
		{"release", releaseVerb},
		{"requeue", requeueVerb},
		{"kill", killVerb},
		{"edit", editVerb},
		{"rm", rmVerb},
		{"dequeue", dequeueVerb},
		{"clear", clearVerb},
		{"cleanup", cleanupVerb},
		{"dlq", dlqVerb},
		{"worker", workerVerb},
		{"config", configVerb},
		{"backup", backupVerb},
		{"restore", restoreVerb},
		{"doctor", doctorVerb},
		{"drain", drainVerb},
		{"reload", reloadVerb},
		{"serve", serveVerb},
		{"service", serviceVerb},
		{"completion", completionVerb},
		{"man", manVerb},
		{"schema", schemaVerb},
		{"init", initVerb},
		{"version", versionVerb},
		{"runner", runnerVerb},
	}
}

// app is what every verb has: the flags that all share, and where to speak.
type app struct {
	socket, dir string
	json, jsonl bool
	quiet       bool
	raw         bool
	progresses  atomic.Bool // progress is shown
	chosen      bool        // the columns of the table are those that a person asked for
	in          *os.File
	out, err    *os.File
	ownFailure  int             // exit code of queuectl's own failures, 0 for the table's
	exit        int             // exit code when nothing failed
	asked       *control.Client // the last one, nil before
}

func main() {
	a := &app{in: os.Stdin, out: alias(os.Stdout), err: alias(os.Stderr)}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	os.Exit(a.main(ctx, os.Args[1:]))
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.root(args)
	root.SetArgs(apart(args))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.exit
	}
	if closedPipe(err) {
		return a.exit
	}
	code := exitCode(err)
	if a.ownFailure != 0 && code >= 1 && code <= 5 {
		code = a.ownFailure
	}
	for line := range strings.Lines(a.clean(a.err, message(err)+a.skew(err))) { // one an error, if several are told
		fmt.Fprintf(a.err, "queuectl: %s\n", strings.TrimSuffix(line, "\n"))
	}
	return code
}

// root is the command with the one verb that is asked for, or all of them.
func (a *app) root(args []string) *cobra.Command {
	var asksVersion bool
	root := &cobra.Command{
		Use:           "queuectl",
		Short:         "A durable queue of shell commands",
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: notEmpty,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no verb %q%s", args[0], near(args[0], verbNames(), "queuectl --help lists them"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asksVersion {
				return versionVerb(a).RunE(cmd, nil)
			}
			return a.status(cmd.Context(), false)
		},
	}
	root.Flags().BoolVar(&asksVersion, "version", false, "print the version")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpVerb())
	root.SetFlagErrorFunc(flagError)
	root.SetOut(a.out)
	root.SetErr(a.err)
	f := root.PersistentFlags()
	f.Var(filled{&a.socket}, "socket", "`PATH` of the service's socket")
	f.Var(filled{&a.dir}, "dir", "`FOLDER` of the service")
	f.BoolVar(&a.json, "json", false, "print JSON")
	f.BoolVar(&a.jsonl, "jsonl", false, "print JSON lines")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print ids only")
	f.BoolVar(&a.raw, "raw", false, "print control characters as they are")
	asked := askedVerb(args)
	for _, v := range verbs {
		if asked == "" || asked == v.name {
			root.AddCommand(v.build(a))
		}
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

// askedVerb is the verb among the arguments, "" if all are needed.
func askedVerb(args []string) string {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--socket" || arg == "--dir":
			i++
		case strings.HasPrefix(arg, "-"):
		default:
			for _, v := range verbs {
				if v.name == arg {
					return arg
				}
			}
			return ""
		}
	}
	return ""
}

func verbNames() []string {
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
	}
	return names
}

// usageError is a mistake in the words themselves.
type usageError struct{ text string }

// Error is the text.
func (e *usageError) Error() string { return e.text }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exitCode is what an error makes the process end with.
func exitCode(err error) int {
	var wrong *usageError
	var service *service.ExitError
	var e *queue.Error
	switch {
	case errors.As(err, &service): // also of wrong words of serve
		return service.Code
	case errors.As(err, &wrong):
		return 2
	case errors.As(err, &e):
		return control.RowOf(err).Exit
	}
	return 1
}

// message is what an error tells a person: one line.
func message(err error) string {
	text := err.Error()
	var e *queue.Error
	if errors.As(err, &e) && e.Code == queue.CodeDenied && !strings.Contains(text, ":") {
		text = "denied: " + text
	}
	return strings.TrimSpace(text)
}

// exactly wants n arguments and says what they are.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%s takes %s; %d given", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}

// atLeastOne wants one argument or more.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("%s takes %s; none given", cmd.CommandPath(), what)
		}
		return nil
	}
}

// atMostOne wants one argument or none.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage("%s takes %s or nothing; %d given", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}

// group is a verb that only holds others; a word that is none of them is refused.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	var names []string
	for _, v := range verbs {
		cmd.AddCommand(v)
		names = append(names, v.Name())
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("queuectl %s needs one of: %s", use, strings.Join(names, ", "))
		}
		return usage("queuectl %s has no %q%s", use, args[0], near(args[0], names, "it has: "+strings.Join(names, ", ")))
	}
	cmd.Args = cobra.ArbitraryArgs
	return cmd
}

func versionVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.json || a.jsonl {
				return a.printJSON(map[string]any{"version": version, "protocol": control.Protocol})
			}
			return a.println("queuectl " + version)
		},
	}
}
