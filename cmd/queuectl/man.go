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
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a folder", Args: exactly(1, "a folder that exists"),
		RunE: func(_ *cobra.Command, args []string) error {
			root := a.root(nil) // all verbs
			root.InitDefaultHelpFlag()
			return writePages(root, args[0])
		},
	}
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
			text := "--" + f.Name
			if f.Shorthand != "" {
				text = "-" + f.Shorthand + ", " + text
			}
			kind, doc := pflag.UnquoteUsage(f)
			if kind != "" {
				text += " " + kind
			}
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
