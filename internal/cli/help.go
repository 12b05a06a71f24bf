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

// helpColumns is the width of the help, which fits every terminal.
const helpColumns = 80

// commonFlags lists the flags that the help shows of commands with very many flags, by command.
// `--help --all` shows all flags.
func commonFlags() map[string][]string {
	timing := []string{"priority", "at", "in", "after", "after-batch"}
	settings := []string{"label", "id", "max-retries", "timeout", "env", "cwd", "lock", "unique", "memory", "on-dead"}
	enqueue := slices.Concat([]string{"queue", "batch", "lines", "file", "next"}, timing, settings)
	return map[string][]string{
		"enqueue":      enqueue,
		"run":          slices.Concat([]string{"detach", "cancel-on-exit", "private", "workers", "lines", "file", "tty", "queue"}, timing[:4], settings[:8]),
		"edit":         slices.Concat([]string{"state", "where-label", "where-queue", "batch", "user", "all", "dry-run", "yes", "queue"}, timing[:4], []string{"label"}, settings[2:]),
		"schedule add": slices.Concat([]string{"tz", "jitter", "catch-up", "overlap", "replace", "queue", "priority"}, settings[:1], settings[2:]),
	}
}

// Help returns the function that prints what a command does, with its flags by theme. Of commands
// with very many flags it shows the most common ones, unless all is true.
func Help(all bool) func(*cobra.Command, []string) {
	return func(cmd *cobra.Command, _ []string) {
		out := signWriter{cmd.OutOrStdout()}
		common := commonFlags()[commandName(cmd)]
		if all {
			common = nil
		}
		text := LongOf(cmd)
		if parts := strings.SplitN(text, "\n\n", 3); common != nil && len(parts) == 3 {
			text = parts[0] + "\n\n" + parts[1]
		}
		fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", text, cmd.UseLine())
		for _, alias := range cmd.Aliases {
			fmt.Fprintf(out, "  %s %s …\n", cmd.Parent().CommandPath(), alias)
		}
		if text := ExampleOf(cmd); text != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", text)
		}
		printVerbs(out, cmd)
		own, global := cmd.LocalFlags(), cmd.InheritedFlags()
		if common != nil {
			fmt.Fprintf(out, "\nCommon flags:\n%s", flagLines(pick(own, common)))
			n := visibleFlags(own) + visibleFlags(global)
			fmt.Fprintf(out, "\nAll %d flags and more examples: %s --help --all\n", n, cmd.CommandPath())
			return
		}
		for _, t := range flagThemes(own) {
			fmt.Fprintf(out, "\n%s:\n%s", t.title, flagLines(t.flags))
		}
		if visibleFlags(global) > 0 {
			fmt.Fprintf(out, "\nGlobal flags:\n%s", flagLines(global))
		}
	}
}

// flagLines returns the help lines of flags.
func flagLines(f *pflag.FlagSet) string { return f.FlagUsagesWrapped(helpColumns) }

// commandName returns the words of a command after "queuectl".
func commandName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

// pick returns the named flags in this order.
func pick(f *pflag.FlagSet, names []string) *pflag.FlagSet {
	some := pflag.NewFlagSet("", pflag.ContinueOnError)
	some.SortFlags = false
	for _, name := range names {
		if flag := f.Lookup(name); flag != nil {
			some.AddFlag(flag)
		}
	}
	return some
}

// signWriter writes queuectl's own texts with the signs that the locale can show.
type signWriter struct{ to io.Writer }

// Write implements io.Writer.
func (w signWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Sign(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// visibleFlags counts the flags that are not hidden.
func visibleFlags(f *pflag.FlagSet) (n int) {
	f.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			n++
		}
	})
	return n
}

// plural formats a number with its noun, like "1 argument" or "2 arguments".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// descriptions returns the long descriptions of commands that both programs build. They are not
// stored with the commands, because queuectl never shows them and stays smaller without them.
func descriptions() map[string]string {
	return map[string]string{
		"": `A durable queue for shell commands. Jobs survive crashes and restarts.

  queuectl                       show what is running, what is next, what failed
  queuectl enqueue 'make all'    add a job to the queue
  queuectl run 'make test'       add a job, follow it, exit with its exit code
  queuectl enqueue --batch pics -- convert {} {}.webp ::: *.png
  queuectl wait --batch pics --progress
  queuectl retry --failed        run failed jobs again`,
		"enqueue": `Add one or more jobs to the queue and print their IDs.

  queuectl enqueue 'make all >log'          a command line for the shell
  queuectl enqueue -- convert a.png b.jpg   a program, run without a shell
  queuectl enqueue -- gzip -k {} ::: *.log  one job for each file
  queuectl enqueue --at 3am ./backup.sh     start at 3:00 or later
  queuectl enqueue --after 17 ./deploy.sh   start when job 17 has succeeded
  queuectl enqueue --next 'make hotfix'     start before your other jobs
  queuectl enqueue -Q gpu ./train.sh        use the queue gpu
  queuectl enqueue '{"command":"make"}'     describe the job in JSON

If you enqueue several jobs, either all of them are stored or none. They can
share a batch name:

  queuectl enqueue --batch pics -- convert {} {}.webp ::: *.png
  queuectl enqueue --lines commands.txt     one shell command per line
  find -name '*.log' -print0 |
    queuectl enqueue --null --arg-file - -- gzip -k {}
  queuectl enqueue --file jobs.jsonl        jobs in JSON
  queuectl enqueue --file graph.toml        jobs in TOML, in tables [jobs.ID]`,
		"run": `Add a job to the queue, follow its output and exit with its exit code. The job
gets one attempt unless you set --max-retries or --max-attempts.

  queuectl run 'make all'               a command line for the shell
  queuectl run -- ./backup.sh --full    a program, run without a shell
  queuectl run --private --workers 4 --lines commands.txt

With --private, run works through a list of jobs in the foreground. It keeps
them in a separate queue in the directory --dir (default: .queuectl). The exit
code is 1 if a job is dead. After a crash, repeat the same command to continue.
The command is rejected if the jobs or flags have changed. After you have
appended jobs to the list, add --add-new. You can use queuectl list, show, logs
and status with --dir at any time.

  queuectl run --private --file jobs.jsonl
  find -name '*.log' | queuectl run --private --arg-file - -- gzip -k {}`,
		"attach": `Follow the output of a job and exit with its exit code.

If the job has a terminal (run --tty, enqueue --tty), attach joins it: what you
type goes to the job, including Ctrl-C. After Enter, ~. detaches (the job
continues, the exit code is 130), ~~ sends a tilde, and ~? lists these
sequences. When several people attach to one job, the last one sets the size of
the terminal.`,
		"wait": `Wait for jobs to end, then exit with their exit code.

The exit code is 0 if all jobs succeeded. Otherwise it is the exit code of the
first job, in the order given, that did not succeed. The flags also select jobs
that ended earlier, but --all, or --user alone, selects only unfinished jobs. If
no job matches, wait prints a message and exits with 0.`,
		"progress": `Report progress from inside a job: N percent and, if you like, a short message.

list, show, status and events show the last report. Instead of running this
command, a job can write the line "N MESSAGE" to the file $QUEUECTL_PROGRESS.`,
	}
}

// LongOf returns the long description of a command, or its summary if it has none.
func LongOf(cmd *cobra.Command) string {
	return strings.TrimSpace(cmp.Or(cmd.Long, descriptions()[commandName(cmd)], cmd.Short))
}

// examples returns examples of the commands whose description contains none.
func examples() map[string]string {
	return map[string]string{
		"progress": "  queuectl progress 40 'epoch 4 of 10'     from inside a job",
		"attach":   "  queuectl attach 17                     follow job 17, exit with its exit code",
		"wait":     "  queuectl wait 17 18\n  queuectl wait --batch pics --progress  show a progress bar and failures",
		"edit":     "  queuectl edit 17 --priority 100\n  queuectl edit 17 '{\"timeout\":\"2h\",\"labels\":{\"old\":null}}'\n  queuectl edit 17 --lock=               remove the job's lock\n  queuectl edit 17                       open the job in $EDITOR",
		"retry":    "  queuectl retry 17\n  queuectl retry --failed --batch pics", "cancel": "  queuectl cancel 17\n  queuectl cancel --label site=a --dry-run\n  queuectl cancel --all",
		"rm": "  queuectl rm 17\n  queuectl rm --state dead --older-than 30d", "dequeue": "  queuectl dequeue 17",

		"status": "  queuectl status --watch\n  queuectl status --check                one line and an exit code, for monitors", "top": "  queuectl top                           press ? for the list of keys, q to quit", "list": "  queuectl list --failed\n  queuectl list --since yesterday --until today\n  queuectl list --batch pics --columns id,state,error",
		"ps": "  queuectl ps --watch", "show": "  queuectl show 17\n  queuectl show --failed --json", "logs": "  queuectl logs -f 17\n  queuectl logs 17 --attempt 1 --stderr\n  queuectl logs -f --queue render\n  queuectl logs --batch pics -n 5",
		"events": "  queuectl events -f\n  queuectl events 17 --since '2 hours ago'", "whoami": "  queuectl whoami --json",
		"dlq": "  queuectl dlq list\n  queuectl dlq retry --all", "dlq list": "  queuectl dlq list --since yesterday\n  queuectl dlq list --columns id,error,command",
		"dlq retry": "  queuectl dlq retry 17\n  queuectl dlq retry --all --timeout '2 hours'", "dlq clear": "  queuectl dlq clear --dry-run\n  queuectl dlq clear --yes",

		"worker": "  queuectl worker scale 8\n  queuectl worker list", "worker start": "  queuectl worker start                  add one worker\n  queuectl worker start -c 4\n  queuectl worker start --foreground     keep the worker until Ctrl-C",
		"worker stop": "  queuectl worker stop -c 2              remove 2; their jobs may finish\n  queuectl worker stop --all --timeout '5 minutes'", "worker scale": "  queuectl worker scale 8\n  queuectl worker scale 0                start no more jobs", "worker list": "  queuectl worker list --json",
		"hold": "  queuectl hold 17\n  queuectl hold --batch pics", "release": "  queuectl release 17",
		"pause": "  queuectl pause 17                      continue with: queuectl resume 17\n  queuectl pause --label site=a\n  queuectl pause --all                   pause running jobs, start no others", "resume": "  queuectl resume 17\n  queuectl resume --all", "requeue": "  queuectl requeue 17",
		"kill": "  queuectl kill -s USR1 17               send the signal USR1 to job 17", "drain": "  queuectl drain --wait\n  queuectl drain --off", "clear": "  queuectl clear --dry-run\n  queuectl clear --yes", "cleanup": "  queuectl cleanup --days 30 --keep 1000",

		"queue": "  queuectl queue set gpu --concurrency 1\n  queuectl queue list", "queue list": "  queuectl queue list\n  queuectl queue list --json",
		"queue set": "  queuectl queue set gpu --concurrency 1\n  queuectl queue set nightly --weight 3 --default timeout=2h", "queue pause": "  queuectl queue pause render --for 2h --reason 'driver update'\n  queuectl queue pause --all",
		"queue resume": "  queuectl queue resume render\n  queuectl queue resume --all", "queue rm": "  queuectl queue rm render",
		"stats": "  queuectl stats --since yesterday\n  queuectl stats -Q render --by hour\n  queuectl stats --since 30d --by day --json",
		"why":   "  queuectl why 17                        why job 17 is not running; what to do", "simulate": "  queuectl simulate --next 5             what 5 free workers would start", "tree": "  queuectl tree 17\n  queuectl tree 17 --dot >jobs.dot",
		"schedule": "  queuectl schedule add nightly '0 3 * * *' -- make backup\n  queuectl schedule list", "schedule list": "  queuectl schedule list --json", "schedule show": "  queuectl schedule show nightly",
		"schedule rm": "  queuectl schedule rm nightly", "schedule pause": "  queuectl schedule pause nightly", "schedule resume": "  queuectl schedule resume nightly", "schedule run": "  queuectl schedule run nightly",

		"node": "  queuectl node list\n  queuectl node drain web1", "node list": "  queuectl node list --json", "node drain": "  queuectl node drain web1 --wait\n  queuectl node drain web1 --off", "node rm": "  queuectl node rm web1", "gate": "  queuectl gate list\n  queuectl gate set @db --lock 3", "gate list": "  queuectl gate list --json", "gate set": "  queuectl gate set @db --lock 3\n  queuectl gate set @api --rate 10/m\n  queuectl gate set @api --unset rate",
		"web": "  queuectl web start\n  queuectl web open", "web start": "  queuectl web start                     at 127.0.0.1:7070\n  queuectl web start --listen 127.0.0.1:8080", "web stop": "  queuectl web stop", "web open": "  queuectl web open                      print a sign-in link",
		"metrics": "  queuectl metrics\n  queuectl metrics --textfile /var/lib/prometheus/node-exporter/queuectl.prom",
		"mcp":     "  queuectl mcp --write                   start command for your agent's settings",
		"hook":    "  queuectl hook test on_dead", "hook test": "  queuectl hook test on_dead\n  queuectl hook test ops                 test the webhook [webhooks.ops]",

		"config": "  queuectl config list\n  queuectl config set max_retries 5", "config get": "  queuectl config get max_retries", "config set": "  queuectl config set max_retries 5\n  queuectl config set retention_dead 90d",
		"config unset": "  queuectl config unset max_retries      use the settings file or the default", "config list": "  queuectl config list\n  queuectl config list --json", "config validate": "  queuectl config validate               check your settings file\n  queuectl config validate /etc/queuectl/queuectl.toml",
		"service": "  queuectl service install                start at boot, for all users\n  queuectl service status", "service install": "  sudo queuectl service install          start at boot, for all users\n  queuectl service install --user        only for you", "service uninstall": "  queuectl service uninstall --user      the queue is kept",
		"service start": "  queuectl service start\n  queuectl service start --dir ./here    use a separate queue in ./here", "service stop": "  queuectl service stop\n  queuectl service stop --keep-jobs      running jobs continue", "service restart": "  queuectl service restart", "service status": "  queuectl service status\n  queuectl service status --user",
		"serve": "  queuectl serve --workers 4\n  queuectl serve --dir ./here            use a separate queue in ./here", "reload": "  queuectl reload", "doctor": "  queuectl doctor\n  queuectl doctor --verify               also check every row of the database",
		"backup": "  queuectl backup queue.bak", "restore": "  queuectl service stop && queuectl restore queue.bak",
		"migrate": "  queuectl migrate --to-file /etc/queuectl/store\n  queuectl migrate --to sqlite           move the queue back to a file",

		"completion": "  queuectl completion bash >~/.local/share/bash-completion/completions/queuectl", "man": "  queuectl man ~/.local/share/man/man1",
		"schema": "  queuectl schema enqueue                the schema of the method enqueue", "version": "  queuectl version --json", "init": "  queuectl init",
	}
}

// ExampleOf returns examples of a command, "" if its description contains them.
func ExampleOf(cmd *cobra.Command) string {
	return examples()[commandName(cmd)]
}

// printVerbs lists the subcommands of a command, by group.
func printVerbs(out io.Writer, cmd *cobra.Command) {
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

// theme is a group of flags in the help.
type theme struct {
	title string
	flags *pflag.FlagSet
}

// fieldTheme is a group of job flags in the help.
type fieldTheme struct {
	title  string
	fields []string // the fields that the flags set
}

// themes lists the groups of job flags, in the order of the help.
var themes = []fieldTheme{
	{"What to run", []string{"id", "command", "cwd", "umask", "shell", "env", "env_pass", "env_secret", "mask_secrets", "stdin", "stdin_file", "tty", "user"}},
	{"Start time and order", []string{"priority", "run_at", "delay", "expires_at"}},
	{"Timeouts, retries and exit codes", []string{"timeout", "timeout_ms", "idle_timeout", "kill_after", "max_retries", "max_attempts", "backoff_base", "backoff_strategy", "backoff_max", "jitter", "ok_codes", "no_retry_codes", "defer_codes", "on_lost", "allow_background"}},
	{"Commands to run afterwards", []string{"on_completed", "on_failed", "on_dead", "on_ended"}},
	{themeOrder, []string{"queue", "depends_on", "on_dependency_failure", "lock", "rate_limit", "on", "resources", "unique", "unique_for", "on_conflict"}},
	{themeLimits, []string{"memory", "cpus", "tasks", "nice", "nofile", "no_new_privileges", "output_limit"}},
}

// themeOf is the annotation of a flag that names its theme. Flags that set no field of a job have
// one of the themes themeLimits and themeOrder.
const (
	themeOf     = "theme"
	themeLimits = "Resource limits"
	themeOrder  = "Queues, dependencies and locks"
)

// flagThemes groups the flags of a command by theme. Flags without a theme come first.
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

// themeOfField returns the theme of a field's flag, "" for none.
func themeOfField(f *queue.Field) string {
	for _, t := range themes {
		if slices.Contains(t.fields, f.Name) {
			return t.title
		}
	}
	return ""
}

// nearVerb returns a hint about an unknown command: the command that was meant, or how to list all commands.
func nearVerb(word string, known []string) string {
	return cmp.Or(hintAt(word, verbsElsewhere), near(word, known, "list all commands with: queuectl --help"))
}
