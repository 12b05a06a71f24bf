package service

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// bootAdvisor knows whether the service starts at boot.
type bootAdvisor struct {
	adviseBoot func() string // see Options.BootAdvice; may be nil
}

// longDelay is the delay of a new job above which the reply has a note about reboots. For shorter delays a
// reboot is too unlikely.
const longDelay = time.Hour

// receiptNotes holds the notes in a reply about new or edited jobs, which are everything except the jobs'
// ids.
type receiptNotes struct {
	unenforced  []string // limits that are not enforced on this machine
	maxAttempts int      // the largest max_attempts among the jobs
	notes       []string
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
		m.notes = in.boot.bootNotes()
	}
}

// bootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// does so, or if that is unknown.
func (b *bootAdvisor) bootAdvice() string {
	if b.adviseBoot == nil {
		return ""
	}
	return b.adviseBoot()
}

// bootNotes returns a note for jobs that are due much later: the service does not start at boot. If it does
// start at boot, bootNotes returns nothing.
func (b *bootAdvisor) bootNotes() []string {
	advice := b.bootAdvice()
	if advice == "" {
		return nil
	}
	return []string{"this service does not start at boot, so no job runs after a reboot until you start it; to change that: " + advice}
}

// examineBoot reports a service that does not start at boot.
func (d *Examiner) examineBoot() []store.Finding {
	advice := d.boot.bootAdvice()
	if advice == "" {
		return nil
	}
	return []store.Finding{{
		Check: "boot", Level: store.Warning, Next: advice,
		Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
	}}
}
