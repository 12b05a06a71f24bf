package service

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// longDelay is the longest wait of a new job about which nothing is said: within it a reboot is unlikely.
const longDelay = time.Hour

// remarks holds what the receipt of new or edited jobs contains in addition to their ids.
type remarks struct {
	unenforced  []string // limits that are not enforced here
	maxAttempts int      // the largest number of attempts of one of the jobs
	notes       []string
}

// remark completes the remarks on jobs that are about to be enqueued.
func (s *Service) remark(m *remarks, drafts []queue.Job) {
	late := false
	now := s.store.Now()
	for i := range drafts {
		j := &drafts[i]
		m.maxAttempts = max(m.maxAttempts, j.MaxAttempts)
		late = late || j.Delay > longDelay || j.RunAt > now.Add(longDelay)
	}
	if late {
		m.notes = s.bootNotes()
	}
}

// bootAdvice returns how to make the service start at boot: "" if it does, or if that is not known.
func (s *Service) bootAdvice() string {
	if s.opt.BootAdvice == nil {
		return ""
	}
	return s.opt.BootAdvice()
}

// bootNotes returns what to say of jobs that are due much later, if the service does not start at boot.
func (s *Service) bootNotes() []string {
	advice := s.bootAdvice()
	if advice == "" {
		return nil
	}
	return []string{"this service does not start at boot, so no job runs after a reboot until you start it; to change that: " + advice}
}

// examineBoot reports whether the service starts at boot.
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
