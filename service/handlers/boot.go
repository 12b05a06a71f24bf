package handlers

import (
	"time"

	"github.com/queuectl/queuectl/queue"
)

// longDelay is the delay of a new job above which the reply has a note about reboots. For shorter delays a
// reboot is too unlikely.
const longDelay = time.Hour

// receiptNotes holds the notes in a reply about new or edited jobs, which are everything except the jobs'
// ids.
type receiptNotes struct {
	unenforcedLimits []string // limits that are not enforced on this machine
	maxAttempts      int      // the largest max_attempts among the jobs
	notes            []string
}

// addNotes adds notes on jobs that are about to be enqueued.
func (in *intake) addNotes(m *receiptNotes, drafts []queue.Job) {
	delayed := false
	now := in.store.Now()
	for i := range drafts {
		j := &drafts[i]
		m.maxAttempts = max(m.maxAttempts, j.MaxAttempts)
		delayed = delayed || j.Delay > longDelay || j.RunAt > now.Add(longDelay)
	}
	if delayed {
		m.notes = in.boot.BootNotes()
	}
}
