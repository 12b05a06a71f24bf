package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manVerb(a *app) *cobra.Command {
	markdown := false
	cmd := &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a folder",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := a.root(nil) // all verbs
			root.InitDefaultHelpFlag()
			if markdown {
				return a.println(strings.TrimSpace(chapter(root)))
			}
			if err := exactly(1, "a folder that exists")(cmd, args); err != nil {
				return err
			}
			return unwritable("man", args[0], writePages(root, args[0]))
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print all of it as one page of Markdown instead")
	return cmd
}

// chapter is a verb, and those below it, in Markdown.
func chapter(cmd *cobra.Command) string {
	var b strings.Builder
	if cmd.HasParent() {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n    %s\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
		if _, rest, _ := strings.Cut(cmd.Long, "\n\n"); rest != "" {
			for line := range strings.Lines("\n" + rest + "\n") {
				b.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
			}
		}
	}
	flags := cmd.NonInheritedFlags()
	if !cmd.HasParent() {
		flags = cmd.PersistentFlags()
		b.WriteString("Flags of all verbs:\n")
	}
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			b.WriteString("\n| flag | meaning |\n|---|---|\n")
			first = false
		}
		text, doc := flagText(f)
		fmt.Fprintf(&b, "| `%s` | %s |\n", text, strings.ReplaceAll(doc, "|", "\\|"))
	})
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			b.WriteString(chapter(sub))
		}
	}
	return b.String()
}

// flagText is a flag as it is typed, and what it means.
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

// writePages writes a page for a verb and those below it. cobra's own writer of pages
// would make each start of the program a tenth slower, by what it is made of.
func writePages(cmd *cobra.Command, dir string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(page(cmd, name)), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writePages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// page is the manual page of a verb, as man(7) wants it.
func page(cmd *cobra.Command, name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"queuectl %s\" \"queuectl\"\n", strings.ToUpper(name), version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	if cmd.Long != "" {
		intro, rest, _ := strings.Cut(cmd.Long, "\n\n")
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n.PP\n.nf\n%s\n.fi\n", roff(intro), roff(rest))
	}
	options := func(title string, flags *pflag.FlagSet) {
		first := true
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			if first {
				fmt.Fprintf(&b, ".SH %s\n", title)
				first = false
			}
			text, doc := flagText(f)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(text), roff(doc))
		})
	}
	options("OPTIONS", cmd.NonInheritedFlags())
	options("OPTIONS OF ALL VERBS", cmd.InheritedFlags())
	if len(cmd.Commands()) > 0 {
		b.WriteString(".SH VERBS\n")
	}
	var others []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
			others = append(others, name+"-"+sub.Name())
		}
	}
	if cmd.HasParent() {
		others = append([]string{strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")}, others...)
	}
	for i, other := range others {
		others[i] = ".BR " + roff(other) + " (1)"
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(others, " ,\n"))
	return b.String()
}

// roff is text that means itself in a page.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
