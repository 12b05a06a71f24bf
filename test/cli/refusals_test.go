//go:build linux || windows

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If an edit of a job is refused, the error names the flag that the user typed. In JSON output, a separate
// member contains the name of the field.
func TestRefusedEditNamesTheFlag(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "--unique", "k", "true")
	q.MustRunCLI("enqueue", "--id", "b", "true")
	q.MustRunCLI("enqueue", "--id", "c", "true")
	const conflictText = `the unique key "k" is already used by job a`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"b", "--unique", "k"}, "queuectl: --unique: " + conflictText + "\n"},
		{[]string{"b", `{"unique":"k"}`}, "queuectl: unique: " + conflictText + "\n"},
		{[]string{"b", "c", "--unique", "k"}, "queuectl: --unique: " + conflictText + "; jobs refused: b, c\n"},
	} {
		if r := q.RunCLI(append([]string{"edit"}, c.args...)...); r.ExitCode != 5 || r.Stderr != c.want {
			t.Errorf("edit %q: %+v, want 5, %q", c.args, r, c.want)
		}
	}
	var got struct {
		Refused []struct{ ID, Code, Field, Message string }
	}
	r := q.RunCLI("edit", "b", "--unique", "k", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil || len(got.Refused) != 1 {
		t.Fatalf("edit --json of job b: %+v: %v", r, err)
	}
	if f := got.Refused[0]; f.ID != "b" || f.Code != "exists" || f.Field != "unique" || f.Message != conflictText {
		t.Errorf("the refused job in the output of edit --json: %+v", f)
	}
	if r := q.RunCLI("edit", "b", "--on", "nope"); r.ExitCode != 2 || !strings.HasPrefix(r.Stderr, "queuectl: --on: ") {
		t.Errorf("edit --on nope: %+v", r)
	}
}

// The error about an invalid flag value contains the flag as the user typed it, the problem and the next step. The
// error does not quote errors of Go's libraries. If a number is too large, the error gives this as the reason.
func TestRefusalsNameTheFlag(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "true")
	const huge = "99999999999999999999"
	const number, tooLarge = `"x" is not a whole number; use digits only, for example 10`,
		huge + " is too large; use a smaller number"
	const duration = `"x" is not a duration; write it like 90s, 1h30m, 7d, 5min or "2 hours"`
	const empty = "the value is empty; give one, or leave the flag out"
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"enqueue --priority x -- true", "--priority: " + number, 2},
		{"enqueue --priority= -- true", `--priority: "" is not a whole number; use digits only, for example 10`, 2},
		{"enqueue --priority 1.5 -- true", `--priority: "1.5" is not a whole number; use digits only, for example 10`, 2},
		{"enqueue --priority " + huge + " -- true", "--priority: " + tooLarge, 2},
		{"enqueue --priority 1000001 -- true", "--priority: 1000001 is too large; use a number from -1000000 to 1000000", 2},
		{"enqueue --jitter NaN -- true", `--jitter: "NaN" is not a number; write it like 0.5`, 2},
		{"enqueue --jitter 2 -- true", "--jitter: 2 is too large; use a number from 0 to 1", 2},
		{"enqueue --cpus 1e400 -- true", "--cpus: 1e400 is too large; use a smaller number", 2},
		{"enqueue --timeout x -- true", "--timeout: " + duration, 2},
		{"enqueue --timeout= -- true", "--timeout: " + empty, 2},
		{"enqueue --timeout -5s -- true", "--timeout: cannot be negative; use 0 or more", 2},
		{"enqueue --timeout 5y -- true", strings.ReplaceAll("--timeout: "+duration, `"x"`, `"5y"`), 2},
		{"enqueue --timeout 1e400 -- true", "--timeout: too long; the maximum is 3650d (ten years)", 2},
		{"enqueue --timeout NaN -- true", strings.ReplaceAll("--timeout: "+duration, `"x"`, `"NaN"`), 2},
		{"enqueue --backoff-max 0 -- true", "--backoff-max: 0s is too short; use a duration above 0s, at most 3650d", 2},
		{"enqueue --memory 1 -- true", "--memory: 1 is too small; use a size from 1MiB to 1PiB, or leave out " +
			"--memory for no limit", 2},
		{"enqueue --memory x -- true", `--memory: "x" is not a size; write it like 4096, 64K or 1MiB`, 2},
		{"enqueue --ok-code 99999999999 -- true", "--ok-code: must be a list of exit codes; use numbers from 0 to ", 2},
		{"enqueue --on-lost x -- true", `--on-lost: unknown value "x"; use retry, dead or hold`, 2},
		{"enqueue --allow-past=x -- true", `--allow-past: "x" is not true or false; for true, leave out the value`, 2},
		{"enqueue --unique-for 1h -- true", "--unique-for: works only with --unique; use both or neither", 2},
		{"enqueue --on-conflict reject -- true", "--on-conflict: works only with --unique; use both or neither", 2},
		{"enqueue --mask-secrets -- true", "--mask-secrets: works only with --env-secret; use both or neither", 2},
		{"enqueue --shell sh -- true", "--shell: works only with --command; argv runs without a shell", 2},
		{"enqueue --delay 1h --at 23:59 -- true", "--delay: cannot be combined with --at; use only one of them", 2},
		{"enqueue --tty --stdin x -- cat", "--tty: cannot be combined with --stdin; a job with a terminal reads its input " +
			"from the terminal; use only one of these fields", 2},
		{"enqueue --next --priority 3 -- true", "--next: cannot be combined with --priority; leave one of them out", 2},
		{"enqueue --command x y", "--command: cannot be combined with a command given as an argument; use one of them", 2},
		{"enqueue --after -1 -- true", `--after: "-1" is not a job id; list the jobs with: queuectl list`, 2},
		{"enqueue --after-any -1 -- true", `--after-any: "-1" is not a job id; list the jobs with: queuectl list`, 2},
		{"enqueue --after-batch x -- true",
			`--after-batch: you have no jobs in batch "x"; see the batch of each job, in its label ` +
				`"batch", with: queuectl list --columns id,labels`, 2},
		{"enqueue --after-batch " + strings.Repeat("x", 300) + " -- true",
			"--after-batch: too long (300 bytes); the maximum is 256 bytes", 2},
		// Each error contains the name of the label only once.
		{"enqueue --label a=" + strings.Repeat("x", 300) + " -- true",
			"--label: the value of \"a\" is too long (300 bytes); the maximum is 256 bytes\n", 2},
		{"enqueue --label a=" + strings.Repeat("x", 256) + " -- true",
			"--label: \"a\" is too long (257 bytes with its value); the maximum is 256 bytes\n", 2},
		{"list --label a=" + strings.Repeat("x", 256),
			"--label: \"a\" is too long (257 bytes with its value); the maximum is 256 bytes\n", 2},
		{"run --detach --timeout x -- true", "--timeout: " + duration, 125},
		{"run --detach --file x", "--file: works only with --private; add --private", 125},
		{"run --private --workers 0 ::: x", `--workers: "0" is not a number of workers; use 1 or more, or auto`, 125},
		{"edit a --priority 1000001", "--priority: 1000001 is too large; use a number from -1000000 to 1000000", 2},
		{"edit a --on nope", `--on: this queue has no node "nope"; see: queuectl node list`, 2},
		{"logs a -n -1", "--lines: -1 is too small; use a number from 0 to 100000", 2},
		{"logs a -n x", "--lines: " + number, 2},
		{"logs a --attempt 0", "--attempt: 0 is too small; give 1 for the first attempt, or leave out " +
			"--attempt for the last one", 2},
		{"show a --history-before -1", "--history-before: -1 is too small; use a number from 1 to 2147483647", 2},
		{"list --limit 0", "--limit: 0 is too small; use 1 or more (without --limit, a table shows 50 jobs, and other " +
			"formats all)",
			2},
		{"list --limit " + huge, "--limit: " + tooLarge, 2},
		{"list --json --columns id", "--columns: cannot be combined with --json, --jsonl or --quiet; use one of them", 2},
		{"simulate --next 0", "--next: 0 is too small; use a number from 1 to 100", 2},
		{"events --since -1", "--since: -1 is too small; use a number of 0 or more", 2},
		{"status --check --watch", "--check: cannot be combined with --watch; use one of them", 2},
		{"cancel --state x", `--state: unknown state "x"; `, 2},
		{"cancel a --all", "--all: cannot be combined with job ids; use one of them", 2},
		{"cancel --all", "--all: selects every job; confirm with --yes, or count the jobs with --dry-run", 2},
		{"cancel --older-than 0", "--older-than: 0s is too short; give a longer duration", 2},
		{"cancel --label x", `--label: "x" is not NAME=VALUE; write it like tier=gold`, 2},
		{"kill a --signal x", `--signal: "x" is not a signal; use a name like TERM or a number from 1 to 64`, 2},
		{"cleanup --days NaN", `--days: "NaN" is not a number; write it like 0.5`, 2},
		{"cleanup --days -1", "--days: -1 is too small; use a number from 0 to 36500", 2},
		{"cleanup --keep -1", "--keep: -1 is too small; use a number from 0 to 1000000000", 2},
		{"dlq retry --all --batch x", "--all: cannot be combined with --batch; use one of them", 2},
		{"queue set q --max-pending x", "--max-pending: " + number, 2},
		{"queue set q --concurrency " + huge, "--concurrency: " + tooLarge, 2},
		{"queue set q --weight 0", "--weight: 0 is too small; use a number from 1 to 1000", 2},
		{"queue set q --retention-output x", `--retention-output: "x" is not a size; write it like 4096, 64K or 1MiB`, 2},
		{"queue set q --default x", `--default: "x" is not FIELD=VALUE; write it like timeout=2h`, 2},
		{"queue set q --default timeout=x", `--default: timeout: "x" is not a duration; write it like 90s, 1h30m or 7d`, 2},
		{"queue set q --no-default x", "--no-default: x: unknown job field; list all fields with: queuectl " +
			"enqueue --help --all", 2},
		{"queue pause q --for x", "--for: " + duration, 2},
		{"queue pause q --for 1h --until 23:59", "--for: cannot be combined with --until; use one of them", 2},
		{"queue pause q --all", "--all: cannot be combined with queue names; use one of them", 2},
		{"gate set @k --lock 1 --rate 1/s", "--rate: cannot be combined with --lock; use one of them", 2},
		{"gate set @k --lock 0", "--lock: 0 is too small; use a number from 1 to 10000", 2},
		{"gate set @k", "gate set: no limit given; use --lock N, --rate N/PERIOD or --unset lock|rate; example: queuectl " +
			"gate set @k --lock 3", 2},
		{"queue set q", "queue set: no changes given; use flags such as --concurrency N, --weight N or --default " +
			"FIELD=VALUE; example: queuectl queue set q --concurrency 1", 2},
		{"migrate", "migrate: no target given; use --to postgres://USER@HOST/DATABASE, --to-file FILE (FILE " +
			"contains such a URL) or --to sqlite; example: queuectl migrate --to-file /etc/queuectl/store", 2},
		{"migrate --to-file no/such/file", "--to-file: the file with the database URL cannot be read: ", 2},
		{"worker stop", "worker stop: no number of workers given; use -c N, or --all to remove all workers", 2},
		{"worker start -c 0", "--count: 0 is too small; use 1 or more", 2},
		{"worker stop -c x", "--count: " + number, 2},
		{"worker stop -c 1 --all", "--count: cannot be combined with --all; use one of them", 2},
		{"worker stop --timeout x", "--timeout: " + duration, 2},
		{"drain --off --wait", "--wait: cannot be combined with --off; use one of them", 2},
		{"schedule add s @daily --backoff-jitter 2 -- true", "--backoff-jitter: 2 is too large; use a number from 0 to 1", 2},
		{"schedule add s @daily --jitter 2d -- true", "--jitter: 2d is too long; use a duration from 0s to 1d", 2},
		{"schedule add s @daily --overlap x -- true", `--overlap: unknown value "x"; use skip, queue or replace`, 2},
		{"web start --listen x", `--listen: "x" is not an address; use ADDRESS:PORT like 127.0.0.1:7070, or unix:/PATH`, 2},
		{"wait a --timeout x", "--timeout: " + duration, 125},
		{"list --socket=", "--socket: " + empty, 2},
		{"list --batch=", "--batch: " + empty, 2},
	} {
		r := q.RunCLI(strings.Fields(c.args)...)
		if want := "queuectl: " + c.want; r.ExitCode != c.code || !strings.HasPrefix(r.Stderr, want) ||
			strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %d, %q; want %d, %q", c.args, r.ExitCode, r.Stderr, c.code, want)
		}
	}
	if r := q.RunCLI("enqueue", "--cwd", q.Path("none"), "true"); r.ExitCode != 0 ||
		!strings.HasPrefix(r.Stderr, "queuectl: --cwd: ") {
		t.Errorf("enqueue --cwd: %+v", r)
	}
}
