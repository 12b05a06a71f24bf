package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/queue"
)

// manyFlagsOf is how many flags a verb has that -h leaves to --help.
const manyFlagsOf = 14

// Help returns the function that prints what a verb does: with -h in short, else with all its flags,
// by theme.
func Help(args []string) func(*cobra.Command, []string) {
	short := slices.Contains(args, "-h")
	return func(cmd *cobra.Command, _ []string) {
		out := signWriter{cmd.OutOrStdout()}
		fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)), cmd.UseLine())
		if len(cmd.Aliases) > 0 {
			fmt.Fprintf(out, "  or: %s\n", strings.Join(cmd.Aliases, ", "))
		}
		if text := ExampleOf(cmd); text != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", text)
		}
		more := printVerbs(cmd, short)
		own, shared := shown(cmd.LocalFlags()), shown(cmd.InheritedFlags())
		if short && (!cmd.HasParent() || own > manyFlagsOf) {
			more = append(more, plural(own+shared, "flag"))
		} else {
			for _, t := range flagThemes(cmd.LocalFlags()) {
				fmt.Fprintf(out, "\n%s:\n%s", t.title, t.flags.FlagUsages())
			}
			switch {
			case shared > 0 && short:
				more = append(more, plural(shared, "flag"))
			case shared > 0:
				fmt.Fprintf(out, "\nFlags of all verbs:\n%s", cmd.InheritedFlags().FlagUsages())
			}
		}
		if len(more) > 0 {
			fmt.Fprintf(out, "\n%s more: %s --help\n", strings.Join(more, " and "), cmd.CommandPath())
		}
	}
}

// signWriter writes texts of ours as the locale can show them.
type signWriter struct{ to io.Writer }

// Write implements io.Writer.
func (w signWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Sign(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shown is how many flags help shows.
func shown(f *pflag.FlagSet) (n int) {
	f.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			n++
		}
	})
	return n
}

// plural is a number of things in words.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// examples are what people type most, of the verbs whose text has none. It is made when it is
// asked for, as what follows: most programs need none of it.
func examples() map[string]string {
	return map[string]string{
		"progress": "  queuectl progress 40 'epoch 4 of 10'     from inside a job",
		"attach":   "  queuectl attach 17                     what it prints, and its exit code",
		"wait":     "  queuectl wait 17 18\n  queuectl wait --batch pics --progress  with a bar; what fails is named",
		"edit":     "  queuectl edit 17 --priority 100\n  queuectl edit 17 '{\"timeout\":\"2h\",\"labels\":{\"old\":null}}'\n  queuectl edit 17 --lock=                it needs no lock any more\n  queuectl edit 17                       in $EDITOR",
		"retry":    "  queuectl retry 17\n  queuectl retry --failed --batch pics", "cancel": "  queuectl cancel 17\n  queuectl cancel --label site=a --dry-run\n  queuectl cancel --all",
		"rm": "  queuectl rm 17\n  queuectl rm --state dead --older-than 30d", "dequeue": "  queuectl dequeue 17",

		"status": "  queuectl status --watch\n  queuectl status --check                for monitors: one line and an exit code", "top": "  queuectl top                           ? shows the keys, q leaves it", "list": "  queuectl list --failed\n  queuectl list --since yesterday --until today\n  queuectl list --batch pics --columns id,state,error",
		"ps": "  queuectl ps --watch", "show": "  queuectl show 17\n  queuectl show --failed --json", "logs": "  queuectl logs -f 17\n  queuectl logs 17 --attempt 1 --stderr\n  queuectl logs -f --queue render\n  queuectl logs --batch pics -n 5",
		"events": "  queuectl events -f\n  queuectl events 17 --since '2 hours ago'", "whoami": "  queuectl whoami --json",
		"dlq": "  queuectl dlq list\n  queuectl dlq retry --all", "dlq list": "  queuectl dlq list --since yesterday\n  queuectl dlq list --columns id,error,command",
		"dlq retry": "  queuectl dlq retry 17\n  queuectl dlq retry --all --timeout '2 hours'", "dlq clear": "  queuectl dlq clear --dry-run\n  queuectl dlq clear --yes",

		"worker": "  queuectl worker scale 8\n  queuectl worker list", "worker start": "  queuectl worker start                  one more\n  queuectl worker start -c 4\n  queuectl worker start --foreground     until Ctrl-C",
		"worker stop": "  queuectl worker stop -c 2              what they run may finish\n  queuectl worker stop --all --timeout '5 minutes'", "worker scale": "  queuectl worker scale 8\n  queuectl worker scale 0                jobs wait", "worker list": "  queuectl worker list --json",
		"hold": "  queuectl hold 17\n  queuectl hold --batch pics", "release": "  queuectl release 17",
		"pause": "  queuectl pause 17                      until: queuectl resume 17\n  queuectl pause --label site=a\n  queuectl pause --all                   whatever runs, and nothing starts", "resume": "  queuectl resume 17\n  queuectl resume --all", "requeue": "  queuectl requeue 17",
		"kill": "  queuectl kill -s USR1 17", "drain": "  queuectl drain --wait\n  queuectl drain --off", "clear": "  queuectl clear --dry-run\n  queuectl clear --yes", "cleanup": "  queuectl cleanup --days 30 --keep 1000",

		"queue": "  queuectl queue set gpu --concurrency 1\n  queuectl queue list", "queue list": "  queuectl queue list\n  queuectl queue list --json",
		"queue set": "  queuectl queue set gpu --concurrency 1\n  queuectl queue set nightly --weight 3 --default timeout=2h --default max_retries=0", "queue pause": "  queuectl queue pause render --for 2h --reason 'driver update'\n  queuectl queue pause --all",
		"queue resume": "  queuectl queue resume render\n  queuectl queue resume --all", "queue rm": "  queuectl queue rm render",
		"stats": "  queuectl stats --since yesterday\n  queuectl stats -Q render --by hour\n  queuectl stats --since 30d --by day --json",
		"why":   "  queuectl why 17                        each reason, and what to do about it", "simulate": "  queuectl simulate --next 5             with a worker for each", "tree": "  queuectl tree 17\n  queuectl tree 17 --dot >jobs.dot",
		"schedule": "  queuectl schedule add nightly '0 3 * * *' -- make backup\n  queuectl schedule list", "schedule list": "  queuectl schedule list --json", "schedule show": "  queuectl schedule show nightly",
		"schedule rm": "  queuectl schedule rm nightly", "schedule pause": "  queuectl schedule pause nightly", "schedule resume": "  queuectl schedule resume nightly", "schedule run": "  queuectl schedule run nightly",

		"node": "  queuectl node list\n  queuectl node drain web1", "node list": "  queuectl node list --json", "node drain": "  queuectl node drain web1 --wait\n  queuectl node drain web1 --off", "node rm": "  queuectl node rm web1", "gate": "  queuectl gate list\n  queuectl gate set @db --lock 3", "gate list": "  queuectl gate list --json", "gate set": "  queuectl gate set @db --lock 3\n  queuectl gate set @api --rate 10/m\n  queuectl gate set @api --unset rate",
		"web": "  queuectl web start\n  queuectl web open", "web start": "  queuectl web start                     at 127.0.0.1:7070\n  queuectl web start --listen 127.0.0.1:8080", "web stop": "  queuectl web stop", "web open": "  queuectl web open                      a link for your browser",
		"metrics": "  queuectl metrics\n  queuectl metrics --textfile /var/lib/prometheus/node-exporter/queuectl.prom",
		"mcp":     "  queuectl mcp --write                   an agent starts it, and speaks to it",
		"hook":    "  queuectl hook test on_dead", "hook test": "  queuectl hook test on_dead\n  queuectl hook test ops                 a webhook: [webhooks.ops] in the settings",

		"config": "  queuectl config list\n  queuectl config set max_retries 5", "config get": "  queuectl config get max_retries", "config set": "  queuectl config set max_retries 5\n  queuectl config set retention_dead 90d",
		"config unset": "  queuectl config unset max_retries      what the file says, or the default", "config list": "  queuectl config list\n  queuectl config list --json", "config validate": "  queuectl config validate               your own settings file\n  queuectl config validate /etc/queuectl/queuectl.toml",
		"service": "  queuectl service install                of the machine, from boot on\n  queuectl service status", "service install": "  sudo queuectl service install          of the machine, from boot on\n  queuectl service install --user        your own", "service uninstall": "  queuectl service uninstall --user      the queue stays",
		"service start": "  queuectl service start\n  queuectl service start --dir ./here    with a queue of its own in this folder", "service stop": "  queuectl service stop\n  queuectl service stop --keep-jobs      what runs goes on", "service restart": "  queuectl service restart", "service status": "  queuectl service status\n  queuectl service status --user",
		"serve": "  queuectl serve --workers 4\n  queuectl serve --dir ./here            with a queue of its own in this folder", "reload": "  queuectl reload", "doctor": "  queuectl doctor\n  queuectl doctor --verify               each row, too",
		"backup": "  queuectl backup queue.bak", "restore": "  queuectl service stop && queuectl restore queue.bak",
		"migrate": "  queuectl service stop --keep-jobs && queuectl migrate --to-file /etc/queuectl/store\n  queuectl migrate --to sqlite           and back",

		"completion": "  queuectl completion bash >~/.local/share/bash-completion/completions/queuectl", "man": "  queuectl man ~/.local/share/man/man1",
		"schema": "  queuectl schema enqueue", "version": "  queuectl version --json", "init": "  queuectl init",
	}
}

// ExampleOf is what people type of a verb, "" if its text says so.
func ExampleOf(cmd *cobra.Command) string {
	_, verb, _ := strings.Cut(cmd.CommandPath(), " ")
	return examples()[verb]
}

// printVerbs lists the verbs below one, by group. In short the internals are left out, and how
// many these are is returned in words.
func printVerbs(cmd *cobra.Command, short bool) (more []string) {
	list := func(title, group string) {
		verbs := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(verb *cobra.Command) bool { return verb.GroupID != group || !verb.IsAvailableCommand() })
		switch {
		case len(verbs) == 0:
			return
		case short && group == ofInside:
			more = append(more, plural(len(verbs), "verb"))
			return
		}
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", title)
		for _, verb := range verbs {
			fmt.Fprintf(cmd.OutOrStdout(), "  %-*s  %s\n", verb.NamePadding(), verb.Name(), verb.Short)
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	list("Verbs:", "")
	return more
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
	{"What runs", []string{"id", "command", "cwd", "umask", "shell", "env", "env_pass", "env_secret", "mask_secrets", "stdin", "stdin_file", "tty", "user"}},
	{"When", []string{"priority", "run_at", "delay", "expires_at"}},
	{"How it ends", []string{"timeout", "timeout_ms", "idle_timeout", "kill_after", "max_retries", "max_attempts", "backoff_base", "backoff_strategy", "backoff_max", "jitter", "ok_codes", "no_retry_codes", "defer_codes", "on_lost", "allow_background"}},
	{"What follows", []string{"on_completed", "on_failed", "on_dead", "on_ended"}},
	{ofOrder, []string{"queue", "depends_on", "on_dependency_failure", "lock", "rate_limit", "on", "resources", "unique", "unique_for", "on_conflict"}},
	{ofLimits, []string{"memory", "cpus", "tasks", "nice", "nofile", "no_new_privileges", "output_limit"}},
}

// themeOf marks a flag by its theme; ofLimits is one that not only fields have.
const (
	themeOf  = "theme"
	ofLimits = "Limits"
	ofOrder  = "Queues, and what it waits for"
)

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
