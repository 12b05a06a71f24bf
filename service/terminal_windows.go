package service

import "github.com/queuectl/queuectl/queue"

// checkTerminal refuses a job that asks for a terminal where there are none.
func checkTerminal(j *queue.Job) error {
	if j.TTY {
		return queue.Invalid("tty", "jobs cannot have a terminal on Windows; leave tty out")
	}
	return nil
}
