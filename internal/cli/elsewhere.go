package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/queue"
)

// elsewhere maps words of pueue, task-spooler, at, GNU parallel, systemd and Slurm to ours. If queuectl has nothing
// like it, answer says so.
type elsewhere struct{ words, ours, answer string }

// hintAt returns the hint of a table about a word, "" if the table does not contain the word.
func hintAt(word string, table []elsewhere) string {
	for _, e := range table {
		switch known := slices.Contains(strings.Fields(e.words), word); {
		case known && e.ours != "":
			return "; use " + e.ours
		case known:
			return "; " + e.answer
		}
	}
	return ""
}

// verbsElsewhere returns the hints about commands of other programs.
func verbsElsewhere() []elsewhere {
	return []elsewhere{
		{words: "follow", ours: "queuectl attach or queuectl logs -f"},
		{words: "tail", ours: "queuectl logs -f"},
		{words: "cat output journal", ours: "queuectl logs"},
		{words: "stash", ours: "queuectl hold"},
		{words: "suspend freeze", ours: "queuectl pause (running jobs) or queuectl hold (waiting jobs)"},
		{words: "unpause thaw continue", ours: "queuectl resume"},
		{words: "at enqueue-at", ours: "queuectl enqueue --at TIME"},
		{words: "restart", ours: "queuectl retry (run a job again) or queuectl service restart"},
		{words: "redo", ours: "queuectl retry"},
		{words: "remove delete del", ours: "queuectl rm"},
		{words: "atrm abort scancel", ours: "queuectl cancel"},
		{words: "killall", ours: "queuectl cancel --all, or queuectl kill --all to send a signal"},
		{words: "atq jobs squeue sacct", ours: "queuectl list"},
		{words: "batch", ours: "queuectl enqueue --batch NAME"},
		{words: "submit push sbatch", ours: "queuectl enqueue"},
		{words: "srun exec", ours: "queuectl run"},
		{words: "info inspect describe", ours: "queuectl show"},
		{words: "stop", ours: "queuectl cancel (a job) or queuectl service stop"},
		{words: "shutdown quit", ours: "queuectl service stop; to let running jobs finish first: queuectl drain --wait"},
		{words: "parallel", ours: "queuectl worker scale N"},
		{words: "start", ours: "queuectl release (held jobs), queuectl resume (paused jobs), queuectl worker start or queuectl service start"},
		{words: "switch swap urgent move", ours: "queuectl edit ID --priority N, or queuectl enqueue --next for a new job"},
		{words: "send", ours: "queuectl attach, if the job was enqueued with --tty"},
		{words: "clean purge", ours: "queuectl cleanup"},
		{words: "reset", ours: "queuectl clear"},
		{words: "watch", ours: "queuectl top or queuectl status --watch"},
		{words: "sinfo", ours: "queuectl status or queuectl node list"},
		{words: "nodes hosts machines scontrol", ours: "queuectl node list"},
		{words: "sacctmgr sreport statistics history", ours: "queuectl stats"},
		{words: "enable install", ours: "queuectl service install"},
		{words: "disable uninstall", ours: "queuectl service uninstall"},
		{words: "daemon", ours: "queuectl serve or queuectl service start"},
		{words: "workers", ours: "queuectl worker list or queuectl worker scale N"},
		{words: "signal pkill", ours: "queuectl kill -s NAME ID"},
		{words: "group groups queues partition", ours: "queuectl queue"},
		{words: "depend dependencies depends", ours: "queuectl tree ID to show dependencies, or queuectl enqueue --after ID to add one"},
		{words: "schedules cron crontab timer timers", ours: "queuectl schedule add NAME 'CRON' -- PROGRAM ARGS or queuectl schedule list"},
	}
}

// groupVerbsElsewhere returns the verbs that groups of verbs have in other programs, such as `queue delete`. A group has
// only some of the verbs in ours, so a word may have several rows.
func groupVerbsElsewhere() []elsewhere {
	return []elsewhere{
		{words: "ls", ours: "list"},
		{words: "delete del remove destroy", ours: "rm"},
		{words: "delete del remove", ours: "unset"},
		{words: "create new make", ours: "add"},
		{words: "create new make add", ours: "set"},
		{words: "edit update change", ours: "set"},
		{words: "info inspect describe", ours: "show"},
		{words: "stop disable suspend", ours: "pause"},
		{words: "start enable unpause continue", ours: "resume"},
		{words: "trigger now", ours: "run"},
	}
}

// groupHint returns the verb of a group that was meant by a word of another program, "" if that is not known.
func groupHint(group, word string, verbs []*cobra.Command) string {
	for _, e := range groupVerbsElsewhere() {
		if !slices.Contains(strings.Fields(e.words), word) {
			continue
		}
		for _, v := range verbs {
			if v.Name() == e.ours {
				usage, _, _ := strings.Cut(v.Use, " [")
				usage, _, _ = strings.Cut(usage, " |")
				return "; use queuectl " + group + " " + usage
			}
		}
	}
	return ""
}

// argumentHint returns a hint about arguments that a command does not take, "" if it is not known what was meant.
func argumentHint(verb string, args []string) string {
	word, ours := args[0], ""
	_, notNumber := strconv.ParseUint(word, 10, 64)
	switch state := queue.StateMeant(word); verb {
	case "list", "ps", "status":
		switch {
		case word == "all" && verb == "status":
			ours = "list"
		case word == "all":
			return "; leave it out: all jobs are listed by default"
		case state != "" && verb == "status":
			ours = "list --state " + state
		case state != "":
			ours = verb + " --state " + state
		default:
			ours = "show " + queue.Word(queue.Clip(word))
		}
	case "worker":
		if notNumber == nil {
			ours = "worker scale " + word
		}
	case "config":
		key, value, given := strings.Cut(word, "=")
		if len(args) > 1 {
			value, given = args[1], true
		}
		switch {
		case !strings.ContainsAny(key, "_.") && !slices.Contains(strings.Fields(plainSettings), key):
			return ""
		case given:
			ours = "config set " + queue.Word(queue.Clip(key)) + " " + queue.Word(queue.Clip(value))
		default:
			ours = "config get " + queue.Word(queue.Clip(key))
		}
	}
	if ours == "" {
		return ""
	}
	return "; use queuectl " + ours
}

// plainSettings lists the settings whose names contain neither _ nor a dot. Linking the table of settings itself
// would make the client too large.
const plainSettings = "workers timeout jitter priority shell scheduling aging resources webhooks store node"

// flagsElsewhere returns the hints about flags of other programs for a command.
func flagsElsewhere(verb string) (table []elsewhere) {
	switch verb {
	case "enqueue", "run", "edit":
		table = jobFlagsElsewhere(verb)
	case "list", "ps":
		table = []elsewhere{
			{words: "--format --fields --output --template -o", ours: "--columns COLUMNS or --json"},
			{words: "--all -a", answer: "leave it out: all jobs are listed by default (tables: 50, change it with --limit N)"},
			{words: "-n --lines --tail --head --max --count", ours: "--limit N"},
			{words: "-w -f --follow", ours: "--watch"},
			{words: "--running", ours: "--state processing"},
			{words: "--queued --pending", ours: "--state waiting"},
		}
	case "kill":
		table = []elsewhere{{words: "-1 -2 -3 -6 -9 -A -C -H -I -K -S -T -U", ours: "queuectl kill -s NAME ID"}} // -9, -HUP and the like
	case "queuectl":
		table = []elsewhere{{words: "-V -v", ours: "--version"}}
	case "logs", "attach":
		table = []elsewhere{
			{words: "--tail -l", ours: "queuectl logs -n N"},
			{words: "--full", answer: "leave it out: the whole output is printed by default (-n N prints the last N lines)"},
			{words: "-t", ours: "queuectl logs --timestamps"},
		}
	}
	return append(table, []elsewhere{
		{words: "--group --partition -g", ours: "--queue QUEUE"},
		{words: "--jobs --parallel --max-procs --slots --concurrency -j -P", ours: "queuectl worker scale N"},
		{words: "--results", ours: "queuectl logs"},
		{words: "--halt", answer: "nothing like it exists yet; cancel the remaining jobs with: queuectl cancel --batch NAME"},
		{words: "--progress --bar --eta", ours: "queuectl wait --batch NAME --progress"},
		{words: "--wait", ours: "queuectl run or queuectl wait ID"},
		{words: "--follow", ours: "queuectl attach ID or queuectl logs -f"},
		{words: "--force --assume-yes -y", ours: "--yes, with commands that ask for confirmation"},
		{words: "--all-failed -a", ours: "--failed or --all"},
		{words: "--format", ours: "--json or queuectl list --columns COLUMNS"},
	}...)
}

// jobFlagsElsewhere returns the hints for commands that create or change jobs.
func jobFlagsElsewhere(verb string) []elsewhere {
	own := []elsewhere{{words: "--follow -f", ours: "queuectl run or queuectl attach ID"}}
	if verb == "run" {
		own = []elsewhere{
			{words: "--follow -f", answer: "leave it out: run follows its job unless -d is given"},
			{words: "--jobs --max-procs -j -P", ours: "queuectl worker scale N, or --workers N with --private"},
			{words: "--progress --bar --eta", ours: "queuectl wait --batch NAME --progress (run --private shows progress by default)"},
		}
	}
	return append(own, []elsewhere{
		{words: "--pty --interactive", ours: "--tty"},
		{words: "--rm --collect", answer: "ended jobs are removed automatically (setting retention_completed); remove one now with: queuectl rm ID"},
		{words: "--batch", ours: "queuectl enqueue --batch NAME and then queuectl wait --batch NAME"}, // run has none
		{words: "--wait -W", ours: "queuectl run or queuectl wait ID"},
		{words: "--retries --retry --max-retry --max-tries", ours: "--max-retries N"},
		{words: "--attempts --tries", ours: "--max-attempts N"},
		{words: "--name --unit --job-name -J", ours: "--id NAME"},
		{words: "--directory --working-directory --workdir --chdir -w -C", ours: "--cwd DIR"},
		{words: "--time --begin --start-at --delay-until --not-before -t", ours: "--at TIME"},
		{words: "--on-active", ours: "--in DURATION"},
		{words: "--deadline", ours: "--expires-at TIME (latest start) or --timeout DURATION (longest run)"},
		{words: "--tag --tags --labels --comment -L -l", ours: "--label NAME=VALUE"},
		{words: "--immediate --first --urgent -i -u", ours: "queuectl enqueue --next"},
		{words: "--stashed --hold --held -s -H", answer: "jobs cannot be enqueued as held yet; enqueue with --in DURATION, then: queuectl hold ID"},
		{words: "--print-task-id --parsable -p", answer: "leave it out: the ID is printed by default"},
		{words: "--dependencies --dependency --depends -D -a", ours: "--after ID,ID"},
		{words: "--singleton", ours: "--unique KEY"},
		{words: "--mutex --semaphore --exclusive", ours: "--lock KEY or --lock KEY:N"},
		{words: "--rate", ours: "--rate-limit KEY=N/m"},
		{words: "--gres --gpus", ours: "--resource NAME=N"},
		{words: "--notify --email --mail --mail-to --mail-type --mail-user -m", ours: "--on-dead COMMAND or --on-ended COMMAND, with a command that sends the mail"},
		{words: "--cron --schedule --on-calendar --every --repeat", ours: "queuectl schedule add NAME 'CRON' -- PROGRAM ARGS"},
		{words: "--array", ours: "queuectl enqueue -- PROGRAM ::: A B C or --lines FILE"},
		{words: "--host --node --nodelist --sshlogin -S", ours: "--on NODE or --on LABEL=VALUE"},
		{words: "--mem --memfree", ours: "--memory SIZE"},
		{words: "--cpus-per-task --ntasks", ours: "--cpus N"},
		{words: "--setenv --export -e -E", ours: "--env NAME=VALUE or --env-pass NAME"},
		{words: "--output --error -o", ours: "queuectl logs ID, or redirect in the command: 'work >file'"},
		{words: "--uid", ours: "--user USER"},
	}...)
}

// slipIn returns a hint about the known word that was mistyped: one letter wrong, missing, too many, or two swapped;
// two such slips in a word of six letters or more. The first letter must be right, because other similar words mean
// something else. It returns "" if there is no such word.
func slipIn(word string, known []string) string {
	const longest, long = 64, 6 // letters
	typed := strings.TrimLeft(word, "-")
	most := 1
	if len(typed) >= long {
		most = 2
	}
	if typed == "" || len(typed) > longest {
		return ""
	}
	if full := abbreviated(word, known); full != "" {
		return fmt.Sprintf("; did you mean %q?", full)
	}
	best := ""
	for _, k := range known {
		meant := strings.TrimLeft(k, "-")
		if meant == "" || meant[0] != typed[0] {
			continue
		}
		if n := slips(typed, meant); n <= most {
			best, most = k, n-1 // only a nearer one is better
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// abbreviated returns the only known word that begins with this one, "" if no word or several do.
func abbreviated(word string, known []string) (full string) {
	const shortest = 4 // letters
	if len(strings.TrimLeft(word, "-")) < shortest {
		return ""
	}
	for _, k := range known {
		if strings.HasPrefix(k, word) {
			if full != "" {
				return ""
			}
			full = k
		}
	}
	return full
}

// slips returns the Damerau-Levenshtein distance of two words.
func slips(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			wrong := last[j]
			if a[i] != b[j] {
				wrong++
			}
			row[j+1] = min(wrong, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
