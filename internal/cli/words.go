package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/queue"
)

// near returns a hint that names the known word that is similar to the given one. If no known word
// is similar, it returns the parameter otherwise.
func near(word string, known []string, otherwise string) string {
	return cmp.Or(typoOf(word, known), "; "+otherwise)
}

// flagError returns the error for a wrong flag, in queuectl's wording instead of the flag
// library's.
func (a *App) flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := "-" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() == "" {
			name = "-" + name
		}
		if words := cmd.Flags().Args(); len(words) > 0 && (cmd.Name() == "enqueue" || cmd.Name() == "run") {
			program := a.args[max(0, slices.Index(a.args, words[0])):]
			return Usage("unknown flag %[1]s; if it belongs to the program, write -- before the program: queuectl %[2]s -- %[3]s", name, cmd.Name(), queue.CommandText("", program))
		}
		return Usage("unknown flag %s%s", name, cmp.Or(hintAt(name, flagsElsewhere(cmd.Name())), near(name, flagsOf(cmd), allFlagsHint(cmd))))
	case errors.As(err, &bare):
		return Usage("--%s: no value given; write it after the flag", bare.GetFlag().Name)
	case errors.As(err, &wrong):
		return Usage("--%s: %s", wrong.GetFlag().Name, wrongValue(wrong))
	}
	return Usage("%v", err)
}

// wrongValue describes why a flag's value is invalid.
func wrongValue(e *pflag.InvalidValueError) string {
	text := e.GetValue()
	switch e.GetFlag().Value.Type() {
	case "int", "int64":
		if _, err := queue.ReadInteger(text); err != nil {
			return err.Error()
		}
		// The flag library accepts numbers like 0x10 or 1_000, but queue.ReadInteger does not.
		return fmt.Sprintf("%q is not a whole number; use digits only, for example 10", queue.Clip(text))
	case "bool":
		return fmt.Sprintf("%q is not true or false; for true, leave out the value", queue.Clip(text))
	case "stringToString":
		return fmt.Sprintf("%q is not NAME=VALUE; write it like tier=gold", queue.Clip(text))
	}
	var fault *queue.Error
	if errors.As(e, &fault) {
		return fault.Message // the field is omitted, because the message already names the flag
	}
	return errors.Unwrap(e).Error()
}

// maxPlainHelp is the highest number of flags that --help shows without --all. If a command has
// more, --help shows a selection.
const maxPlainHelp = 30

// allFlagsHint returns how to list all flags of a command.
func allFlagsHint(cmd *cobra.Command) string {
	hint := "list all flags with: " + cmd.CommandPath() + " --help"
	if len(flagsOf(cmd)) > maxPlainHelp {
		hint += " --all"
	}
	return hint
}

// flagsOf returns the flags that are not hidden.
func flagsOf(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// nonEmpty is a flag value that must not be empty. An empty value usually comes from a script's
// variable that is not set. Without this check, the flag would silently have no effect.
type nonEmpty struct{ text *string }

// NonEmpty returns the value of a flag whose text must not be empty.
func NonEmpty(text *string) pflag.Value { return nonEmpty{text} }

// String returns the text.
func (f nonEmpty) String() string {
	if f.text == nil {
		return ""
	}
	return *f.text
}

// Type returns the metavar of the value, unless the description of the flag contains another one.
func (f nonEmpty) Type() string { return "NAME" }

// Set stores the text.
func (f nonEmpty) Set(text string) error {
	if text == "" {
		return errEmpty
	}
	*f.text = text
	return nil
}

// onlyOnce is a nonEmpty that can be given only once. With two values, the first would have
// no effect.
type onlyOnce struct{ nonEmpty }

// givenOnce returns the value of a flag whose text must not be empty and can be given only once.
func givenOnce(text *string) pflag.Value { return onlyOnce{nonEmpty{text}} }

// Set stores the text. It returns an error if the flag was already given with a different text.
func (s onlyOnce) Set(text string) error {
	if was := *s.text; was != "" && was != text {
		return fmt.Errorf("is given twice, as %q and %q; give it once", was, text)
	}
	return s.nonEmpty.Set(text)
}

var errEmpty = errors.New("is empty; give a value, or leave the flag out")

// durationVar adds a flag with a duration, which it passes to take.
func durationVar(f *pflag.FlagSet, name, doc string, take func(time.Duration)) {
	f.Func(name, doc, func(text string) error {
		d, err := parseSpan(text)
		take(d)
		return err
	})
}

// checkLists rejects flags with an empty list as their value. Such a flag would silently have no
// effect, for example when a script's variable is not set.
func checkLists(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "[]" {
			err = Usage("--%s: %v", f.Name, errEmpty)
		}
	})
	return err
}

// labelsVar adds a flag for labels, like --label.
func labelsVar(f *pflag.FlagSet, m *map[string]string, name, doc string) {
	f.StringToStringVar(m, name, nil, doc)
	f.Lookup(name).DefValue = "" // an empty DefValue makes the help show no default
}

// helpVerb builds the command `help COMMAND`.
func helpVerb() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, words []string) error {
			asked, rest, err := cmd.Root().Find(words)
			if err != nil || len(rest) > 0 {
				var known []string
				for _, verb := range asked.Commands() {
					known = append(known, verb.Name())
				}
				last := words[len(words)-max(1, len(rest))]
				path := strings.TrimPrefix(strings.TrimPrefix(asked.CommandPath()+" "+last, "queuectl"), " ")
				return Usage("unknown command %q%s", path, near(last, known, "list all commands with: queuectl --help"))
			}
			asked.InitDefaultHelpFlag()
			return asked.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, words []string, prefix string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
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
