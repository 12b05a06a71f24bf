package test

import (
	"strings"
	"testing"
	"time"
)

// Where the locale is not UTF-8, queuectl prints only ASCII. The texts of the jobs are ASCII, so
// every other character would come from queuectl.
func TestOutputIsASCIIWithoutUTF8Locale(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	q.must("enqueue", "--id", "done", "true")
	q.must("enqueue", "--id", "dead", "--max-retries", "0", "echo "+strings.Repeat("long ", 300)+"; exit 3")
	q.must("enqueue", "--id", "again", "--backoff-base", "1000", "exit 3")
	q.waitUntil("it is to be retried", 10*time.Second, func() bool { return q.show("again").State == "failed" })
	q.must("enqueue", "--id", "runs", "sleep 600")
	q.waitUntil("it runs", 10*time.Second, func() bool { return q.show("runs").State == "processing" })
	q.must("enqueue", "--id", "waits", "--in", "2h", "--", "printf", strings.Repeat("x", 2000))
	q.must("enqueue", "--id", "blocked", "--after", "runs", "--after", "waits", "true")
	q.must("enqueue", "--id", "kept", "true")
	q.must("hold", "kept")
	q.must("enqueue", "--id", "over", "true")
	q.must("cancel", "over")
	q.must("schedule", "add", "nightly", "0 3 * * *", "true")
	for _, locale := range []string{"C", "C.UTF-8"} {
		signs := 0
		for _, line := range []string{
			"", "status", "status --verbose", "list", "list --limit 2", "list --failed", "ps", "show dead waits", "why waits",
			"tree blocked", "tree runs", "simulate", "stats",
			"queue list", "dlq list", "events", "worker list", "gate list", "schedule list", "schedule show nightly",
			"node list", "config list", "whoami", "doctor",
			"--help", "-h", "enqueue --help", "enqueue --help --all", "run --help --all", "list --help", "schedule add --help",
			"wait --help", "run -- echo {} ::: a", "enqueue echo ::: a", "schedule add '0 3 * * * *' ls",
			"enqueue --queue " + strings.Repeat("q", 200) + " true", "show " + strings.Repeat("n", 200),
			"wait done again --timeout 10ms --progress", "cancel done dead over",
		} {
			for _, columns := range []int{0, 40, 600} {
				cmd := q.command(strings.Fields(line)...)
				cmd.Env = append(cmd.Env, "LC_ALL="+locale)
				text := ""
				if columns == 0 {
					r := runCommand(t, cmd)
					text = r.out + r.err
				} else {
					text, _ = runOnTerminal(t, cmd, columns)
				}
				index := strings.IndexFunc(text, func(r rune) bool { return r > '~' })
				if index >= 0 {
					signs++
				}
				if index >= 0 && locale == "C" {
					t.Errorf("%.60s, %d columns: prints %.60q", line, columns, text[max(0, index-20):])
				}
			}
		}
		if locale != "C" && signs < 20 {
			t.Errorf("%d outputs have signs in %s, want more", signs, locale)
		}
	}
}
