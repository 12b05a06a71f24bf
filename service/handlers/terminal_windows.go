package handlers

import "github.com/queuectl/queuectl/queue"

// checkTerminal returns an error for a job that needs a terminal.
func checkTerminal(j *queue.Job) error {
	if j.TTY {
		return queue.Invalid("tty", "jobs cannot have a terminal on Windows; leave tty out")
	}
	return nil
}
