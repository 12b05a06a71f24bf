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
			root := a.RootCommand(nil) // nil selects all commands
			root.InitDefaultHelpFlag()
			if markdown {
				return a.Println(strings.TrimSpace(markdownManual(root)))
			}
			if err := cli.ExactArgs(1, "a directory")(cmd, args); err != nil {
				return err
			}
			date, err := manPageDate(time.Now())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return files.UnwritableError("man", args[0], err)
			}
			return files.UnwritableError("man", args[0], writeManPages(root, args[0], date))
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print all manual pages as one page of Markdown instead")
	return cmd
}

// markdownManual returns the manual of a command and its subcommands in Markdown.
// See docs/decisions/0092.
func markdownManual(cmd *cobra.Command) string {
	var b strings.Builder
	if cmd.HasParent() {
		paragraphs := strings.Split(help.LongDescription(cmd), "\n\n")
		if paragraphs[0] == cmd.Short {
			paragraphs[0] += "."
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n    %s\n", cmd.CommandPath(), joinLines(paragraphs[0]), cmd.UseLine())
		for _, text := range paragraphs[1:] {
			format := joinLines
			if strings.HasPrefix(text, "  ") {
				format = indentCode
			}
			b.WriteString("\n" + format(text) + "\n")
		}
		if text := help.Example(cmd); text != "" {
			b.WriteString("\n" + indentCode(text) + "\n")
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
		text, doc := describeFlag(f)
		fmt.Fprintf(&b, "| `%s` | %s |\n", text, strings.ReplaceAll(doc, "|", "\\|"))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			b.WriteString(markdownManual(sub))
		}
	}
	return b.String()
}

// joinLines joins the lines of a paragraph.
func joinLines(text string) string { return strings.ReplaceAll(text, "\n", " ") }

// indentCode returns a text as a block of code in Markdown.
func indentCode(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }

// visibleFlags returns the flags that the help shows.
func visibleFlags(flags *pflag.FlagSet) (shownFlags []*pflag.Flag) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			shownFlags = append(shownFlags, f)
		}
	})
	return shownFlags
}

// describeFlag returns a flag with the placeholder for its value, and the flag's description.
func describeFlag(f *pflag.Flag) (syntax, description string) {
	syntax = "--" + f.Name
	if f.Shorthand != "" {
		syntax = "-" + f.Shorthand + ", " + syntax
	}
	kind, description := pflag.UnquoteUsage(f)
	if kind != "" {
		syntax += " " + kind
	}
	return syntax, description
}

// writeManPages writes the manual page of a command and of each of its subcommands. It does not use the page
// writer of cobra, because the packages that the page writer imports would make each start of queuectld 10 %
// slower.
func writeManPages(cmd *cobra.Command, dir, date string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(renderManPage(cmd, name, date)), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writeManPages(sub, dir, date); err != nil {
			return err
		}
	}
	return nil
}

// manPageDate returns the date that the manual pages show. A reproducible build sets SOURCE_DATE_EPOCH to the
// seconds since 1970, as defined by reproducible-builds.org. Otherwise the date is today's.
func manPageDate(now time.Time) (string, error) {
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", queue.InvalidFieldError("SOURCE_DATE_EPOCH", "%q is not a number of seconds since 1970", text)
		}
		now = time.Unix(seconds, 0)
	}
	return now.UTC().Format(time.DateOnly), nil
}

// renderManPage returns the manual page of a command in the format of man(7).
func renderManPage(cmd *cobra.Command, pageName, date string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %s \"queuectl %s\" \"queuectl\"\n", strings.ToUpper(pageName), date, cli.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escapeRoff(pageName), escapeRoff(cmd.Short))
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
			text, doc := describeFlag(f)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escapeRoff(text), escapeRoff(doc))
		}
	}
	options("OPTIONS", cmd.NonInheritedFlags())
	options("GLOBAL OPTIONS", cmd.InheritedFlags())
	if len(cmd.Commands()) > 0 {
		b.WriteString(".SH COMMANDS\n")
	}
	var seeAlso []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escapeRoff(sub.Name()), escapeRoff(sub.Short))
			seeAlso = append(seeAlso, pageName+"-"+sub.Name())
		}
	}
	if !cmd.HasParent() {
		b.WriteString(groupsAndFilesSection)
		seeAlso = append(seeAlso, "systemctl", "journalctl")
	} else {
		seeAlso = append([]string{strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")}, seeAlso...)
	}
	for i, other := range seeAlso {
		seeAlso[i] = ".BR " + escapeRoff(other) + " (1)"
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(seeAlso, " ,\n"))
	return b.String()
}

// groupsAndFilesSection is the section about groups and files in the manual page of queuectl itself.
//
//go:embed man_groups_and_files.roff
var groupsAndFilesSection string

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
