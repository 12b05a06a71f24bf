package admin

import (
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/queue"
)

// hasNoOwnFlags reports whether a command line contains none of the command's own flags.
func hasNoOwnFlags(cmd *cobra.Command) bool {
	nothing := true
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { nothing = nothing && !f.Changed })
	return nothing
}

// addOptionalFlag adds an optional flag. If the user sets the flag, *to points to its value. Otherwise *to stays
// nil.
func addOptionalFlag[T any](f *pflag.FlagSet, to **T, parse func(string) (T, error), name, usage string) {
	f.Func(name, usage, func(text string) error {
		value, err := parse(text)
		*to = &value
		return err
	})
}

func parseInt(text string) (int, error) {
	n, err := queue.ParseInteger(text)
	return int(n), err
}

func parseNonEmpty(text string) (string, error) {
	if text == "" {
		return "", fault.ErrEmpty
	}
	return text, nil
}

func parseRetentionAge(text string) (age control.RetentionAge, err error) {
	if text != "never" && text != "default" {
		if short, ok := when.NormalizeDuration(text); ok {
			text = short
		}
	}
	raw, _ := json.Marshal(text) // json.Marshal cannot fail for a string
	return age, age.UnmarshalJSON(raw)
}
