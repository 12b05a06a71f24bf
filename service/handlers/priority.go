package handlers

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// checkPriority returns an error for a priority that is too far from the default of the job's queue. Without
// this limit, a user with only the right submit could always rank own jobs before other users' jobs.
func (in *intake) checkPriority(p *control.Peer, j *queue.Job) error {
	low, high := in.priorityBounds(p, j.Queue)
	if j.Priority >= low && j.Priority <= high {
		return nil
	}
	return queue.Invalid("priority", `%d is outside the range %d to %d that the right "submit" allows in queue %s; `+
		`choose a priority in that range, or ask a user with the right "operate" to set it`, j.Priority, low, high, j.Queue)
}

// priorityBounds returns the lowest and the highest priority that a caller may set in a queue.
func (in *intake) priorityBounds(p *control.Peer, name string) (low, high int64) {
	if p.Right.Covers(control.Operate) {
		return -queue.MaxPriority, queue.MaxPriority
	}
	most := in.settings.Current().PriorityRange
	def := in.queueRules.DefaultPriority(name)
	return max(def-most, -queue.MaxPriority), min(def+most, queue.MaxPriority)
}
