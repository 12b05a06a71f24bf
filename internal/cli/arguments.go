package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/internal/present"
)

// requestsHelp reports whether the arguments request help, before the command or directly after it. It
// ignores later arguments, which may belong to the program of a job.
func requestsHelp(args []string) bool {
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

// requestsAllHelp reports whether the arguments request the complete help, with --help --all.
func requestsAllHelp(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--all") && (requestsHelp(args) || slices.Contains(args, "--help") ||
		slices.Contains(args, "-h"))
}

// withoutAllFlag removes --all from arguments that request the complete help (--help --all). Some commands do not have
// the flag --all and would reject it.
func withoutAllFlag(args []string) []string {
	if !requestsAllHelp(args) {
		return args
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--all" })
}

// protectNegativeNumberArg inserts -- before the last argument of "queuectl config set" and "queuectl worker scale" if
// that argument is a negative number. Otherwise cobra would parse the number as a flag.
func protectNegativeNumberArg(args []string) []string {
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

// NewCommand returns a command that calls run with its arguments. checkArgs checks the arguments first; nil means
// that run accepts or checks all arguments. use and short are the fields Use and Short of cobra.Command.
//
// It is not inlined, because that would make queuectl 8 KB larger.
//
//go:noinline
func NewCommand(use, short string, checkArgs cobra.PositionalArgs,
	run func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: checkArgs, RunE: func(cmd *cobra.Command, args []string) error {
		return run(cmd.Context(), args)
	}}
}

// NoArgs checks that the user gives no arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	return checkArgCount(cmd, args, 0, "no arguments")
}

// ExactArgs returns a check that the user gives exactly n arguments. argsText describes these arguments in
// the error, for example "the name of a queue".
func ExactArgs(n int, argsText string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return checkArgCount(cmd, args, n, argsText) }
}

// checkArgCount returns an error if there are not exactly n arguments. It is separate from ExactArgs to keep the
// program small: the compiler inlines ExactArgs into every command, but does not copy this function.
func checkArgCount(cmd *cobra.Command, args []string, n int, argsText string) error {
	if len(args) == n {
		return nil
	}
	text := fmt.Sprintf("%s takes %s; %s given", cmd.CommandPath(), argsText, present.Plural(len(args), "argument"))
	if n == 0 {
		text += hints.UnexpectedArgumentsHint(strings.TrimPrefix(cmd.CommandPath(), "queuectl "), args)
	}
	return fault.Usagef("%s", text)
}

// AtLeastOneArg returns a check that the user gives one or more arguments. argsText describes the arguments in the
// error.
func AtLeastOneArg(argsText string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Usagef("%s takes %s; none given", cmd.CommandPath(), argsText)
		}
		return nil
	}
}

// AtMostOneArg returns a check that the user gives at most one argument. argsText describes the argument in the error.
func AtMostOneArg(argsText string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fault.Usagef("%s takes at most one argument (%s); %d given", cmd.CommandPath(), argsText, len(args))
		}
		return nil
	}
}

// GroupCommand returns a command that only contains subcommands. If the user names an unknown subcommand, the command
// fails with an error that suggests a known one.
func GroupCommand(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use + " COMMAND", Short: short}
	var names []string
	for _, v := range subcommands {
		cmd.AddCommand(v)
		names = append(names, v.Name())
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Usagef("queuectl %s: no command given; use one of: %s", use, strings.Join(names, ", "))
		}
		return fault.Usagef("unknown command %q%s", use+" "+args[0],
			cmp.Or(hints.UnexpectedArgumentsHint(use, args), hints.SubcommandHint(use, args[0], subcommands),
				hints.SimilarWordHint(args[0], names, "use one of: "+strings.Join(names, ", "))))
	}
	cmd.Args = cobra.ArbitraryArgs
	return cmd
}

// helpVerb builds the command `help COMMAND`.
func helpVerb() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, words []string) error {
			asked, rest, err := cmd.Root().Find(words)
			if err != nil || len(rest) > 0 {
				var verbNames []string
				for _, verb := range asked.Commands() {
					verbNames = append(verbNames, verb.Name())
				}
				last := words[len(words)-max(1, len(rest))]
				path := strings.TrimPrefix(strings.TrimPrefix(asked.CommandPath()+" "+last, "queuectl"), " ")
				return fault.Usagef("unknown command %q%s", path, hints.SimilarWordHint(last, verbNames,
					"list all commands with: queuectl --help"))
			}
			asked.InitDefaultHelpFlag()
			return asked.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, words []string, prefix string) (names []cobra.Completion,
			_ cobra.ShellCompDirective) {
			if asked, _, err := cmd.Root().Find(words); err == nil {
				for _, verb := range asked.Commands() {
					if verb.IsAvailableCommand() && strings.HasPrefix(verb.Name(), prefix) {
						names = append(names, cobra.CompletionWithDesc(verb.Name(), verb.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
