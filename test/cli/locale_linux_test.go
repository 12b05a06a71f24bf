package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If the locale is not UTF-8, queuectl prints only ASCII. The jobs of this test contain only ASCII, so any
// other character comes from queuectl itself.
func TestOutputIsASCIIWithoutUTF8Locale(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "done", "true")
	q.MustRunCLI("enqueue", "--id", "dead", "--max-retries", "0", "echo "+strings.Repeat("long ", 300)+"; exit 3")
	q.MustRunCLI("enqueue", "--id", "again", "--backoff-base", "1000", "exit 3")
	q.WaitUntil("the job waits for its retry", 10*time.Second, func() bool { return q.ShowJob("again").State == "failed" })
	q.MustRunCLI("enqueue", "--id", "runs", "sleep 600")
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return q.ShowJob("runs").State == "processing" })
	q.MustRunCLI("enqueue", "--id", "waits", "--in", "2h", "--", "printf", strings.Repeat("x", 2000))
	q.MustRunCLI("enqueue", "--id", "blocked", "--after", "runs", "--after", "waits", "true")
	q.MustRunCLI("enqueue", "--id", "kept", "true")
	q.MustRunCLI("hold", "kept")
	q.MustRunCLI("enqueue", "--id", "over", "true")
	q.MustRunCLI("cancel", "over")
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "true")
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
				cmd := q.CLICommand(strings.Fields(line)...)
				cmd.Env = append(cmd.Env, "LC_ALL="+locale)
				text := ""
				if columns == 0 {
					r := testrig.RunCommand(t, cmd)
					text = r.Stdout + r.Stderr
				} else {
					text, _ = testrig.RunOnTerminal(t, cmd, columns)
				}
				index := strings.IndexFunc(text, func(r rune) bool { return r > '~' })
				if index >= 0 {
					signs++
				}
				if index >= 0 && locale == "C" {
					t.Errorf("%.60s, %d columns: the output has a character that is not ASCII: %.60q", line, columns, text[max(0,
						index-20):])
				}
			}
		}
		if locale != "C" && signs < 20 {
			t.Errorf("%d outputs contain other characters than ASCII in the locale %s, want more", signs, locale)
		}
	}
}
