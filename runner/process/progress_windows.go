package process

import "time"

// progressPollInterval is the time between two reads of the file with the command's progress notes.
const progressPollInterval = 500 * time.Millisecond

// timeUntilNextProgressRead returns the time until the next read of the progress notes. It returns a negative
// duration if no read is planned.
func (r *runningCommand) timeUntilNextProgressRead() time.Duration {
	if r.command.PrivateDir == nil {
		return -1
	}
	return max(0, time.Until(r.nextProgressReadAt))
}

// readProgress reads the progress notes if a read is due.
func (r *runningCommand) readProgress(now time.Time) {
	if r.command.PrivateDir == nil || now.Before(r.nextProgressReadAt) {
		return
	}
	if r.nextProgressReadAt.IsZero() { // this is the first call for this command
		r.nextProgressReadAt = now.Add(MinProgressReadInterval)
		return
	}
	data := r.command.PrivateDir.DrainProgress()
	pending := (len(data) > 0 || r.handleProgressAgain) && r.command.ProgressHandler.HandleProgress(data)
	r.handleProgressAgain, r.nextProgressReadAt = pending, now.Add(progressPollInterval)
	if pending {
		r.nextProgressReadAt = now.Add(MinProgressReadInterval)
	}
}
