package admin

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/help"
	"github.com/queuectl/queuectl/queue"
)

// allAdminVerbs lists the commands that package admin builds.
func allAdminVerbs() []cli.Verb {
	return []cli.Verb{
		{Name: "edit", BuildCommand: EditVerb}, {Name: "tree", BuildCommand: TreeVerb},
		{Name: "simulate", BuildCommand: SimulateVerb},
		{Name: "stats", BuildCommand: StatsVerb},
		{Name: "events", BuildCommand: EventsVerb}, {Name: "whoami", BuildCommand: WhoamiVerb},
		{Name: "drain", BuildCommand: DrainVerb},
		{Name: "cleanup", BuildCommand: CleanupVerb},
		{Name: "queue", BuildCommand: QueueVerb}, {Name: "schedule", BuildCommand: ScheduleVerb},
		{Name: "gate", BuildCommand: GateVerb},
		{Name: "hook", BuildCommand: HookVerb},
		{Name: "node", BuildCommand: NodeVerb}, {Name: "config", BuildCommand: ConfigVerb},
		{Name: "reload", BuildCommand: ReloadVerb},
		{Name: "backup", BuildCommand: BackupVerb},
		{Name: "web", BuildCommand: WebVerb}, {Name: "completion", BuildCommand: CompletionVerb},
		{Name: "schema", BuildCommand: SchemaVerb},
	}
}

// helpOutput executes a command line that requests help, and returns the output.
func helpOutput(t *testing.T, args ...string) string {
	t.Helper()
	a := cli.NewApp(cli.Program{Verbs: allAdminVerbs(), HelpFunc: help.HelpFunc}, nil, nil, nil)
	root := a.RootCommand(args)
	var output bytes.Buffer
	root.SetOut(&output)
	if err := root.Execute(); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return output.String()
}

// countFlagsInHelp counts the flags that a help text lists.
func countFlagsInHelp(helpText string) (n int) {
	for line := range strings.Lines(helpText) {
		if strings.HasPrefix(line, "  -") || strings.HasPrefix(line, "      --") {
			n++
		}
	}
	return n
}

// The help of "queuectl enqueue" fits on a screen of 40 lines and 80 columns. It shows the twenty most common
// flags, and says how to list the others.
func TestEnqueueHelpFitsAScreen(t *testing.T) {
	const maxLines, maxColumns, flags = 40, 80, 20
	text := helpOutput(t, "enqueue", "-h")
	if n := strings.Count(text, "\n"); n > maxLines {
		t.Errorf("enqueue -h has %d lines, want at most %d:\n%s", n, maxLines, text)
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > maxColumns {
			t.Errorf("enqueue -h has a line of %d columns, want at most %d: %s", n, maxColumns, line)
		}
	}
	if n := countFlagsInHelp(text); n != flags {
		t.Errorf("enqueue -h lists %d flags, want %d:\n%s", n, flags, text)
	}
	if !strings.Contains(text, "queuectl enqueue --help --all\n") {
		t.Errorf("enqueue -h does not say how to list all flags:\n%s", text)
	}
	for _, words := range [][]string{{"enqueue", "--help"}, {"help", "enqueue"}, {"add", "-h"}} {
		if got := helpOutput(t, words...); got != text {
			t.Errorf("%q prints\n%s\nenqueue -h prints\n%s", words, got, text)
		}
	}
}

// queuectl COMMAND --help --all lists every flag of a command. The forms COMMAND --all --help and help
// COMMAND --all print the same.
func TestHelpAllListsEveryFlag(t *testing.T) {
	a := cli.NewApp(cli.Program{Verbs: allAdminVerbs()}, nil, nil, nil)
	root := a.RootCommand(nil)
	for name := range help.CommonFlagsByCommand() {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range [][]string{append(strings.Fields(name), "--help", "--all"),
			append([]string{"help"}, append(strings.Fields(name), "--all")...), append(strings.Fields(name), "--all", "-h")} {
			text := helpOutput(t, words...)
			// The help of the command lists --help too. LocalFlags and InheritedFlags do not contain --help, so add 1.
			if got, want := countFlagsInHelp(text), help.CountVisibleFlags(cmd.LocalFlags())+
				help.CountVisibleFlags(cmd.InheritedFlags())+
				1; got != want {
				t.Errorf("%q lists %d flags, want %d:\n%s", words, got, want, text)
			}
		}
		short := helpOutput(t, append(strings.Fields(name), "--help")...)
		if got, want := countFlagsInHelp(short), len(help.CommonFlagsByCommand()[name]); got != want {
			t.Errorf("%s --help lists %d flags, want the %d common ones:\n%s", name, got, want, short)
		}
	}
}

// allowedFlagValueNames lists the placeholders that the help may show for the value of a flag.
var allowedFlagValueNames = strings.Fields("ACTION ADDRESS:PORT CODES COLUMN COLUMNS COMMAND DIR DURATION FIELD " +
	"FIELD=VALUE FILE ID ID,ID KEY KEY=N/PERIOD KIND MASK MODE N N/PERIOD NAME NAME=FILE NAME=N NAME=VALUE NODE PATTERN " +
	"PERIOD QUEUE REASON SIZE STATE STRATEGY STRING TIME USER ZONE")

// Summaries of commands are short, descriptions of flags begin in lower case, and every placeholder for a
// value is in allowedFlagValueNames.
func TestHelpTextsFollowFormatRules(t *testing.T) {
	root := cli.NewApp(cli.Program{Verbs: allAdminVerbs()}, nil, nil, nil).RootCommand(nil)
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		const maxSummary = 60
		if n := utf8.RuneCountInString(cmd.Short); n > maxSummary || n == 0 || !unicode.IsUpper(rune(cmd.Short[0])) ||
			strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the summary has %d characters, want at most %d, an upper case letter first and no period: %s",
				cmd.CommandPath(), n, maxSummary, cmd.Short)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			if name != "" && !slices.Contains(allowedFlagValueNames, name) {
				t.Errorf("%s --%s: the value is called %s, which is not one of %q", cmd.CommandPath(), f.Name, name,
					allowedFlagValueNames)
			}
			if usage == "" || unicode.IsUpper(rune(usage[0])) && !startsWithFlagValueName(usage) ||
				strings.HasSuffix(usage, ".") {
				t.Errorf("%s --%s: want a description that begins in lower case and has no period: %s", cmd.CommandPath(), f.Name,
					usage)
			}
		})
		for _, below := range cmd.Commands() {
			check(below)
		}
	}
	check(root)
}

// startsWithFlagValueName reports whether the first word of a flag's description is in upper case. Such a word is an
// abbreviation, or a placeholder for the flag's value.
func startsWithFlagValueName(usage string) bool {
	first, _, _ := strings.Cut(usage, " ")
	return first == strings.ToUpper(first)
}

// The completion of --state offers only the states of jobs on which the command can act.
func TestStateCompletionOffersOnlyActionableStates(t *testing.T) {
	running := []queue.State{queue.Processing}
	for name, acts := range map[string][]queue.State{
		"retry": queue.VerbRetry.StatesWithEffect(), "cancel": append(running, queue.VerbCancel.StatesWithEffect()...),
		"hold":    queue.VerbHold.StatesWithEffect(),
		"release": queue.VerbRelease.StatesWithEffect(), "requeue": running, "kill": running, "pause": running,
		"resume": running,
		"edit":   queue.VerbEdit.StatesWithEffect(),
	} {
		cmd, _, err := cli.NewApp(cli.Program{Verbs: allAdminVerbs()}, nil, nil,
			nil).RootCommand([]string{name}).Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		complete, _ := cmd.GetFlagCompletionFunc("state")
		offered, _ := complete(cmd, nil, "")
		matched := map[queue.State]bool{}
		for _, word := range offered {
			states, err := queue.ParseStates(word)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, state := range states {
				if matched[state] = true; !slices.Contains(acts, state) {
					t.Errorf("%s offers --state %s, but does not act on %s jobs", name, word, state)
				}
			}
			if usage := cmd.Flags().Lookup("state").Usage; !strings.Contains(usage, word) || strings.Contains(usage, "done") {
				t.Errorf("%s --state: the description is %q", name, usage)
			}
		}
		if len(matched) != len(acts) {
			t.Errorf("%s offers %q, and acts on %v", name, offered, acts)
		}
	}
}
