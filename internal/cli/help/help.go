// Package help prints what a command does, with its flags by theme and with examples. Only queuectld
// links it, because its texts are large.
//
// Start with Func.
package help

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/termtext"
)

// helpColumns is the width of the help, which fits every terminal.
const helpColumns = 80

// CommonFlags lists the flags that the help shows of commands with very many flags, by command.
// `--help --all` shows all flags.
func CommonFlags() map[string][]string {
	timing := []string{"priority", "at", "in", "after", "after-batch"}
	settings := []string{"label", "id", "max-retries", "timeout", "env", "cwd", "lock", "unique", "memory", "on-dead"}
	enqueue := slices.Concat([]string{"queue", "batch", "lines", "file", "next"}, timing, settings)
	return map[string][]string{
		"enqueue": enqueue,
		"run": slices.Concat([]string{"detach", "cancel-on-exit", "private", "workers", "lines", "file", "tty",
			"queue"}, timing[:4], settings[:8]),
		"edit": slices.Concat([]string{"state", "where-label", "where-queue", "batch", "user", "all", "dry-run",
			"yes", "queue"}, timing[:4], []string{"label"}, settings[2:]),
		"schedule add": slices.Concat([]string{"tz", "jitter", "catch-up", "overlap", "replace", "queue", "priority"},
			settings[:1], settings[2:]),
	}
}

// Func returns the function that prints what a command does, with its flags by theme. Of commands
// with very many flags it shows the most common ones, unless all is true.
func Func(all bool) func(*cobra.Command, []string) {
	return func(cmd *cobra.Command, _ []string) {
		out := signWriter{cmd.OutOrStdout()}
		common := CommonFlags()[commandName(cmd)]
		if all {
			common = nil
		}
		text := Long(cmd)
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
		printVerbs(out, cmd)
		own, global := cmd.LocalFlags(), cmd.InheritedFlags()
		if common != nil {
			fmt.Fprintf(out, "\nCommon flags:\n%s", flagLines(pick(own, common)))
			n := VisibleFlags(own) + VisibleFlags(global)
			fmt.Fprintf(out, "\nAll %d flags and more examples: %s --help --all\n", n, cmd.CommandPath())
			return
		}
		for _, t := range flagThemes(own) {
			fmt.Fprintf(out, "\n%s:\n%s", t.title, flagLines(t.flags))
		}
		if VisibleFlags(global) > 0 {
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
	if _, err := io.WriteString(w.to, termtext.LocaleText(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// VisibleFlags counts the flags that are not hidden.
func VisibleFlags(f *pflag.FlagSet) (n int) {
	f.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			n++
		}
	})
	return n
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
first job, in the order given, that did not succeed.

Flags such as --batch also select jobs that have already ended. But --all, and
--user without other flags, select only unfinished jobs. If no job matches, wait
prints a message and exits with 0.`,
		"progress": `Report progress from inside a job: N percent and, if you like, a short message.

list, show, status and events show the last report. Instead of running this
command, a job can write the line "N MESSAGE" to the file $QUEUECTL_PROGRESS.`,
	}
}

// Long returns the long description of a command, or its summary if it has none.
func Long(cmd *cobra.Command) string {
	return strings.TrimSpace(cmp.Or(cmd.Long, descriptions()[commandName(cmd)], cmd.Short))
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
	for _, t := range input.Themes {
		set(t.Title)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			set(append(flag.Annotations[input.ThemeOf], "Flags")[0]).AddFlag(flag)
		}
	})
	return slices.DeleteFunc(list, func(t theme) bool { return !t.flags.HasFlags() })
}
