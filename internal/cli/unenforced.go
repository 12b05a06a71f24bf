package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// requireFlag adds the flag --require-limits, which rejects jobs whose limits cannot be enforced.
func (a *App) requireFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.requireLimits, "require-limits", false, "reject jobs with limits that this machine cannot enforce, instead of warning")
	f.Lookup("require-limits").Annotations = map[string][]string{themeOf: {themeLimits}}
}

// printNotes prints the notes of the service about new jobs.
func printNotes(o *Output, cmd *cobra.Command, notes []string) {
	if o.Quiet || o.Structured() {
		return
	}
	for _, note := range notes {
		if field, text, found := strings.Cut(note, ": "); found && flagsByField(cmd)[field] != "" {
			note = flagsByField(cmd)[field] + ": " + text
		}
		fmt.Fprintln(o.Err, "queuectl: "+o.Clean(o.Err, note))
	}
}

// attempts describes how many attempts new jobs have, or returns "" if that is one.
func attempts(most int) string {
	if most < 2 {
		return ""
	}
	return fmt.Sprintf("; up to %d attempts", most)
}

// warnUnenforced prints a warning about limits that the machine does not enforce.
func warnUnenforced(o *Output, names []string) {
	if len(names) == 0 {
		return
	}
	var parts []string
	if slices.Contains(names, "memory") {
		parts = append(parts, "the memory limit applies to each process of a job separately")
	}
	none := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "memory" })
	switch len(none) {
	case 0:
	case 1:
		parts = append(parts, "the limit "+none[0]+" is not enforced")
	default:
		parts = append(parts, "the limits "+strings.Join(none, " and ")+" are not enforced")
	}
	fmt.Fprintf(o.Err, "queuectl: warning: %s on this machine; see: queuectl doctor\n", o.Clean(o.Err, strings.Join(parts, ", and ")))
}
