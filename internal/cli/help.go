package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/queue"
)

// manyFlagsOf is how many flags a verb has that -h leaves to --help.
const manyFlagsOf = 14

// help prints what a verb does: with -h in short, else with all its flags, by theme.
func help(args []string) func(*cobra.Command, []string) {
	short := slices.Contains(args, "-h")
	return func(cmd *cobra.Command, _ []string) {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)), cmd.UseLine())
		if len(cmd.Aliases) > 0 {
			fmt.Fprintf(out, "  or: %s\n", strings.Join(cmd.Aliases, ", "))
		}
		if text := ExampleOf(cmd); text != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", text)
		}
		printVerbs(cmd)
		flags := 0
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				flags++
			}
		})
		if short && flags > manyFlagsOf {
			fmt.Fprintf(out, "\n%d flags more: %s --help\n", flags, cmd.CommandPath())
			return
		}
		for _, t := range flagThemes(cmd.LocalFlags()) {
			fmt.Fprintf(out, "\n%s:\n%s", t.title, t.flags.FlagUsages())
		}
		if cmd.HasAvailableInheritedFlags() {
			fmt.Fprintf(out, "\nFlags of all verbs:\n%s", cmd.InheritedFlags().FlagUsages())
		}
	}
}

// examples are what people type most, of the verbs whose text has none. It is made when it is
// asked for, as what follows: most programs need none of it.
func examples() map[string]string {
	return map[string]string{
		"attach": "  queuectl attach 17                     what it prints, and its exit code",
		"wait":   "  queuectl wait 17 18\n  queuectl wait --batch pics --progress  with a bar; what fails is named",
		"edit":   "  queuectl edit 17 --priority 100\n  queuectl edit 17 '{\"timeout\":\"2h\",\"labels\":{\"old\":null}}'\n  queuectl edit 17                       in $EDITOR",
		"retry":  "  queuectl retry 17\n  queuectl retry --failed --batch pics", "cancel": "  queuectl cancel 17\n  queuectl cancel --label site=a --dry-run\n  queuectl cancel --all",
		"rm":     "  queuectl rm 17\n  queuectl rm --state dead --older-than 30d",
		"status": "  queuectl status --watch\n  queuectl status --check                for monitors: one line and an exit code", "list": "  queuectl list --failed\n  queuectl list --since yesterday --until today\n  queuectl list --batch pics --columns id,state,error",
		"ps": "  queuectl ps --watch", "show": "  queuectl show 17\n  queuectl show --failed --json", "logs": "  queuectl logs -f 17\n  queuectl logs 17 --attempt 1 --stderr\n  queuectl logs --batch pics -n 5",
		"events": "  queuectl events -f\n  queuectl events 17 --since '2 hours ago'", "dlq": "  queuectl dlq list\n  queuectl dlq retry --all", "whoami": "  queuectl whoami --json",
		"worker": "  queuectl worker scale 8\n  queuectl worker list", "hold": "  queuectl hold 17\n  queuectl hold --batch pics", "release": "  queuectl release 17", "requeue": "  queuectl requeue 17",
		"kill": "  queuectl kill -s USR1 17", "drain": "  queuectl drain --wait\n  queuectl drain --off", "clear": "  queuectl clear --dry-run\n  queuectl clear --yes", "cleanup": "  queuectl cleanup --days 30 --keep 1000",
		"config": "  queuectl config list\n  queuectl config set max_retries 5", "reload": "  queuectl reload", "completion": "  queuectl completion bash >~/.local/share/bash-completion/completions/queuectl",
		"schema": "  queuectl schema enqueue", "version": "  queuectl version --json", "init": "  queuectl init",
	}
}

// ExampleOf is what people type of a verb, "" if its text says so, or it is below another one.
func ExampleOf(cmd *cobra.Command) string {
	if cmd.HasParent() && !cmd.Parent().HasParent() {
		return examples()[cmd.Name()]
	}
	return ""
}

// printVerbs lists the verbs below one, by group.
func printVerbs(cmd *cobra.Command) {
	list := func(title, group string) {
		first := true
		for _, verb := range cmd.Commands() {
			if verb.GroupID != group || !verb.IsAvailableCommand() {
				continue
			}
			if first {
				fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", title)
				first = false
			}
			fmt.Fprintf(cmd.OutOrStdout(), "  %-*s  %s\n", verb.NamePadding(), verb.Name(), verb.Short)
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	list("Verbs:", "")
}

// theme is a part of the flags of a verb.
type theme struct {
	title string
	flags *pflag.FlagSet
}

// themes are the titles under which the flags of a job's fields stand, in their order.
var themes = []struct {
	title  string
	fields []string
}{
	{"What runs", []string{"id", "command", "cwd", "umask", "shell", "env", "env_pass", "stdin", "stdin_file", "tty", "user"}},
	{"When", []string{"priority", "run_at", "delay", "expires_at"}},
	{"How it ends", []string{"timeout", "timeout_ms", "idle_timeout", "kill_after", "max_retries", "max_attempts", "backoff_base", "backoff_strategy", "backoff_max", "jitter", "ok_codes", "no_retry_codes", "defer_codes", "on_lost", "allow_background"}},
	{"Limits", []string{"memory", "cpus", "tasks", "output_limit"}},
}

// themeOf marks the flag of a field by its theme.
const themeOf = "theme"

// flagThemes are the flags of a verb by theme; those of none come first.
func flagThemes(f *pflag.FlagSet) (list []theme) {
	set := func(title string) *pflag.FlagSet {
		for _, t := range list {
			if t.title == title {
				return t.flags
			}
		}
		s := pflag.NewFlagSet(title, pflag.ContinueOnError)
		list = append(list, theme{title, s})
		return s
	}
	set("Flags")
	for _, t := range themes {
		set(t.title)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			set(append(flag.Annotations[themeOf], "Flags")[0]).AddFlag(flag)
		}
	})
	return slices.DeleteFunc(list, func(t theme) bool { return !t.flags.HasFlags() })
}

// themeOfField is the theme of a field's flag, "" for none.
func themeOfField(f *queue.Field) string {
	for _, t := range themes {
		if slices.Contains(t.fields, f.Name) {
			return t.title
		}
	}
	return ""
}

// nearVerb is a hint at the verb that was meant.
func nearVerb(word string, known []string) string {
	return cmp.Or(hintAt(word, verbsElsewhere()), near(word, known, "queuectl --help lists them"))
}
