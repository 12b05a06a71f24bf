package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// requireFlag adds the flag --require-limits, which rejects jobs whose limits cannot be enforced.
func (a *App) requireFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.requireLimits, "require-limits", false, "reject jobs with limits that this machine cannot enforce, instead of warning")
	f.Lookup("require-limits").Annotations = map[string][]string{themeOf: {themeLimits}}
}

// printNotes prints the notes of the service about new jobs.
func (a *App) printNotes(notes []string) {
	if a.Quiet || a.Structured() {
		return
	}
	for _, note := range notes {
		if field, text, found := strings.Cut(note, ": "); found && flagsByField(a.cmd)[field] != "" {
			note = flagsByField(a.cmd)[field] + ": " + text
		}
		fmt.Fprintln(a.Err, "queuectl: "+a.Clean(a.Err, note))
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
func (a *App) warnUnenforced(names []string) {
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
	fmt.Fprintf(a.Err, "queuectl: warning: %s on this machine; see: queuectl doctor\n", a.Clean(a.Err, strings.Join(parts, ", and ")))
}
