package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/help"
	"github.com/queuectl/queuectl/queue"
)

func manVerb(a *app) *cobra.Command {
	markdown := false
	cmd := &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages to a directory",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := a.Root(nil) // nil selects all commands
			root.InitDefaultHelpFlag()
			if markdown {
				return a.Println(strings.TrimSpace(chapter(root)))
			}
			if err := cli.ExactArgs(1, "a directory")(cmd, args); err != nil {
				return err
			}
			date, err := pageDate(time.Now())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return files.UnwritableError("man", args[0], err)
			}
			return files.UnwritableError("man", args[0], writePages(root, args[0], date))
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print all manual pages as one page of Markdown instead")
	return cmd
}

// chapter returns the manual of a command and its subcommands in Markdown.
// See docs/decisions/0092.
func chapter(cmd *cobra.Command) string {
	var b strings.Builder
	if cmd.HasParent() {
		paragraphs := strings.Split(help.LongDescription(cmd), "\n\n")
		if paragraphs[0] == cmd.Short {
			paragraphs[0] += "."
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n    %s\n", cmd.CommandPath(), oneLine(paragraphs[0]), cmd.UseLine())
		for _, text := range paragraphs[1:] {
			if strings.HasPrefix(text, "  ") {
				b.WriteString("\n" + indented(text) + "\n")
			} else {
				b.WriteString("\n" + oneLine(text) + "\n")
			}
		}
		if text := help.Example(cmd); text != "" {
			b.WriteString("\n" + indented(text) + "\n")
		}
	}
	flags := cmd.NonInheritedFlags()
	if !cmd.HasParent() {
		flags = cmd.PersistentFlags()
		b.WriteString("Global flags:\n")
	}
	for i, f := range visibleFlags(flags) {
		if i == 0 {
			b.WriteString("\n| flag | meaning |\n|---|---|\n")
		}
		text, doc := flagText(f)
		fmt.Fprintf(&b, "| `%s` | %s |\n", text, strings.ReplaceAll(doc, "|", "\\|"))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			b.WriteString(chapter(sub))
		}
	}
	return b.String()
}

// oneLine joins the lines of a paragraph.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }

// indented returns a text as a block of code in Markdown.
func indented(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }

// visibleFlags returns the flags that the help shows.
func visibleFlags(flags *pflag.FlagSet) (list []*pflag.Flag) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			list = append(list, f)
		}
	})
	return list
}

// flagText returns a flag with the placeholder for its value, and the flag's description.
func flagText(f *pflag.Flag) (text, doc string) {
	text = "--" + f.Name
	if f.Shorthand != "" {
		text = "-" + f.Shorthand + ", " + text
	}
	kind, doc := pflag.UnquoteUsage(f)
	if kind != "" {
		text += " " + kind
	}
	return text, doc
}

// writePages writes the manual page of a command and of each of its subcommands. It does not use cobra's page
// writer, whose imports would make each start of the program a tenth slower.
func writePages(cmd *cobra.Command, dir, date string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(cmd, name, date)), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writePages(sub, dir, date); err != nil {
			return err
		}
	}
	return nil
}

// pageDate returns the date that the manual pages show. A reproducible build sets SOURCE_DATE_EPOCH to the
// seconds since 1970, as defined by reproducible-builds.org. Otherwise the date is today's.
func pageDate(now time.Time) (string, error) {
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", queue.Invalid("SOURCE_DATE_EPOCH", "%q is not a number of seconds since 1970", text)
		}
		now = time.Unix(seconds, 0)
	}
	return now.UTC().Format(time.DateOnly), nil
}

// manPage returns the manual page of a command in the format of man(7).
func manPage(cmd *cobra.Command, name, date string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %s \"queuectl %s\" \"queuectl\"\n", strings.ToUpper(name), date, cli.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escapeRoff(name), escapeRoff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", escapeRoff(cmd.UseLine()))
	if long := help.LongDescription(cmd); long != cmd.Short {
		intro, rest, _ := strings.Cut(long, "\n\n")
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n.PP\n.nf\n%s\n.fi\n", escapeRoff(intro), escapeRoff(rest))
	}
	if text := help.Example(cmd); text != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", escapeRoff(text))
	}
	options := func(title string, flags *pflag.FlagSet) {
		for i, f := range visibleFlags(flags) {
			if i == 0 {
				fmt.Fprintf(&b, ".SH %s\n", title)
			}
			text, doc := flagText(f)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escapeRoff(text), escapeRoff(doc))
		}
	}
	options("OPTIONS", cmd.NonInheritedFlags())
	options("GLOBAL OPTIONS", cmd.InheritedFlags())
	if len(cmd.Commands()) > 0 {
		b.WriteString(".SH COMMANDS\n")
	}
	var others []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escapeRoff(sub.Name()), escapeRoff(sub.Short))
			others = append(others, name+"-"+sub.Name())
		}
	}
	if !cmd.HasParent() {
		b.WriteString(groupsAndFiles)
		others = append(others, "systemctl", "journalctl")
	}
	if cmd.HasParent() {
		others = append([]string{strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")}, others...)
	}
	for i, other := range others {
		others[i] = ".BR " + escapeRoff(other) + " (1)"
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(others, " ,\n"))
	return b.String()
}

// groupsAndFiles is the section of the first manual page about groups and files.
//
//go:embed man_groups_and_files.roff
var groupsAndFiles string

// escapeRoff escapes text for man(7).
func escapeRoff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
