package admin

import (
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/queue"
)

// setsNothing reports whether a command line contains none of the command's own flags.
func setsNothing(cmd *cobra.Command) bool {
	nothing := true
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { nothing = nothing && !f.Changed })
	return nothing
}

// given adds an optional flag. If the user sets the flag, *to points to its value. Otherwise *to stays
// nil.
func given[T any](f *pflag.FlagSet, to **T, parse func(string) (T, error), name, usage string) {
	f.Func(name, usage, func(text string) error {
		value, err := parse(text)
		*to = &value
		return err
	})
}

func readInt(text string) (int, error) {
	n, err := queue.ReadInteger(text)
	return int(n), err
}

func retentionAge(text string) (age control.Age, err error) {
	if text != "never" && text != "default" {
		if short, ok := when.ShortSpan(text); ok {
			text = short
		}
	}
	raw, _ := json.Marshal(text) // json.Marshal cannot fail for a string
	return age, age.UnmarshalJSON(raw)
}
