package service

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

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
func (s *Service) addNotes(m *receiptNotes, drafts []queue.Job) {
	delayed := false
	now := s.store.Now()
	for i := range drafts {
		j := &drafts[i]
		m.maxAttempts = max(m.maxAttempts, j.MaxAttempts)
		delayed = delayed || j.Delay > longDelay || j.RunAt > now.Add(longDelay)
	}
	if delayed {
		m.notes = s.bootNotes()
	}
}

// bootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// does so, or if that is unknown.
func (s *Service) bootAdvice() string {
	if s.opt.BootAdvice == nil {
		return ""
	}
	return s.opt.BootAdvice()
}

// bootNotes returns a note for jobs that are due much later: the service does not start at boot. If it does
// start at boot, bootNotes returns nothing.
func (s *Service) bootNotes() []string {
	advice := s.bootAdvice()
	if advice == "" {
		return nil
	}
	return []string{"this service does not start at boot, so no job runs after a reboot until you start it; to change that: " + advice}
}

// examineBoot reports a service that does not start at boot.
func (s *Service) examineBoot() []store.Finding {
	advice := s.bootAdvice()
	if advice == "" {
		return nil
	}
	return []store.Finding{{
		Check: "boot", Level: store.Warning, Next: advice,
		Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
	}}
}
