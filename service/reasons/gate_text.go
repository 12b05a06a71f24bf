package reasons

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// These texts end a sentence that says on which node a job may run. nodeMismatchText is used if only this node does not
// match, and noNodeMatchesText if no node matches.
const (
	nodeMismatchText  = "not here"
	noNodeMatchesText = "which matches no available node"
)

// gateReasonTexts holds the texts for each kind of gate. A gate is a limit that can keep a job from starting, such as a
// lock, a rate or a user's quota. The key 0 represents the concurrency limit of a queue.
var gateReasonTexts = map[queue.GateKind]struct {
	kind string // kind of the reasons about this gate, such as "queue"
	// describe sets the text of the reason r, whose numbers and advice are already set. It may also replace the advice.
	describe func(o *store.WaitReason, j *queue.Job, r *control.WaitReason)
}{
	0: {"queue", func(o *store.WaitReason, _ *queue.Job, r *control.WaitReason) {
		r.Text, r.Advice = fmt.Sprintf("queue %s: %d of %d jobs running", o.GateKeyOrQueueName, o.UsedUnits, o.MaxUnits),
			fmt.Sprintf("queuectl queue set %s --concurrency N", o.GateKeyOrQueueName)
	}},
	queue.GateUser: {"user", func(o *store.WaitReason, j *queue.Job, r *control.WaitReason) {
		if o.MaxUnits == 0 {
			r.LimitUsage, r.Limit = nil, nil
			r.Text, r.Advice = fmt.Sprintf("uid %d does not belong to %s on this node", j.UID, cmp.Or(j.RunAsUser, "any user")),
				"use the same accounts on all nodes"
			return
		}
		r.Text, r.Advice = fmt.Sprintf("user limit: %d of %d jobs running", o.UsedUnits, o.MaxUnits),
			"queuectl config set max_running_per_user N"
	}},
	queue.GateNode: {"node", func(o *store.WaitReason, _ *queue.Job, r *control.WaitReason) {
		r.LimitUsage, r.Limit = nil, nil
		r.Text, r.Advice = fmt.Sprintf("the job runs only on %s, %s", o.GateKeyOrQueueName, nodeMismatchText),
			"queuectl node list"
	}},
	queue.GateLock: {"lock", func(o *store.WaitReason, _ *queue.Job, r *control.WaitReason) {
		r.Text = fmt.Sprintf("lock %s: %d of %d jobs running", o.GateKeyOrQueueName, o.UsedUnits, o.MaxUnits)
	}},
	queue.GateRate: {"rate", func(o *store.WaitReason, _ *queue.Job, r *control.WaitReason) {
		r.Text, r.Advice = fmt.Sprintf("rate limit %s: %d of %d starts used", o.GateKeyOrQueueName, o.UsedUnits, o.MaxUnits),
			"queuectl gate list"
		r.EndsAt = control.Time(o.RateOpensAt)
	}},
	queue.GateResource: {"resource", func(o *store.WaitReason, j *queue.Job, r *control.WaitReason) {
		switch {
		case o.NeededUnits > o.MaxUnits:
			r.Text, r.Advice = fmt.Sprintf("resource %s: the job needs %d units, but only %d exist", o.GateKeyOrQueueName,
				o.NeededUnits, o.MaxUnits),
				fmt.Sprintf("queuectl edit %s --resource %s=N, or add units in the settings", j.ID, o.GateKeyOrQueueName)
		case o.UnitsKeptForOtherJob:
			r.Text = fmt.Sprintf("resource %s: %d of %d units in use, and an earlier job of the queue waits for more units",
				o.GateKeyOrQueueName, o.UsedUnits, o.MaxUnits)
		default:
			r.Text = fmt.Sprintf("resource %s: %d of %d units in use, but the job needs %d", o.GateKeyOrQueueName, o.UsedUnits,
				o.MaxUnits,
				o.NeededUnits)
		}
	}},
}

// GateReasonKind returns the value of control.WaitReason.Kind for a kind of gate.
func GateReasonKind(g queue.GateKind) string { return gateReasonTexts[g].kind }

// ReplaceNodeStateText changes the text of r, the reason that a job may run only on one node. It replaces the end of
// the text by a description of that node's state.
func ReplaceNodeStateText(nodeReason *control.WaitReason, nodeStateText string) {
	nodeReason.Text = strings.NewReplacer(nodeMismatchText, nodeStateText, noNodeMatchesText,
		nodeStateText).Replace(nodeReason.Text)
}
