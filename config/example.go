package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Example is the text of queuectl.toml.example: every setting with its default.
func Example() string {
	var b strings.Builder
	b.WriteString("# Settings of queuectl. Every key stands here with its default; a file needs\n" +
		"# only those that differ. Durations are text like \"90s\" or \"1h30m\", or seconds;\n" +
		"# sizes are text like \"64K\" or \"1MiB\".\n")
	for i := range Keys {
		k := &Keys[i]
		fmt.Fprintf(&b, "\n# %s\n", k.Doc)
		if others := k.Spellings(); len(others) > 0 {
			fmt.Fprintf(&b, "# (also: %s)\n", strings.Join(others, ", "))
		}
		value := k.Default
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "%s = %s\n", k.Name, value)
	}
	return b.String()
}
