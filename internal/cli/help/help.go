// Package help prints what a command does, with its flags by theme and with examples. Only queuectld contains this
// package, because its texts are large.
//
// Start with HelpFunc.
package help

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/termtext"
)

// helpWidthColumns is the width of the help in columns. It fits every terminal.
const helpWidthColumns = 80

// CommonFlagsByCommand returns the flags that the help shows without --all, for each command that has very many flags.
func CommonFlagsByCommand() map[string][]string {
	const timing = " priority at in after"
	const limits = " max-retries timeout env cwd lock unique memory on-dead"
	return map[string][]string{
		"enqueue": strings.Fields("queue batch lines file next" + timing + " after-batch label id" + limits),
		"run": strings.Fields("detach cancel-on-exit private workers lines file tty queue" + timing + " label id " +
			"max-retries timeout env cwd lock unique"),
		"edit": strings.Fields("state where-label where-queue batch user all dry-run yes queue" + timing + " label" +
			limits),
		"schedule add": strings.Fields("tz jitter catch-up overlap replace queue priority label" + limits),
	}
}

// HelpFunc returns the function that prints a command's description, flags by theme, and examples. If a command has
// very many flags, the function prints only the most common flags, unless showAllFlags is true.
func HelpFunc(showAllFlags bool) func(*cobra.Command, []string) {
	return func(cmd *cobra.Command, _ []string) {
		out := new(strings.Builder)
		// TextForLocale replaces signs that the locale cannot show.
		defer func() { io.WriteString(cmd.OutOrStdout(), termtext.TextForLocale(out.String())) }()
		common := CommonFlagsByCommand()[commandName(cmd)]
		if showAllFlags {
			common = nil
		}
		text := LongDescription(cmd)
		if parts := strings.SplitN(text, "\n\n", 3); common != nil && len(parts) == 3 {
			text = parts[0] + "\n\n" + parts[1]
		}
		fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", text, cmd.UseLine())
		for _, alias := range cmd.Aliases {
			fmt.Fprintf(out, "  %s %s …\n", cmd.Parent().CommandPath(), alias)
		}
		if text := Example(cmd); text != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", text)
		}
		printSubcommands(out, cmd)
		own, global := cmd.LocalFlags(), cmd.InheritedFlags()
		if common != nil {
			fmt.Fprintf(out, "\nCommon flags:\n%s", flagLines(selectFlags(own, common)))
			n := CountVisibleFlags(own) + CountVisibleFlags(global)
			fmt.Fprintf(out, "\nAll %d flags and more examples: %s --help --all\n", n, cmd.CommandPath())
			return
		}
		for _, t := range flagGroups(own) {
			fmt.Fprintf(out, "\n%s:\n%s", t.title, flagLines(t.flags))
		}
		if CountVisibleFlags(global) > 0 {
			fmt.Fprintf(out, "\nGlobal flags:\n%s", flagLines(global))
		}
	}
}

// flagLines returns the help lines of flags.
func flagLines(f *pflag.FlagSet) string { return f.FlagUsagesWrapped(helpWidthColumns) }

// commandName returns the words of a command after "queuectl".
func commandName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

// selectFlags returns a set of those flags of f that have the given names, in the order of the names.
func selectFlags(f *pflag.FlagSet, names []string) *pflag.FlagSet {
	some := pflag.NewFlagSet("", pflag.ContinueOnError)
	some.SortFlags = false
	for _, name := range names {
		if flag := f.Lookup(name); flag != nil {
			some.AddFlag(flag)
		}
	}
	return some
}

// CountVisibleFlags counts the flags that are not hidden.
func CountVisibleFlags(f *pflag.FlagSet) (n int) {
	f.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			n++
		}
	})
	return n
}

// longDescriptions contains the long descriptions of the commands of the packages cli and admin. Each description
// follows a line with "== " and the command. They are not in the packages cli and admin, because only queuectld prints
// them, and queuectl is smaller without them.
//
//go:embed descriptions.txt
var longDescriptions string

// LongDescription returns the long description of a command, or its summary if it has none.
func LongDescription(cmd *cobra.Command) string {
	_, text, _ := strings.Cut(longDescriptions, "== "+cmd.CommandPath()+"\n")
	text, _, _ = strings.Cut(text, "\n== ")
	return strings.TrimSpace(cmp.Or(cmd.Long, text, cmd.Short))
}

// printSubcommands lists the subcommands of a command, by group.
func printSubcommands(out io.Writer, cmd *cobra.Command) {
	list := func(title, group string) {
		first := true
		for _, verb := range cmd.Commands() {
			if verb.GroupID != group || !verb.IsAvailableCommand() {
				continue
			}
			if first {
				fmt.Fprintf(out, "\n%s\n", title)
				first = false
			}
			fmt.Fprintf(out, "  %-*s  %s\n", verb.NamePadding(), verb.Name(), verb.Short)
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	list("Commands:", "")
}

// flagGroup is a group of flags in the help.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// flagGroups groups the flags of a command by theme. The first group contains the flags without a theme.
func flagGroups(f *pflag.FlagSet) (groups []flagGroup) {
	titles := []string{"Flags"}
	for _, t := range input.FieldGroups {
		titles = append(titles, t.Title)
	}
	for _, title := range titles {
		t := flagGroup{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
		f.VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden && title == append(flag.Annotations[input.FlagGroupAnnotation], "Flags")[0] {
				t.flags.AddFlag(flag)
			}
		})
		if t.flags.HasFlags() {
			groups = append(groups, t)
		}
	}
	return groups
}

// Example returns the examples of a command. It returns "" if the long description of the command already contains
// examples.
func Example(cmd *cobra.Command) string {
	return Examples()[commandName(cmd)]
}

// Examples returns examples by command, for the commands whose long description contains none.
func Examples() map[string]string {
	all := map[string]string{}
	for block := range strings.SplitSeq(allExampleTexts, "\n\n") {
		name, text, _ := strings.Cut(strings.TrimSuffix(block, "\n"), "\n")
		all[name] = text
	}
	return all
}

// allExampleTexts contains one block for each command: the name of the command, then the lines of its examples.
//
//go:embed examples.txt
var allExampleTexts string
