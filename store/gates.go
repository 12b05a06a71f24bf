package store

import (
	"cmp"
	"context"
	"maps"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Gates keeps the limits that apply across queues. A gate is one such limit: of a user, node, lock, rate or
// resource. A job starts only while each gate that it needs has room.
type Gates interface {
	// Gates lists locks, rates and resources: the shared ones and those of one user. It returns at most
	// MaxGatesPerPage gates, starting after the given gate, in the order of GateState.ComesAfter. A lock or rate
	// without a stored rule is listed while jobs name it.
	Gates(ctx context.Context, uid int, afterGate GateState) ([]GateState, error)
	// SetGateRule stores the rule of a shared lock or rate. Jobs cannot change a stored rule. If the rule's Amount is 0,
	// SetGateRule removes the stored rule. After that, the first job that names the key sets a rule, which lasts while
	// unfinished jobs name the key.
	SetGateRule(ctx context.Context, rule queue.Demand) error
	// SetMaxRunningPerUser limits the leased jobs of each user (queue.Job.UID) to maxRunningJobs. 0 means unlimited, which
	// is the default when the store is opened. If a user already has more leased jobs, their leases are not ended. Further
	// jobs of the user wait in the queue until fewer jobs of the user are leased.
	SetMaxRunningPerUser(ctx context.Context, maxRunningJobs int) error
	// SetThisNodeProperties sets the properties of the node on which this store runs. They last until the store is closed.
	// Jobs that may not run on this node, or need more resources than the node has, wait. Leased jobs keep their units of
	// resources until they end.
	SetThisNodeProperties(ctx context.Context, node Node) error
}

// GateState is the current state of a lock, rate or resource.
type GateState struct {
	queue.Demand         // the rule of the gate; for a resource, Amount is the number of its units
	OwnerUID       int   // owner of the key; queue.SharedGateOwner for a shared key
	HasStoredRule  bool  // true if SetGateRule has stored the rule
	UsedUnits      int   // jobs that hold the lock, starts in the period of the rate, or units of the resource in use
	UnfinishedJobs int64 // number of unfinished jobs that name the lock or rate
}

// ComesAfter reports whether g comes after h in the order of gates. Shared gates come before the gates of users.
func (g *GateState) ComesAfter(h *GateState) bool {
	return cmp.Or(cmp.Compare(g.OwnerUID, h.OwnerUID), cmp.Compare(g.Kind, h.Kind), cmp.Compare(g.GateKey, h.GateKey)) > 0
}

// MaxGatesPerPage is the maximum number of gates that one call of Gates lists, and of shared keys that may have
// a rule.
const MaxGatesPerPage = 1000

// Node contains the properties of a machine that decide which jobs may run on it.
// See docs/decisions/0017.
type Node struct {
	ID                 int64 // number that the store has assigned; 0 if the store has only one node
	Name               string
	Labels             map[string]string
	ResourceUnits      map[string]int // number of units of each resource; 0 for a resource that is not listed
	UIDsWithoutAccount map[int]bool   // uids whose jobs the node does not claim, because it lacks their accounts
}

// MatchesSelector reports whether the node matches a job's node selector, which is the name of a node or
// label=value.
func (n *Node) MatchesSelector(selector string) bool {
	label, value, labelled := strings.Cut(selector, "=")
	if !labelled {
		return selector == n.Name
	}
	own, found := n.Labels[label]
	return found && own == value
}

// Clone returns a deep copy.
func (n *Node) Clone() Node {
	return Node{n.ID, n.Name, maps.Clone(n.Labels), maps.Clone(n.ResourceUnits), maps.Clone(n.UIDsWithoutAccount)}
}
