// Package hints suggests the command, flag or argument that the user probably meant.
//
// Start with Lookup, for the words of other programs, and SimilarWord, for typing errors.
package hints

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/queue"
)

// The tables in this file map words of pueue, task-spooler, at, GNU parallel, systemd and Slurm to
// hints. Each line has words, ": " and the hint. The tables are text because slices of structs
// would make queuectl several KB larger.

// Lookup returns the hint that a table has about a word, or "" if the table does not contain the
// word.
func Lookup(word, table string) string {
	for line := range strings.Lines(table) {
		words, hint, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if slices.Contains(strings.Fields(words), word) {
			return "; " + hint
		}
	}
	return ""
}

// Commands is the table of hints about commands of other programs.
const Commands = `follow: use queuectl attach or queuectl logs -f
tail: use queuectl logs -f
cat output journal: use queuectl logs
stash: use queuectl hold
suspend freeze: use queuectl pause (running jobs) or queuectl hold (waiting jobs)
unpause thaw continue: use queuectl resume
at enqueue-at: use queuectl enqueue --at TIME
restart: use queuectl retry (run a job again) or queuectl service restart
redo: use queuectl retry
remove delete del: use queuectl rm
atrm abort scancel: use queuectl cancel
killall: use queuectl cancel --all, or queuectl kill --all to send a signal
atq jobs squeue sacct: use queuectl list
batch: use queuectl enqueue --batch NAME
submit push sbatch: use queuectl enqueue
srun exec: use queuectl run
info inspect describe: use queuectl show
stop: use queuectl cancel (a job) or queuectl service stop
shutdown quit: use queuectl service stop; to let running jobs finish first: queuectl drain --wait
parallel: use queuectl worker scale N
start: use queuectl release (held jobs), queuectl resume (paused jobs), queuectl worker start or queuectl service start
switch swap urgent move: use queuectl edit ID --priority N, or queuectl enqueue --next for a new job
send: use queuectl attach, if the job was enqueued with --tty
clean purge: use queuectl cleanup
reset: use queuectl clear
watch: use queuectl top or queuectl status --watch
sinfo: use queuectl status or queuectl node list
nodes hosts machines scontrol: use queuectl node list
sacctmgr sreport statistics history: use queuectl stats
enable install: use queuectl service install
disable uninstall: use queuectl service uninstall
daemon: use queuectl serve or queuectl service start
workers: use queuectl worker list or queuectl worker scale N
signal pkill: use queuectl kill -s SIGNAL ID
group groups queues partition: use queuectl queue
depend dependencies depends: use queuectl tree ID to show dependencies, or queuectl enqueue --after ID to add one
schedules cron crontab timer timers: use queuectl schedule add NAME 'CRON' -- PROGRAM ARGS or queuectl schedule list
`

// groupVerbsElsewhere maps subcommands of other programs, as in `queue delete`, to those of
// queuectl. A group has only some of queuectl's subcommands, so a word may be in several lines.
const groupVerbsElsewhere = `ls: list
delete del remove destroy: rm
delete del remove: unset
create new make: add
create new make add: set
edit update change: set
info inspect describe: show
stop disable suspend: pause
start enable unpause continue: resume
trigger now: run
`

// ForGroup returns a hint that names the subcommand for a word of another program, or "" if no
// subcommand matches.
func ForGroup(group, word string, verbs []*cobra.Command) string {
	for line := range strings.Lines(groupVerbsElsewhere) {
		words, inGroup, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !slices.Contains(strings.Fields(words), word) {
			continue
		}
		for _, v := range verbs {
			if v.Name() == inGroup {
				usage, _, _ := strings.Cut(v.Use, " [")
				usage, _, _ = strings.Cut(usage, " |")
				return "; use queuectl " + group + " " + usage
			}
		}
	}
	return ""
}

// ForArguments returns a hint about arguments that a command does not take, or "" if it is unclear
// what the user meant.
func ForArguments(verb string, args []string) string {
	word, known := args[0], ""
	_, notNumber := strconv.ParseUint(word, 10, 64)
	switch state := queue.StateForWord(word); verb {
	case "list", "ps", "status":
		switch {
		case word == "all" && verb == "status":
			known = "list"
		case word == "all":
			return `; leave out "all", because list selects all jobs`
		case state != "" && verb == "status":
			known = "list --state " + state
		case state != "":
			known = verb + " --state " + state
		default:
			known = "show " + queue.ShellWord(queue.Clip(word))
		}
	case "worker":
		if notNumber == nil {
			known = "worker scale " + word
		}
	case "gate":
		return Lookup(word, "rm delete del remove unset: remove a limit with: queuectl gate set @KEY --unset lock (or "+
			"rate); list the keys with: queuectl gate list")
	case "config":
		key, value, given := strings.Cut(word, "=")
		if len(args) > 1 {
			value, given = args[1], true
		}
		switch {
		case !strings.ContainsAny(key, "_.") && !slices.Contains(strings.Fields(PlainSettings), key):
			return ""
		case given:
			known = "config set " + queue.ShellWord(queue.Clip(key)) + " " + queue.ShellWord(queue.Clip(value))
		default:
			known = "config get " + queue.ShellWord(queue.Clip(key))
		}
	}
	if known == "" {
		return ""
	}
	return "; use queuectl " + known
}

// PlainSettings lists the settings whose names contain neither _ nor a dot. Linking the table of
// settings itself would make queuectl too large.
const PlainSettings = "workers timeout jitter priority shell scheduling aging resources webhooks store node"

// Flags returns the hints about flags of other programs for a command. Flags like -9 and
// -HUP have a hint only for the command kill. asks says whether the command has the flag --yes.
func Flags(verb string, asks bool) string {
	rest := anyFlagsElsewhere + "--force --assume-yes -y: leave this flag out, because the command asks no questions\n"
	if asks {
		rest = anyFlagsElsewhere + "--force --assume-yes -y: use --yes\n"
	}
	switch verb {
	case "enqueue", "edit":
		return enqueueFlagsElsewhere + jobFlagsElsewhere + rest
	case "run":
		return runFlagsElsewhere + jobFlagsElsewhere + rest
	case "list", "ps":
		return listFlagsElsewhere + rest
	case "kill":
		return "-1 -2 -3 -6 -9 -A -C -H -I -K -S -T -U: use queuectl kill -s SIGNAL ID, for example -s KILL\n" + rest
	case "queuectl":
		return "-V -v: use --version\n" + rest
	case "logs", "attach":
		return logsFlagsElsewhere + rest
	}
	return rest
}

// These constants are the tables of hints about flags, one for each command. jobFlagsElsewhere is
// for commands that create or change jobs, anyFlagsElsewhere for all commands.
const (
	enqueueFlagsElsewhere = `--follow -f: use queuectl run or queuectl attach ID
`
	runFlagsElsewhere = `--follow -f --wait -W: leave this flag out, because run follows its job unless -d is given
--jobs --max-procs -j -P: use queuectl worker scale N, or --workers N with --private
--progress --bar --eta: use queuectl wait --batch NAME --progress (run --private shows progress by default)
`
	listFlagsElsewhere = `--format --fields --output --template -o: use --columns COLUMNS or --json
--all -a: leave this flag out, because list selects all jobs; for more than 50 in a table, use --limit N
-n --lines --tail --head --max --count: use --limit N
-w -f --follow: use --watch
--running: use --state processing
--queued --pending: use --state waiting
`
	logsFlagsElsewhere = `--tail -l: use queuectl logs -n N
--full: leave this flag out, because the whole output is printed by default
-t: use queuectl logs --timestamps
`
	jobFlagsElsewhere = `--pty --interactive: use --tty
--rm --collect: ended jobs are removed automatically (setting retention_completed); remove one now with: queuectl rm ID
--batch: use queuectl enqueue --batch NAME and then queuectl wait --batch NAME
--wait -W: use queuectl run, or afterwards queuectl wait ID
--retries --retry --max-retry --max-tries: use --max-retries N
--attempts --tries: use --max-attempts N
--name --unit --job-name -J: use --id NAME
--directory --working-directory --workdir --chdir -w -C: use --cwd DIR
--time --begin --start-at --delay-until --not-before -t: use --at TIME
--on-active: use --in DURATION
--deadline: use --expires-at TIME (latest start) or --timeout DURATION (longest run)
--tag --tags --labels --comment -L -l: use --label NAME=VALUE
--immediate --first --urgent -i -u: use queuectl enqueue --next
--stashed --hold --held -s -H: to hold a new job, enqueue it with --in DURATION, then run: queuectl hold ID
--print-task-id --parsable -p: leave this flag out, because the ID is printed by default
--dependencies --dependency --depends -D -a: use --after ID,ID
--singleton: use --unique KEY
--mutex --semaphore --exclusive: use --lock KEY or --lock KEY:N
--rate: use --rate-limit KEY=N/m
--gres --gpus: use --resource NAME=N
--notify --email --mail --mail-to --mail-type --mail-user -m: use --on-dead COMMAND or --on-ended COMMAND, with a command that sends the mail
--cron --schedule --on-calendar --every --repeat: use queuectl schedule add NAME 'CRON' -- PROGRAM ARGS
--array: use queuectl enqueue -- PROGRAM ::: A B C or --lines FILE
--host --node --nodelist --sshlogin -S: use --on NODE or --on LABEL=VALUE
--mem --memfree: use --memory SIZE
--cpus-per-task --ntasks: use --cpus N
--setenv --export -e -E: use --env NAME=VALUE or --env-pass NAME
--output --error -o: use queuectl logs ID, or redirect in the command: 'work >file'
--uid: use --user USER
`
	anyFlagsElsewhere = `--group --partition -g: use --queue QUEUE
--jobs --parallel --max-procs --slots --concurrency -j -P: use queuectl worker scale N
--results: use queuectl logs
--halt: to cancel the remaining jobs after a failure, use queuectl cancel --batch NAME
--progress --bar --eta: use queuectl wait --batch NAME --progress
--wait: to wait until a job has ended, use queuectl wait ID
--follow: use queuectl attach ID or queuectl logs -f
--all-failed -a: use --failed or --all
--format: use --json or queuectl list --columns COLUMNS
`
)
