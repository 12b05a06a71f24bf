package test

import (
	"encoding/json"
	"fmt"
	"testing"
)

// If more jobs of a queue run than logs -f can follow at the same time, the output of the remaining jobs is
// printed when they end.
func TestFollowAFullQueue(t *testing.T) {
	q := startQueue(t, "--workers", "40")
	w := q.dial()
	for i := range 30 {
		id := w.enqueue(fields{"id": fmt.Sprint("long", i), "queue": "a", "command": "echo up; while [ ! -e " + q.path("go") +
			" ]; do sleep 0.1; done"})
		w.waitRunning(id)
	}
	lines, _ := q.startFollowing("logs", "-f", "--queue", "a", "--jsonl")
	printed := map[string]string{}
	until := func(id, want string) {
		t.Helper()
		for printed[id] != want {
			if !lines.Scan() {
				t.Fatalf("%s has printed %q, want %q", id, printed[id], want)
			}
			var p struct{ ID, Text string }
			if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
				t.Fatal(err)
			}
			printed[p.ID] += p.Text
		}
	}
	until("long29", "up\n") // the newest running job is followed, because lists begin with the newest job
	w.enqueue(fields{"id": "short", "queue": "a", "command": "echo short"})
	until("short", "short\n")
	q.writeFile("go", "")
	for i := range 30 {
		until(fmt.Sprint("long", i), "up\n")
	}
}
