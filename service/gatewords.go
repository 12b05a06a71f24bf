package service

import (
	"cmp"
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// What a job waits for that a machine may not run, if it is this one, or any.
const (
	notHere     = "and not for this machine"
	notAnywhere = "and not for any machine that is there"
)

// gateWords is how each kind of gate is told of; 0 is the room of a queue.
var gateWords = map[queue.GateKind]struct {
	kind string // of a reason
	// tell completes a reason, which has the numbers and says to look at what runs.
	tell func(o *store.Obstacle, j *queue.Job, r *control.Reason)
}{
	0: {"queue", func(o *store.Obstacle, _ *queue.Job, r *control.Reason) {
		r.Text, r.Next = fmt.Sprintf("queue %s runs %d of %d jobs", o.Key, o.Used, o.Most), fmt.Sprintf("queuectl queue set %s --concurrency N", o.Key)
	}},
	queue.GateUser: {"user", func(o *store.Obstacle, j *queue.Job, r *control.Reason) {
		if o.Most == 0 {
			r.Used, r.Most = nil, nil
			r.Text, r.Next = fmt.Sprintf("uid %d is not %s here", j.UID, cmp.Or(j.User, "anybody's")), "have the same accounts on all machines"
			return
		}
		r.Text, r.Next = fmt.Sprintf("%d of %d jobs of its user run", o.Used, o.Most), "queuectl config set max_running_per_user N"
	}},
	queue.GateNode: {"node", func(o *store.Obstacle, _ *queue.Job, r *control.Reason) {
		r.Used, r.Most = nil, nil
		r.Text, r.Next = fmt.Sprintf("it is for %s, %s", o.Key, notHere), "queuectl node list"
	}},
	queue.GateLock: {"lock", func(o *store.Obstacle, _ *queue.Job, r *control.Reason) {
		r.Text = fmt.Sprintf("%d of %d jobs with the lock %s run", o.Used, o.Most, o.Key)
	}},
	queue.GateRate: {"rate", func(o *store.Obstacle, _ *queue.Job, r *control.Reason) {
		r.Text, r.Next = fmt.Sprintf("%d of %d starts with the rate %s have been in its period", o.Used, o.Most, o.Key), "queuectl gate list"
		r.At = control.Time(o.Opens)
	}},
	queue.GateResource: {"resource", func(o *store.Obstacle, j *queue.Job, r *control.Reason) {
		switch {
		case o.Need > o.Most:
			r.Text, r.Next = fmt.Sprintf("it needs %d units of the resource %s, and there are %d", o.Need, o.Key, o.Most), fmt.Sprintf("queuectl edit %s --resource %s=N, or more of it in the settings", j.ID, o.Key)
		case o.Barred:
			r.Text = fmt.Sprintf("a job of its queue that comes first waits for more of the resource %s, of which %d of %d are in use", o.Key, o.Used, o.Most)
		default:
			r.Text = fmt.Sprintf("%d of %d units of the resource %s are in use, and it needs %d", o.Used, o.Most, o.Key, o.Need)
		}
	}},
}
