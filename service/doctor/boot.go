package doctor

import "github.com/queuectl/queuectl/store"

// BootAdvice returns advice on how to make the service start at boot, or "" if the service already does so. A nil
// BootAdvice means that it is unknown whether the service starts at boot.
type BootAdvice func() string

// get returns the advice, or "" if it is unknown whether the service starts at boot.
func (b BootAdvice) get() string {
	if b == nil {
		return ""
	}
	return b()
}

// BootNotes returns a note for jobs that are due much later: the service does not start at boot. If it does
// start at boot, BootNotes returns nothing.
func (b BootAdvice) BootNotes() []string {
	if advice := b.get(); advice != "" {
		return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
			"it; to change that: " + advice}
	}
	return nil
}

// ExamineBoot reports a service that does not start at boot.
func (x *Examiner) ExamineBoot() []store.Finding {
	if advice := x.Boot.get(); advice != "" {
		return []store.Finding{{
			Check: "boot", Level: store.LevelWarning, Advice: advice,
			Message: "the service does not start at boot: after a reboot, jobs and schedules wait until you start it",
		}}
	}
	return nil
}
