package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/queue"
)

// elsewhere is what people know by some words from pueue, task-spooler, at, GNU parallel,
// systemd or Slurm. Either it has words of ours, or the answer says what is missing.
type elsewhere struct{ words, ours, answer string }

// hintAt is what a table says of a word, "" if it is not in it.
func hintAt(word string, table []elsewhere) string {
	for _, e := range table {
		switch known := slices.Contains(strings.Fields(e.words), word); {
		case known && e.ours != "":
			return "; here it is: " + e.ours
		case known:
			return "; " + e.answer
		}
	}
	return ""
}

// verbsElsewhere are verbs. The table is made when it is asked for, as all that few starts of
// the program need.
func verbsElsewhere() []elsewhere {
	return []elsewhere{
		{words: "follow", ours: "attach, or logs -f"},
		{words: "tail", ours: "logs -f"},
		{words: "cat output journal", ours: "logs"},
		{words: "stash", ours: "hold"},
		{words: "suspend freeze", ours: "pause for a job that runs, hold for one that waits"},
		{words: "unpause thaw continue", ours: "resume"},
		{words: "at enqueue-at", ours: "enqueue --at TIME"},
		{words: "restart", ours: "retry; service restart is of the service"},
		{words: "redo", ours: "retry"},
		{words: "remove delete del", ours: "rm"},
		{words: "atrm abort scancel", ours: "cancel"},
		{words: "killall", ours: "cancel --all, or kill --all for a signal"},
		{words: "atq jobs squeue sacct", ours: "list"},
		{words: "batch", ours: "enqueue --batch NAME"},
		{words: "submit push sbatch", ours: "enqueue"},
		{words: "srun exec", ours: "run"},
		{words: "info inspect describe", ours: "show"},
		{words: "stop", ours: "cancel for a job, service stop for the service"},
		{words: "shutdown quit", ours: "service stop; what runs goes on, and drain --wait waits for it before"},
		{words: "parallel", ours: "worker scale N"},
		{words: "start", ours: "release for a held job, resume for a paused one, worker start for workers, service start for the service"},
		{words: "switch swap urgent move", ours: "edit ID --priority N, and enqueue --next for a new job"},
		{words: "send", ours: "attach, for a job with --tty"},
		{words: "clean purge", ours: "cleanup"},
		{words: "reset", ours: "clear"},
		{words: "watch", ours: "top, or status --watch"},
		{words: "sinfo", ours: "status, or node list"},
		{words: "nodes hosts machines scontrol", ours: "node list"},
		{words: "sacctmgr sreport statistics history", ours: "stats"},
		{words: "enable install", ours: "service install"},
		{words: "disable uninstall", ours: "service uninstall"},
		{words: "daemon", ours: "serve, or service start"},
		{words: "workers", ours: "worker list, or worker scale N"},
		{words: "signal pkill", ours: "kill -s NAME ID"},
		{words: "group groups queues partition", ours: "queue"},
		{words: "depend dependencies depends", ours: "tree ID; enqueue --after ID"},
		{words: "schedules cron crontab timer timers", ours: "schedule add NAME 'CRON' -- program args, and schedule list"},
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
				return "; here it is: " + group + " " + usage
			}
		}
	}
	return ""
}

// argumentHint returns what was meant by arguments that a verb does not take, "" if that is not known.
func argumentHint(verb string, args []string) string {
	word, ours := args[0], ""
	_, notNumber := strconv.ParseUint(word, 10, 64)
	switch state := queue.StateMeant(word); verb {
	case "list", "ps", "status":
		switch {
		case word == "all" && verb == "status":
			ours = "list"
		case word == "all":
			return "; all are listed without it"
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
	return "; here it is: " + ours
}

// plainSettings lists the settings whose names contain neither _ nor a dot. Linking the table of settings itself
// would make the client too large.
const plainSettings = "workers timeout jitter priority shell scheduling aging resources webhooks store node"

// flagsElsewhere are flags of a verb.
func flagsElsewhere(verb string) (table []elsewhere) {
	switch verb {
	case "enqueue", "run", "edit":
		table = jobFlagsElsewhere(verb)
	case "list", "ps":
		table = []elsewhere{
			{words: "--format --fields --output --template -o", ours: "--columns NAMES, or --json"},
			{words: "--all -a", answer: "all are listed without it, and --limit N of them in a table"},
			{words: "-n --lines --tail --head --max --count", ours: "--limit N"},
			{words: "-w -f --follow", ours: "--watch"},
			{words: "--running", ours: "--state processing"},
			{words: "--queued --pending", ours: "--state waiting"},
		}
	case "kill":
		table = []elsewhere{{words: "-1 -2 -3 -6 -9 -A -C -H -I -K -S -T -U", ours: "kill -s NAME ID"}} // -9, -HUP and the like
	case "queuectl":
		table = []elsewhere{{words: "-V -v", ours: "--version"}}
	case "logs", "attach":
		table = []elsewhere{
			{words: "--tail -l", ours: "logs -n N"},
			{words: "--full", answer: "all is printed without it, and the last lines with -n N"},
			{words: "-t", ours: "logs --timestamps"},
		}
	}
	return append(table, []elsewhere{
		{words: "--group --partition -g", ours: "--queue NAME"},
		{words: "--jobs --parallel --max-procs --slots --concurrency -j -P", ours: "worker scale N"},
		{words: "--results", ours: "logs"},
		{words: "--halt", answer: "there is nothing like it yet; cancel --batch NAME ends what is left"},
		{words: "--progress --bar --eta", ours: "wait --batch NAME --progress"},
		{words: "--wait", ours: "run, or wait ID"},
		{words: "--follow", ours: "attach ID, or logs -f"},
		{words: "--force --assume-yes -y", ours: "--yes, of verbs that ask"},
		{words: "--all-failed -a", ours: "--failed, or --all"},
		{words: "--format", ours: "--json, or list --columns NAMES"},
	}...)
}

// jobFlagsElsewhere are flags of verbs that make or change jobs.
func jobFlagsElsewhere(verb string) []elsewhere {
	own := []elsewhere{{words: "--follow -f", ours: "run, or attach ID"}}
	if verb == "run" {
		own = []elsewhere{
			{words: "--follow -f", answer: "run follows its job without it, and with -d it does not"},
			{words: "--jobs --max-procs -j -P", ours: "worker scale N, or --workers N with --private"},
			{words: "--progress --bar --eta", ours: "wait --batch NAME --progress; with --private it is shown without a flag"},
		}
	}
	return append(own, []elsewhere{
		{words: "--pty --interactive", ours: "--tty"},
		{words: "--rm --collect", answer: "jobs that have ended go by themselves after a time (retention_completed), and rm ID removes one"},
		{words: "--batch", ours: "enqueue --batch NAME, then wait --batch NAME"}, // run has none
		{words: "--wait -W", ours: "run, or wait ID"},
		{words: "--retries --retry --max-retry --max-tries", ours: "--max-retries N"},
		{words: "--attempts --tries", ours: "--max-attempts N"},
		{words: "--name --unit --job-name -J", ours: "--id NAME"},
		{words: "--directory --working-directory --workdir --chdir -w -C", ours: "--cwd FOLDER"},
		{words: "--time --begin --start-at --delay-until --not-before -t", ours: "--at TIME"},
		{words: "--on-active", ours: "--in DURATION"},
		{words: "--deadline", ours: "--expires-at TIME for its start, --timeout DURATION for its end"},
		{words: "--tag --tags --labels --comment -L -l", ours: "--label NAME=VALUE"},
		{words: "--immediate --first --urgent -i -u", ours: "enqueue --next"},
		{words: "--stashed --hold --held -s -H", answer: "a job is not held from its start yet; enqueue it with --in DURATION, then hold ID"},
		{words: "--print-task-id --parsable -p", answer: "the id is printed without it"},
		{words: "--dependencies --dependency --depends -D -a", ours: "--after ID,ID"},
		{words: "--singleton", ours: "--unique KEY"},
		{words: "--mutex --semaphore --exclusive", ours: "--lock KEY, or KEY:N"},
		{words: "--rate", ours: "--rate-limit KEY=N/m"},
		{words: "--gres --gpus", ours: "--resource NAME=N"},
		{words: "--notify --email --mail --mail-to --mail-type --mail-user -m", ours: "--on-dead 'LINE', or --on-ended, with a shell line that sends the mail"},
		{words: "--cron --schedule --on-calendar --every --repeat", ours: "schedule add NAME 'CRON' -- program args"},
		{words: "--array", ours: "enqueue -- program ::: A B C, or --lines FILE"},
		{words: "--host --node --nodelist --sshlogin -S", ours: "--on NODE, or --on LABEL=VALUE"},
		{words: "--mem --memfree", ours: "--memory SIZE"},
		{words: "--cpus-per-task --ntasks", ours: "--cpus N"},
		{words: "--setenv --export -e -E", ours: "--env NAME=VALUE, or --env-pass NAME"},
		{words: "--output --error -o", ours: "logs ID; or the shell's: 'work >file'"},
		{words: "--uid", ours: "--user NAME"},
	}...)
}

// slipIn is a hint at the known word of which word is a slip of typing: one letter wrong,
// missing, too many, or two that changed places, and two of these in a word of six letters or
// more. The first letter is right. Other words that look alike mean something else. It is ""
// if there is none.
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

// slips is how many slips of typing are between two words: the distance of Damerau, by rows.
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
