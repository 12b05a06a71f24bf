package doctor

import "github.com/queuectl/queuectl/store"

// StartAtBootNotes returns notes for a user who enqueues jobs that are due much later: one note if the service does
// not start at boot, and otherwise nil.
func (x *Examiner) StartAtBootNotes() []string {
	if advice := x.startAtBootAdvice(); advice != "" {
		return []string{"this service does not start at boot, so no job runs after a reboot until you start " +
			"it; to change that: " + advice}
	}
	return nil
}

// startAtBootAdvice returns advice on how to make the service start at boot. It returns "" if the service already
// starts at boot, or if this is unknown.
func (x *Examiner) startAtBootAdvice() string {
	if x.StartAtBootAdvice == nil {
		return ""
	}
	return x.StartAtBootAdvice()
}

// ExamineStartAtBoot returns a finding if the service does not start at boot.
func (x *Examiner) ExamineStartAtBoot() []store.Finding {
	if advice := x.startAtBootAdvice(); advice != "" {
		return []store.Finding{Warning("boot",
			"the service does not start at boot: after a reboot, jobs and schedules wait until you start it", advice)}
	}
	return nil
}
