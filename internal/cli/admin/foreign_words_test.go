package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/help"
	"github.com/queuectl/queuectl/internal/cli/hints"
	"github.com/queuectl/queuectl/queue"
)

// commandLineError returns the error for a command line, or "" if the command line is accepted.
func commandLineError(t *testing.T, args ...string) string {
	t.Helper()
	a := cli.NewApp(cli.Program{}, nil, nil, nil)
	root := a.RootCommand(args)
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		return err.Error()
	}
	return ""
}

// For a flag or command of another program, the hint names queuectl's equivalent, or says that it has none.
// It never suggests a word that only looks similar.
func TestWordsOfOtherProgramsGetHints(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue --bar": "; use queuectl wait --batch NAME --progress", "enqueue --eta": "wait --batch NAME --progress",
		"enqueue --tag":  "--label NAME=VALUE",
		"enqueue --hold": "to hold a new job", "enqueue --singleton": "--unique KEY", "enqueue --notify": "--on-dead COMMAND",
		"run --mail": "--on-dead COMMAND", "enqueue --email": "--on-dead COMMAND", "enqueue --mutex": "--lock KEY",
		"enqueue --halt": "to cancel the remaining jobs", "enqueue --dependencies": "--after ID,ID",
		"enqueue -D": "--after ID,ID",
		"enqueue -g": "--queue QUEUE", "enqueue --group": "--queue QUEUE", "enqueue -w": "--cwd DIR",
		"enqueue -i": "enqueue --next", "enqueue --immediate": "enqueue --next",
		"enqueue -L": "--label NAME=VALUE", "enqueue --delay-until": "--at TIME",
		"enqueue --cron": "schedule add NAME 'CRON'", "enqueue --retries": "--max-retries N",
		"logs --tail": "logs -n N", "list --format": "--columns COLUMNS or --json",
		"list --all": "list selects all jobs", "list -n": "--limit N", "ps -n": "--limit N",
		"run --follow": "run follows its job unless -d is given", "run --rm": "remove one now with: queuectl rm ID",
		"run --batch": "enqueue --batch NAME", "run --jobs": "worker scale N",
		"group": "; use queuectl queue", "suspend": "queuectl pause (running jobs)", "thaw": "; use queuectl resume",
		"send": "queuectl attach, if the job was enqueued with --tty", "shutdown": "service stop",
		"switch": "edit ID --priority N", "killall": "cancel --all", "at": "enqueue --at TIME",
		"crontab": "schedule add NAME 'CRON'", "follow": "queuectl attach or queuectl logs -f",
	} {
		got := commandLineError(t, append(strings.Fields(line), "x")...)
		if !strings.Contains(got, "; ") || !strings.Contains(got, want) || strings.Contains(got, "did you mean") {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// The errors about unexpected arguments, about flags of other programs, and about a schedule without a name
// suggest the command that the user probably meant.
func TestArgumentsOfOtherProgramsGetHints(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"list dead", "; use queuectl list --state dead"}, {"ps waiting", "; use queuectl ps --state waiting"},
		{"list running", "; use queuectl list --state processing"},
		{"list 5", "; use queuectl show 5"}, {"list all", "list selects all jobs"},
		{"status 5", "; use queuectl show 5"}, {"status all", "; use queuectl list"},
		{"status dead", "; use queuectl list --state dead"},
		{"workers 4", "worker scale N"}, {"worker 4", "; use queuectl worker scale 4"},
		{"kill -9 1", "; use queuectl kill -s SIGNAL ID"}, {"kill -15 1", "kill -s SIGNAL ID"},
		{"kill -HUP 1", "kill -s SIGNAL ID"}, {"kill -KILL 1", "kill -s SIGNAL ID"},
		{"signal HUP 1", "; use queuectl kill -s SIGNAL ID"},
		{"-V", "; use --version"},
		{"enqueue --prio 3 ls", `did you mean "--priority"?`}, {"sched list", `did you mean "schedule"?`},
	} {
		if got := commandLineError(t, strings.Fields(c.line)...); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
	for line, want := range map[string]string{
		"max_retries 5": "; use queuectl config set max_retries 5",
		"max_retries=5": "; use queuectl config set max_retries 5",
		"max_retries":   "; use queuectl config get max_retries", "web.listen": "; use queuectl config get web.listen",
		"gett":      "",
		"workers 4": "; use queuectl config set workers 4", "timeout=2h": "; use queuectl config set timeout 2h",
		"scheduling": "; use queuectl config get scheduling", "gett workers": "", "show workers": "",
	} {
		if got := hints.UnexpectedArgumentsHint("config", strings.Fields(line)); got != want {
			t.Errorf("config %s: got %q, want %q", line, got, want)
		}
	}
	for line, want := range map[string]string{
		"rm @db": "; remove a limit with: queuectl gate set @KEY --unset lock (or rate); list the keys " +
			"with: queuectl gate list",
		"delete": "; remove a limit with: queuectl gate set @KEY --unset lock (or rate); list the keys " +
			"with: queuectl gate list", "create @db": "",
	} {
		if got := hints.UnexpectedArgumentsHint("gate", strings.Fields(line)); got != want {
			t.Errorf("gate %s: got %q, want %q", line, got, want)
		}
	}
	var plain []string
	for _, k := range config.AllSettings() {
		if !strings.ContainsAny(k.Name, "_.") {
			plain = append(plain, k.Name)
		}
	}
	if got := strings.Fields(hints.SingleWordSettingNames); !slices.Equal(got, plain) {
		t.Errorf("settings with plain names: %q, want %q", got, plain)
	}
	if got := commandLineError(t, "worker", "list", "dead"); strings.Contains(got, "; use ") {
		t.Errorf("worker list dead: got %q, want no hint to jobs", got)
	}
	for _, words := range [][]string{{"0 3 * * *", "ls"}, {"@daily", "ls"}, {"@every 90s"}} {
		_, err := adminCommands{cli.NewApp(cli.Program{}, nil, nil, nil)}.parseScheduleArgs(&control.ScheduleAddParams{},
			words, -1)
		if want := "no schedule name given; write it before the cron expression: queuectl schedule add NAME " +
			queue.QuoteShellWord(words[0]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", words, err, want)
		}
	}
	for _, line := range []string{"ls", "make backup", `{"command":"ls"}`} {
		_, err := adminCommands{cli.NewApp(cli.Program{}, nil, nil, nil)}.parseScheduleArgs(&control.ScheduleAddParams{},
			[]string{"nightly", line}, -1)
		want := "no cron expression given; write it after the name: queuectl schedule add nightly 'CRON' " +
			queue.QuoteShellWord(line)
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
	for _, line := range []string{"0 3 * * *", "@daily", "* * *"} {
		p := control.ScheduleAddParams{}
		if _, err := (adminCommands{cli.NewApp(cli.Program{}, nil, nil, nil)}).parseScheduleArgs(&p,
			[]string{"nightly", line},
			-1); err != nil || p.Cron != line {
			t.Errorf("%q: got %v, want a line of cron", line, err)
		}
	}
}

// For a subcommand of another program, the error names queuectl's subcommand with the same meaning, if
// queuectl has one.
func TestSubcommandsOfOtherProgramsGetHints(t *testing.T) {
	a := cli.NewApp(cli.Program{}, nil, nil, nil)
	dlq, _, err := a.RootCommand([]string{"dlq"}).Find([]string{"dlq"})
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]*cobra.Command{}
	for _, group := range []*cobra.Command{QueueVerb(a), ScheduleVerb(a), NodeVerb(a), dlq, ConfigVerb(a)} {
		groups[group.Name()] = group
	}
	for line, want := range map[string]string{
		"queue create q": "queue set NAME", "queue delete q": "queue rm NAME…", "queue ls": "queue list",
		"queue stop q": "queue pause NAME…", "queue start q": "queue resume NAME…",
		"schedule ls": "schedule list", "schedule delete s": "schedule rm NAME…",
		"schedule disable s": "schedule pause NAME…",
		"schedule create s":  "schedule add NAME 'CRON'", "schedule describe s": "schedule show NAME",
		"schedule trigger s":  "schedule run NAME",
		"config delete shell": "config unset KEY", "config ls": "config list", "dlq ls": "dlq list",
		"node remove n": "node rm NODE",
	} {
		words := strings.Fields(line)
		group := groups[words[0]]
		err := group.RunE(group, words[1:])
		if want := fmt.Sprintf("unknown command %q; use queuectl %s", words[0]+" "+words[1], want); err == nil ||
			err.Error() != want {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
	for _, line := range []string{"schedule frobnicate s", "dlq create"} {
		words := strings.Fields(line)
		group := groups[words[0]]
		if err := group.RunE(group, words[1:]); err == nil || strings.Contains(err.Error(), "; use queuectl") {
			t.Errorf("%s: got %v, want no hint", line, err)
		}
	}
}

// The error about an unknown word suggests a similar word only if the user probably made a typing error.
func TestTypingErrorsGetHints(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue --tiemout": "--timeout", "enqueue --timout": "--timeout", "enqueue --comand": "--command",
		"enqueue --priorty": "--priority", "enqueue --prioirty": "--priority", "list --jsn": "--json",
		"list --colums": "--columns", "enqueue --max_retries": "--max-retries",
		"lst": "list", "enqeue": "enqueue", "shw": "show", "ad": "add", "worker strat": "start", "dlq lst": "list",
	} {
		if got := commandLineError(t, append(strings.Fields(line), "x")...); !strings.Contains(got, `did you mean "`+want+
			`"?`) {
			t.Errorf("%s: got %q, want %s", line, got, want)
		}
	}
	for _, line := range []string{"enqueue --xar", "enqueue --fat", "enqueue --lixx", "list --dry", "list --wort",
		"enqueue --cputime", "lost-and-found", "x", "nq", "dlq mist", "enqueue --" + strings.Repeat("t", 100)} {
		if got := commandLineError(t, append(strings.Fields(line), "x")...); got == "" ||
			strings.Contains(got, "did you mean") {
			t.Errorf("%s: got %q, want no neighbour", line, got)
		}
	}
}

// No word in the tables of hints is a command of queuectl, and no word occurs twice. The hints name only flags and
// commands that exist.
func TestHintsNameOnlyExistingCommands(t *testing.T) {
	root := cli.NewApp(cli.Program{Verbs: []cli.Verb{{Name: "drain", BuildCommand: DrainVerb}}}, nil, nil,
		nil).RootCommand(nil)
	flags := map[string]bool{}
	tables := map[string]string{"": hints.OtherProgramCommandHints}
	for _, cmd := range root.Commands() {
		if text := hints.FirstHintForWord(cmd.Name(), hints.OtherProgramCommandHints); text != "" {
			t.Errorf("%s is a command, but the hint is %q", cmd.Name(), text)
		}
		for _, below := range append(cmd.Commands(), cmd) {
			below.Flags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
		}
		tables[cmd.Name()] = hints.FlagHintTable(cmd.Name(), cmd.Flags().Lookup("yes") != nil)
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
	for verb, table := range tables {
		for line := range strings.Lines(table) {
			words, hint, _ := strings.Cut(line, ": ")
			if words == "" || strings.TrimSpace(hint) == "" {
				t.Errorf("%s: want words and a hint: %q", verb, line)
			}
			for _, word := range strings.FieldsFunc(hint, func(r rune) bool { return strings.ContainsRune(" ,;:'()\n", r) }) {
				if len(word) > 2 && strings.HasPrefix(word, "--") && !flags[word] {
					t.Errorf("%s %s: there is no %s", verb, words, word)
				}
			}
		}
	}
	verbs := map[string]bool{}
	for line := range strings.Lines(hints.OtherProgramCommandHints) {
		words, _, _ := strings.Cut(line, ": ")
		for _, word := range strings.Fields(words) {
			if verbs[word] {
				t.Errorf("%s has two hints", word)
			}
			verbs[word] = true
		}
	}
}

// The examples in the help use only existing commands and flags.
func TestHelpExamplesUseExistingCommands(t *testing.T) {
	for verb, text := range help.Examples() {
		for line := range strings.Lines(text) {
			// Drop the explanation, which follows after three or more spaces.
			typed, _, _ := strings.Cut(strings.TrimSpace(line), "   ")
			typed, _, _ = strings.Cut(typed[strings.LastIndex(typed, "queuectl "+verb):], ">")
			words := strings.Fields(strings.ReplaceAll(typed, "'", ""))[1:]
			root := cli.NewApp(cli.Program{}, nil, nil, nil).RootCommand(words)
			cmd, rest, err := root.Find(words)
			if err != nil || !strings.HasPrefix(cmd.CommandPath(), "queuectl "+strings.Fields(verb)[0]) {
				t.Errorf("%s: %q is not a command (%v)", verb, line, err)
				continue
			}
			if cmd.RunE != nil { // RunE is nil if only queuectld has the command
				if err := cmd.ParseFlags(rest); err != nil {
					t.Errorf("%s: %q: %v", verb, line, err)
				}
			}
		}
	}
}

// If the user gives a duration to a flag for a time, or a time to a flag for a duration, the error says how
// to write the value.
func TestTimeAndDurationFlagErrorsExplainFormat(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue|--at|2 hours":      `--at: "2 hours" is a duration, not a time; write "in 2 hours" or +2h`,
		"enqueue|--expires-at|5min": `write "in 5min" or +5m`,
		"enqueue|--in|tomorrow":     `--in: "tomorrow" is a time, not a duration; use --at for a time`,
		"enqueue|--delay|3am":       "use --at for a time", "enqueue|--timeout|3am": "is not a duration; write it like",
		"enqueue|--in|soon": "is not a duration; write it like",
	} {
		if got := commandLineError(t, strings.Split(line, "|")...); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// A setting that is a duration accepts a duration in words. The value of any other setting is sent unchanged.
func TestSettingsTakeDurationsInWords(t *testing.T) {
	for _, c := range [][3]string{
		{"retention_dead", "30 days", "30d"}, {"retention-dead", "never", "never"}, {"timeout", "2 hours", "2h"},
		{"timeout", "1h30m", "1h30m"}, {"backoff_max", "soon", "soon"},
		{"max_retries", "5 min", "5 min"}, {"socket_group", "5min", "5min"}, {"nothing", "5 min", "5 min"},
	} {
		if got := normalizeSettingValue(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
