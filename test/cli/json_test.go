//go:build linux || windows

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// jsonCommandsByVerb lists, for each verb, the commands that the test runs. The value for a verb is nil if other tests
// cover the verb or if the verb does not print one JSON value. Spaces separate the arguments; ~ is a space within an
// argument.
var jsonCommandsByVerb = map[string][]string{
	"enqueue": {"enqueue true", "enqueue -- echo {} ::: a b", "enqueue --key k true",
		`enqueue [{"command":"true"},{"command":"true"}]`},
	"run":    {"run true", "run --detach true"},
	"attach": {"attach done"}, "wait": {"wait done", "wait done --any", "wait --state completed"},
	"edit":   {"edit waits --priority 7", "edit --state pending --priority 8 --dry-run"},
	"retry":  {"retry done", "retry --failed --dry-run"},
	"cancel": {"cancel ends", "cancel ends", "cancel --state waiting --dry-run"},
	"rm":     {"rm removed", "rm --state dead --dry-run"},
	"status": {"status", "status --verbose", "status --check"}, "list": {"list", "list --state held", "list --failed"},
	"ps":   {"ps"},
	"show": {"show done", "show done dead", "show --state dead"}, "logs": {"logs done", "logs done dead"},
	"events": {"events", "events --since 3"},
	"dlq":    {"dlq list", "dlq retry dead2", "dlq clear --dry-run", "dlq clear --yes"}, "whoami": {"whoami"},
	// "progress" is not tested here, because it works only inside a job.
	"queue": {"queue list", "queue set gpu --weight 2 --default priority=4", "queue pause gpu", "queue resume gpu",
		"queue rm gpu"}, "progress": nil,
	"schedule": {"schedule add nightly 0~3~*~*~* --delay 1h true", "schedule list", "schedule show nightly",
		"schedule pause nightly", "schedule resume nightly", "schedule run nightly", "schedule rm nightly"},
	"gate": {"gate list", "gate set @db --lock 2"}, "node": {"node list"},
	"hook":     nil, // the verb "hook" needs a hook in the settings, which this queue does not have
	"stats":    {"stats", "stats --by hour -Q default", "stats --since 3d --until 1h"},
	"simulate": {"simulate", "simulate --next 3"}, "why": {"why waits", "why done"}, "tree": {"tree waits"},
	"worker": {"worker list", "worker start", "worker stop -c 1", "worker scale 2"}, "hold": {"hold waits", "hold waits"},
	"release": {"release waits"},
	"pause":   {"pause --state processing", "pause --all --dry-run", "pause --all"},
	"resume":  {"resume --state processing", "resume --all --dry-run", "resume --all"},
	"requeue": {"requeue --state processing"}, "kill": {"kill --state processing -s TERM"},
	"drain":   {"drain", "drain --off"},
	"cleanup": {"cleanup", "cleanup --dry-run"}, "clear": {"clear --dry-run", "clear --yes"},
	"service": {"service status"}, "serve": nil,
	"config": {"config list", "config get workers", "config set max_retries 2", "config unset max_retries"},
	"reload": {"reload"}, "doctor": {"doctor"}, "backup": {"backup copy.db"}, "restore": nil, "migrate": nil,
	"completion": nil, "man": nil, // these commands print scripts and manual pages
	"web":     {"web start --listen 127.0.0.1:0", "web open", "web stop"},
	"metrics": nil, // this command prints its own text format
	"mcp":     nil, // this command speaks its own protocol
	"top":     nil, // this command is an interactive screen
	"schema":  {"schema", "schema enqueue"}, "init": {"init"}, "version": {"version"},
}

// Every command prints one value with --json and one value per line with --jsonl. A job has the same members in
// all outputs. The result of a dry run is always in the same member.
func TestEveryVerbAnswersInJSON(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	verbs := regexp.MustCompile(`(?m)^  ([a-z]+) {2,}[A-Z]`).FindAllStringSubmatch(q.MustRunCLI("--help"), -1)
	if len(verbs) < 30 {
		t.Fatalf("the program lists only %d verbs", len(verbs))
	}
	jobKeys := map[string]string{} // names of the members of a job in the output, by command
	for _, jsonl := range []bool{false, true} {
		q.MustRunCLI("enqueue", "--file", q.WriteFile("jobs",
			`[{"id":"done","command":"echo hi"}, {"id":"dead","command":"exit 3","max_retries":0}, {"id":"dead2","command":"exit 4","max_retries":0},
			{"id":"waits","command":"true","delay":"1h"}, {"id":"ends","command":"true","delay":"1h"}, {"id":"removed","command":"true","delay":"1h"}]`))
		q.RunCLI("wait", "done", "dead", "dead2")
		for _, verb := range verbs {
			lines, listed := jsonCommandsByVerb[verb[1]]
			if !listed {
				t.Errorf("%s: not in the table jsonCommands; add it", verb[1])
			}
			for _, line := range lines {
				os.Remove(q.Path("copy.db"))
				flag := "--json"
				if jsonl {
					flag = "--jsonl"
				}
				got := q.RunCLI(append([]string{flag}, splitWords(line)...)...)
				values, ok := jsonValues(got.Stdout)
				if !ok || !jsonl && len(values) != 1 || jsonl && strings.Count(got.Stdout, "\n") != len(values) {
					t.Errorf("%s %s: exit code %d, %d values:\n%s%s", line, flag, got.ExitCode, len(values), got.Stdout, got.Stderr)
				}
				for _, v := range values {
					recordJobMembers(t, line, v, jobKeys)
				}
				if strings.Contains(line, "--dry-run") && !strings.Contains(got.Stdout, `"matched":`) {
					t.Errorf("%s %s does not print the number of matching jobs: %s", line, flag, got.Stdout)
				}
			}
		}
	}
	for _, line := range []string{"list", "run true", "run --detach true", "attach done", "wait done",
		"wait --state completed", "enqueue true", "enqueue -- echo {} ::: a b", jsonCommandsByVerb["enqueue"][3],
		"dlq list"} {
		if jobKeys[line] == "" || jobKeys[line] != jobKeys["list"] {
			t.Errorf("jobs in the output of %s have the members %q\nin that of list %q", line, jobKeys[line], jobKeys["list"])
		}
	}
	more := append(strings.Fields(jobKeys["list"]), "history", "history_total", "result", "output", "spec", "stderr",
		"stdout_bytes")
	slices.Sort(more)
	if want := strings.Join(more, " "); jobKeys["show done"] != want {
		t.Errorf("the job in the output of show has the members %q\nwant %q", jobKeys["show done"], want)
	}
}

// splitWords splits a line into words and replaces ~ by a space.
func splitWords(line string) []string {
	words := strings.Fields(line)
	for i, w := range words {
		words[i] = strings.ReplaceAll(w, "~", " ")
	}
	return words
}

// jsonValues parses a text that consists of JSON values. ok is false if the text contains anything
// else.
func jsonValues(text string) (values []any, ok bool) {
	d := json.NewDecoder(strings.NewReader(text))
	for {
		var v any
		switch err := d.Decode(&v); err {
		case nil:
			values = append(values, v)
		case io.EOF:
			return values, true
		default:
			return values, false
		}
	}
}

// recordJobMembers finds jobs in the output of a command, and stores the names of the jobs' members under the command.
// All jobs must have the same members, except for a few members that only some jobs have.
func recordJobMembers(t *testing.T, command string, output any, memberNamesByCommand map[string]string) {
	t.Helper()
	if list, ok := output.([]any); ok {
		for _, one := range list {
			recordJobMembers(t, command, one, memberNamesByCommand)
		}
		return
	}
	job, _ := output.(map[string]any)
	if job["seq"] == nil || job["state"] == nil || job["priority"] == nil {
		return // output is not a job
	}
	var names []string
	for name := range job {
		if name == "env" {
			t.Errorf("the output of %s contains the environment of a job", command)
		}
		if name != "argv" && name != "command" && name != "schedule" { // only some jobs have these members
			names = append(names, name)
		}
	}
	slices.Sort(names)
	all := strings.Join(names, " ")
	if previous := memberNamesByCommand[command]; previous != "" && previous != all {
		t.Errorf("%s: jobs have different members, %q and %q", command, previous, all)
	}
	memberNamesByCommand[command] = all
}

// If `queuectl wait` is used with a selection, it prints each job as a JSON line when the job ends, not at the
// end of the wait.
func TestWaitPrintsJobsAsTheyEnd(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "first", "--label", "s=1", "true")
	q.MustRunCLI("enqueue", "--id", "second", "--label", "s=1", "--delay", "1h", "true")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, q.ClientPath, "--dir", q.StateDir, "wait", "--label", "s=1", "--jsonl")
	cmd.Env = testrig.UserEnvironment(q.StateDir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for _, id := range []string{"first", "second"} {
		line, err := lines.ReadString('\n')
		if !strings.HasPrefix(line, `{"id":"`+id+`"`) {
			t.Errorf("wait printed %q, %v, want job %s", line, err, id)
		}
		if id == "first" {
			q.MustRunCLI("cancel", "second")
		}
	}
	if remaining, _ := io.ReadAll(lines); len(remaining) > 0 {
		t.Errorf("wait printed further output: %q", remaining)
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit code %d, want that of a cancelled job", cmd.ProcessState.ExitCode())
	}
}
