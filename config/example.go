package config

import (
	"fmt"
	"strconv"
	"strings"
)

// headings say what stands in each table.
var headings = map[string]string{
	"traces": "# Traces of OpenTelemetry: a span for each attempt, in the trace of whoever enqueued its job.\n",
	"web":    "# The page. queuectl web start opens it until the service ends, queuectl web open gives a link to it.\n",
	"hooks":  "# What is run for the sake of all jobs; a job's own hooks are run beside it.\n",
	accessTable: "# Who may do what: lists of users (\"alice\", \"1001\") and groups (\"@staff\", \"@1005\"),\n" +
		"# like [\"alice\", \"@staff\"]. Each right includes those before it.\n",
}

// Example is the text of queuectl.toml.example: every setting with its default.
func Example() string {
	var b strings.Builder
	b.WriteString("# Settings of queuectl. Every key stands here with its default; a file needs\n" +
		"# only those that differ. Durations are text like \"90s\" or \"1h30m\", or seconds;\n" +
		"# sizes are text like \"64K\" or \"1MiB\".\n")
	in := ""
	for i := range Keys() {
		k := &Keys()[i]
		name := k.Name
		if table, key, dotted := strings.Cut(name, "."); dotted {
			if table != in {
				fmt.Fprintf(&b, "\n%s[%s]\n", headings[table], table)
				in = table
			}
			name = key
		}
		fmt.Fprintf(&b, "\n# %s\n", k.Doc)
		if others := k.Spellings(); len(others) > 0 {
			fmt.Fprintf(&b, "# (also: %s)\n", strings.Join(others, ", "))
		}
		value := k.Default
		_, err := strconv.ParseFloat(value, 64)
		switch {
		case value == "true", value == "false":
		case isList(k.Name) && value == nobody:
			value = "[]"
		case err != nil || len(value) > 1 && value[0] == '0': // an octal one is text
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "%s = %s\n", name, value)
	}
	return b.String()
}
