package process

import "time"

// progressFD returns the descriptor of the FIFO for progress notes, for poll(2). It returns -1 if the command has no
// FIFO. It also returns -1 if the time of the next read is already planned: poll must not return for new notes then.
func (r *runningCommand) progressFD() int {
	if r.command.PrivateDir == nil || !r.nextProgressReadAt.IsZero() {
		return -1
	}
	return r.command.PrivateDir.ProgressFD()
}

// timeUntilNextProgressRead returns the time until the next read of the progress notes. It returns a negative
// duration if no read is planned.
func (r *runningCommand) timeUntilNextProgressRead() time.Duration {
	if r.nextProgressReadAt.IsZero() {
		return -1
	}
	return max(0, time.Until(r.nextProgressReadAt))
}

// readProgress reads the progress notes if a read is due. After a read, it waits for MinProgressReadInterval, so
// that a command that writes notes all the time does not keep this process busy.
func (r *runningCommand) readProgress(now time.Time) {
	if r.performsActionsWhileBlocked || r.nextProgressReadAt.IsZero() || now.Before(r.nextProgressReadAt) {
		return
	}
	var data []byte
	r.callPipeOperation(func() { data = r.command.PrivateDir.ReadProgress() })
	if pending := r.command.ProgressHandler.HandleProgress(data); pending || len(data) > 0 {
		r.nextProgressReadAt = now.Add(MinProgressReadInterval)
	} else {
		r.nextProgressReadAt = time.Time{}
	}
}
