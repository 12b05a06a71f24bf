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

// gateReasonKinds holds the value of control.WaitReason.Kind for each kind of gate. A gate is a limit that can keep a
// job from starting, such as a lock, a rate or a user's quota. The key 0 represents the concurrency limit of a queue.
var gateReasonKinds = map[queue.GateKind]string{0: "queue", queue.GateUser: "user", queue.GateNode: "node",
	queue.GateLock: "lock", queue.GateRate: "rate", queue.GateResource: "resource"}

// GateReasonKind returns the value of control.WaitReason.Kind for a kind of gate.
func GateReasonKind(g queue.GateKind) string { return gateReasonKinds[g] }

// gateReason returns the reason that describes an obstacle. The store has found that the obstacle, for example a lock
// that another job holds, keeps the job from starting.
func gateReason(j *queue.Job, o *store.WaitReason) control.WaitReason {
	key, used, most := o.GateKeyOrQueueName, o.UsedUnits, o.MaxUnits
	r := control.WaitReason{Kind: gateReasonKinds[o.GateKind], CauseKey: key, LimitUsage: &used, Limit: &most,
		Advice: "queuectl list -s processing"}
	switch {
	case o.QueuePaused:
		r.LimitUsage, r.Limit = nil, nil
		r.Text, r.Advice = fmt.Sprintf("queue %s is paused", key), "queuectl queue resume "+queue.QuoteShellWord(key)
	case o.GateKind == 0:
		r.Text = fmt.Sprintf("queue %s: %d of %d jobs running", key, used, most)
		r.Advice = fmt.Sprintf("queuectl queue set %s --concurrency N", key)
	case o.GateKind == queue.GateUser && most == 0:
		r.LimitUsage, r.Limit = nil, nil
		r.Text = fmt.Sprintf("uid %d does not belong to %s on this node", j.UID, cmp.Or(j.RunAsUser, "any user"))
		r.Advice = "use the same accounts on all nodes"
	case o.GateKind == queue.GateUser:
		r.Text, r.Advice = fmt.Sprintf("user limit: %d of %d jobs running", used, most),
			"queuectl config set max_running_per_user N"
	case o.GateKind == queue.GateNode:
		r.LimitUsage, r.Limit = nil, nil
		r.Text, r.Advice = fmt.Sprintf("the job runs only on %s, %s", key, nodeMismatchText), "queuectl node list"
	case o.GateKind == queue.GateLock:
		r.Text = fmt.Sprintf("lock %s: %d of %d jobs running", key, used, most)
	case o.GateKind == queue.GateRate:
		r.Text, r.Advice = fmt.Sprintf("rate limit %s: %d of %d starts used", key, used, most), "queuectl gate list"
		r.EndsAt = control.Time(o.RateOpensAt)
	case o.NeededUnits > most:
		r.Text = fmt.Sprintf("resource %s: the job needs %d units, but only %d exist", key, o.NeededUnits, most)
		r.Advice = fmt.Sprintf("queuectl edit %s --resource %s=N, or add units in the settings", j.ID, key)
	case o.UnitsKeptForOtherJob:
		r.Text = fmt.Sprintf("resource %s: %d of %d units in use, and an earlier job of the queue waits for more units", key,
			used, most)
	default:
		r.Text = fmt.Sprintf("resource %s: %d of %d units in use, but the job needs %d", key, used, most, o.NeededUnits)
	}
	return r
}

// ReplaceNodeStateText changes the text of r, the reason that a job may run only on one node. It replaces the end of
// the text by a description of that node's state.
func ReplaceNodeStateText(nodeReason *control.WaitReason, nodeStateText string) {
	nodeReason.Text = strings.NewReplacer(nodeMismatchText, nodeStateText, noNodeMatchesText,
		nodeStateText).Replace(nodeReason.Text)
}
