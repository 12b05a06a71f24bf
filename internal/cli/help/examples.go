package help

import (
	_ "embed"
	"strings"

	"github.com/spf13/cobra"
)

// Example returns examples of a command, or "" if the command's description contains examples.
func Example(cmd *cobra.Command) string {
	return Examples()[commandName(cmd)]
}

// Examples returns the examples of the commands whose description contains none.
func Examples() map[string]string {
	all := map[string]string{}
	for block := range strings.SplitSeq(exampleText, "\n\n") {
		name, text, _ := strings.Cut(strings.TrimSuffix(block, "\n"), "\n")
		all[name] = text
	}
	return all
}

// exampleText contains the name of each command and the lines of its examples.
//
//go:embed examples.txt
var exampleText string
