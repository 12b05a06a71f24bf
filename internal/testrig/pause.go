//go:build linux || windows

package testrig

import (
	"encoding/json"
	"time"
)

// pausedJob contains the members of show --json about a pause.
type pausedJob struct {
	State    string    `json:"state"`
	PausedAt time.Time `json:"paused_at"`
	PausedBy string    `json:"paused_by"`
}

func (q *Queue) PauseOf(id string) (j pausedJob) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.Must("show", id, "--json")), &j); err != nil {
		q.Fatal(err)
	}
	return j
}
