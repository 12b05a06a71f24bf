package admin

import (
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/when"
)

// hasNoOwnFlags reports whether a command line contains none of the command's own flags.
func hasNoOwnFlags(cmd *cobra.Command) bool {
	nothing := true
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { nothing = nothing && !f.Changed })
	return nothing
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
