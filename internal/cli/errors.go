package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// unknownVerbHint returns a hint about an unknown command. It names the command that the user probably meant,
// or says how to list all commands.
func unknownVerbHint(word string, verbNames []string) string {
	return cmp.Or(hints.FirstHintForWord(word, hints.OtherProgramCommandHints), hints.SimilarWordHint(word, verbNames,
		"list all commands with: queuectl --help"))
}

// maxIDsPerRefusal is the highest number of ids in one line about refused jobs.
const maxIDsPerRefusal = 5

// refusalLines returns one line for each reason why jobs were refused. If a reason names a field of the job, the line
// names the flag that the user typed to set the field.
func refusalLines(cmd *cobra.Command, refusals []control.Refusal) (lines []string) {
	ids := map[string][]string{} // ids of the refused jobs, by reason
	var reasons []string
	first := map[string]string{}
	for _, r := range refusals {
		withoutID := strings.NewReplacer("job "+r.JobID+" ", "\x00", `"`+r.JobID+`"`, "\x00", " "+r.JobID+",",
			"\x00").Replace(r.Message + ",")
		reason := string(r.Code) + r.Field + withoutID
		if ids[reason] == nil {
			reasons = append(reasons, reason)
			first[reason] = fault.UserMessage(input.NameFlagsInError(cmd, r.AsError()))
		}
		ids[reason] = append(ids[reason], r.JobID)
	}
	for _, reason := range reasons {
		line, others := first[reason], ids[reason][1:]
		switch n := len(others); {
		case len(refusals) > 1 && !strings.Contains(reason, "\x00"): // the message contains no job id
			line += "; jobs refused: " + firstIDsText(ids[reason])
		case n > 0:
			line += fmt.Sprintf("; the same applies to %d more: %s", n, firstIDsText(others))
		}
		lines = append(lines, line)
	}
	return lines
}

// firstIDsText lists the ids, at most maxIDsPerRefusal of them.
func firstIDsText(ids []string) string {
	text := strings.Join(ids[:min(len(ids), maxIDsPerRefusal)], ", ")
	if len(ids) > maxIDsPerRefusal {
		text += termtext.TextForLocale(" …")
	}
	return text
}

// translateFlagError replaces an error of the flag library (pflag) by an error in queuectl's words.
func (a *App) translateFlagError(cmd *cobra.Command, err error) error {
	var unknownFlag *pflag.NotExistError
	var missingValue *pflag.ValueRequiredError
	var invalidValue *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknownFlag):
		name := "-" + unknownFlag.GetSpecifiedName()
		if unknownFlag.GetSpecifiedShortnames() == "" {
			name = "-" + name
		}
		if words := cmd.Flags().Args(); len(words) > 0 && (cmd.Name() == "enqueue" || cmd.Name() == "run") {
			program := a.programArgs[max(0, slices.Index(a.programArgs, words[0])):]
			return fault.Usagef("unknown flag %[1]s; if it belongs to the program, write -- before the program: "+
				"queuectl %[2]s -- %[3]s", name, cmd.Name(), queue.CommandText("", program))
		}
		table := hints.FlagHintTable(cmd.Name(), cmd.Flags().Lookup("yes") != nil)
		return fault.Usagef("unknown flag %s%s", name,
			cmp.Or(hints.FirstHintForWord(name, table), hints.SimilarWordHint(name, visibleFlagNames(cmd), allFlagsHint(cmd))))
	case errors.As(err, &missingValue):
		return fault.Usagef("--%s: no value given; write it after the flag", missingValue.GetFlag().Name)
	case errors.As(err, &invalidValue):
		return fault.Usagef("--%s: %s", invalidValue.GetFlag().Name, invalidValueText(invalidValue))
	}
	return fault.Usagef("%v", err)
}

// invalidValueText describes why a flag's value is invalid.
func invalidValueText(e *pflag.InvalidValueError) string {
	text := e.GetValue()
	switch e.GetFlag().Value.Type() {
	case "int", "int64":
		if _, err := queue.ParseInteger(text); err != nil {
			return err.Error()
		}
		// queue.ParseInteger accepts the text, but the flag library reads a number like 08 as octal.
		return fmt.Sprintf("%q begins with 0; leave out leading zeros", queue.ClipForMessage(text))
	case "bool":
		return fmt.Sprintf("%q is not true or false; for true, leave out the value", queue.ClipForMessage(text))
	case "stringToString":
		return fmt.Sprintf("%q is not NAME=VALUE; write it like tier=gold", queue.ClipForMessage(text))
	}
	if cause, ok := errors.AsType[*queue.Error](e); ok {
		return cause.Message // without the field, because the message already names the flag
	}
	return errors.Unwrap(e).Error()
}

// maxFlagsInHelp is the highest number of flags that --help always shows. If a command has more flags, --help
// shows a selection, and --help --all shows all.
const maxFlagsInHelp = 30

// allFlagsHint returns a text that says how to list all flags of a command.
func allFlagsHint(cmd *cobra.Command) string {
	hint := "list all flags with: " + cmd.CommandPath() + " --help"
	if len(visibleFlagNames(cmd)) > maxFlagsInHelp {
		hint += " --all"
	}
	return hint
}

// visibleFlagNames returns the flags that are not hidden.
func visibleFlagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}
