//go:build linux || windows

package testrig

import (
	"encoding/json"
	"strings"
)

// Event is one line of the event stream.
type Event struct {
	Seq   int64
	Event string
	ID    string
	State string
	User  string
	Key   string
}

// Events returns the output of "queuectl events".
func (q *Queue) Events(args ...string) (list []Event) {
	q.Helper()
	for line := range strings.Lines(q.Must(append([]string{"events", "--jsonl"}, args...)...)) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			q.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}
