package cli

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl logs -f` follows a limited number of jobs at the same time. It prints the output of further
// running jobs when they end.
func TestLogsFollowLimitedNumberOfJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "40")
	w := q.DialService()
	for i := range 30 {
		id := w.Enqueue(testrig.JSONFields{"id": fmt.Sprint("long", i), "queue": "a", "command": "echo up; while [ ! -e " +
			q.Path("go") +
			" ]; do sleep 0.1; done"})
		w.WaitJobRunning(id)
	}
	lines, _ := q.StartPrintingCommand("logs", "-f", "--queue", "a", "--jsonl")
	printed := map[string]string{}
	until := func(id, want string) {
		t.Helper()
		for printed[id] != want {
			if !lines.Scan() {
				t.Fatalf("logs -f printed %[2]q for job %[1]s, want %[3]q", id, printed[id], want)
			}
			var p struct{ ID, Text string }
			if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
				t.Fatal(err)
			}
			printed[p.ID] += p.Text
		}
	}
	until("long29", "up\n") // the list of followed jobs begins with the newest job
	w.Enqueue(testrig.JSONFields{"id": "short", "queue": "a", "command": "echo short"})
	until("short", "short\n")
	q.WriteFile("go", "")
	for i := range 30 {
		until(fmt.Sprint("long", i), "up\n")
	}
}
