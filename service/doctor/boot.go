package doctor

import "github.com/queuectl/queuectl/store"

// StartAtBootNotes returns notes for a user who enqueues jobs that are due much later: one note if the service does
// not start at boot, and otherwise nil.
func (h *HealthCheck) StartAtBootNotes() []string {
	if advice := h.startAtBootAdvice(); advice != "" {
		return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
			"it; to change that: " + advice}
	}
	return nil
}

// startAtBootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// starts at boot, or if this is unknown.
func (h *HealthCheck) startAtBootAdvice() string {
	if h.StartAtBootAdvice == nil {
		return ""
	}
	return h.StartAtBootAdvice()
}

// ExamineStartAtBoot returns a finding if the service does not start at boot.
func (x *Examiner) ExamineStartAtBoot() []store.Finding {
	if advice := x.startAtBootAdvice(); advice != "" {
		return []store.Finding{{
			CheckName: "boot", Level: store.LevelWarning, Advice: advice,
			Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
		}}
	}
	return nil
}
