package doctor

import "github.com/queuectl/queuectl/store"

// BootNotes returns notes for a user who enqueues jobs that are due much later. If the service does not start
// at boot, one note says so. Otherwise BootNotes returns nil.
func (h *HealthCheck) BootNotes() []string {
	if advice := h.bootAdvice(); advice != "" {
		return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
			"it; to change that: " + advice}
	}
	return nil
}

// bootAdvice returns advice on how to make the service start at boot. It returns "" if the service starts at
// boot, or if that is unknown.
func (h *HealthCheck) bootAdvice() string {
	if h.BootAdvice == nil {
		return ""
	}
	return h.BootAdvice()
}

// ExamineBoot reports a service that does not start at boot.
func (x *Examiner) ExamineBoot() []store.Finding {
	if advice := x.bootAdvice(); advice != "" {
		return []store.Finding{{
			Check: "boot", Level: store.LevelWarning, Advice: advice,
			Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
		}}
	}
	return nil
}
