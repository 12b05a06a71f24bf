package doctor

import "github.com/queuectl/queuectl/store"

// BootNotes returns notes for a user who enqueues jobs that are due much later: one note if the service does
// not start at boot, and otherwise nil.
func (h *HealthCheck) BootNotes() []string {
	if advice := h.bootAdvice(); advice != "" {
		return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
			"it; to change that: " + advice}
	}
	return nil
}

// bootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// does, or if this is unknown.
func (h *HealthCheck) bootAdvice() string {
	if h.BootAdvice == nil {
		return ""
	}
	return h.BootAdvice()
}

// ExamineBoot returns a finding if the service does not start at boot.
func (x *Examiner) ExamineBoot() []store.Finding {
	if advice := x.bootAdvice(); advice != "" {
		return []store.Finding{{
			Check: "boot", Level: store.LevelWarning, Advice: advice,
			Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
		}}
	}
	return nil
}
