package doctor

import (
	"github.com/queuectl/queuectl/store"
)

// BootAdvisor knows whether the service starts at boot.
type BootAdvisor struct {
	AdviseBoot func() string // see Options.BootAdvice; may be nil
}

// bootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// does so, or if that is unknown.
func (b *BootAdvisor) bootAdvice() string {
	if b.AdviseBoot == nil {
		return ""
	}
	return b.AdviseBoot()
}

// BootNotes returns a note for jobs that are due much later: the service does not start at boot. If it does
// start at boot, BootNotes returns nothing.
func (b *BootAdvisor) BootNotes() []string {
	advice := b.bootAdvice()
	if advice == "" {
		return nil
	}
	return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
		"it; to change that: " + advice}
}

// ExamineBoot reports a service that does not start at boot.
func (d *Examiner) ExamineBoot() []store.Finding {
	advice := d.Boot.bootAdvice()
	if advice == "" {
		return nil
	}
	return []store.Finding{{
		Check: "boot", Level: store.LevelWarning, Next: advice,
		Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
	}}
}
