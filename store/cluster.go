package store

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Cluster is a store that several services (nodes) share. Each node has a node lease, which it renews. While the node
// lease lasts, by the store's clock, the jobs that the node has leased belong to the node. Afterwards, another node may
// take these jobs over. The next write of the old node then fails, and the old node cannot use its store any more.
type Cluster interface {
	// DatabaseIdentifier returns an identifier of the database. Any two databases have different identifiers, even on
	// different servers. A standby that was promoted has the identifier of its primary.
	DatabaseIdentifier() string
	// HasOtherActiveNodes reports whether another node had a valid node lease when the last transaction was executed.
	HasOtherActiveNodes() bool
	// NodeLeaseDuration returns the duration of a node lease.
	NodeLeaseDuration() time.Duration
	// RenewNodeLease renews this node's lease, which then lasts for at least NodeLeaseDuration from the
	// beginning of the call. It also stores load, which other nodes see in NodeState.
	RenewNodeLease(ctx context.Context, load NodeLoad) (NodeLeaseRenewal, error)
	// TakeOverLeases transfers up to MaxTakenOverLeases leases of jobs to this node, with new fences. It transfers leases
	// of nodes whose node lease has ended. The caller must record the attempts of these leases as lost.
	TakeOverLeases(ctx context.Context) ([]LostLease, error)
	// IsThisNodeDrained reports whether this node must not claim jobs.
	IsThisNodeDrained(ctx context.Context) (bool, error)
	// SharedDataChangeHints returns a channel that receives a value when another node may have changed shared data,
	// such as settings. The channel is used until the store is closed.
	SharedDataChangeHints() <-chan struct{}
	// Nodes lists nodes in the order of their names: at most MaxNodesPerPage nodes, starting after the given name.
	Nodes(ctx context.Context, afterName string) ([]NodeState, error)
	// SetNodeDrained makes a node stop claiming jobs (drain is true), or lets it claim again (drain is false).
	SetNodeDrained(ctx context.Context, name string, drain bool) error
	// RemoveNode deletes a node whose service does not run.
	RemoveNode(ctx context.Context, name string) error
	// LeaseHolderNodeID returns the number of the node that has leased a job, or 0 if that is this node or the job is
	// not leased.
	LeaseHolderNodeID(ctx context.Context, jobSeq int64) (int64, error)
	// LastNodeNames returns for each job, by its seq, the name of the node that leased it last.
	LastNodeNames(ctx context.Context, jobSeqs []int64) (map[int64]string, error)
}

// NodeLeaseRenewal is the result of RenewNodeLease. It says what the node must do next. Drained means that the node
// must not claim jobs.
type NodeLeaseRenewal struct {
	IsNodeDrained       bool
	HasLeasesToTakeOver bool // the lease of another node has ended, so its jobs can be taken over
}

// LostLease is a lease that was taken over from another node. Job has the new fence, OldFence is the old fence,
// and FormerNodeName is the name of the node that had the lease.
type LostLease struct {
	Job            queue.Job
	AttemptStarted bool // true if the attempt is known to have started
	OldFence       int64
	FormerNodeName string
}

// NodeState is the current state of a node: one service of several that share the queue.
type NodeState struct {
	Node
	IsThisNode       bool // this entry describes the node whose store returned the list
	IsNodeLeaseValid bool // the node's lease is valid
	ServiceStopped   bool // the node's service was stopped, and gave up the node lease
	IsDrained        bool
	NodeLoad             // the load that the node reported at the time LastHeartbeatAt
	RunningJobs      int // number of running jobs
	ServiceVersion   string
	JoinedAt         queue.UnixMillis
	LastHeartbeatAt  queue.UnixMillis // approximate time when the node last renewed its lease
}

// NodeLoad describes how busy a node is.
type NodeLoad struct {
	WorkerCount           int `json:"workers"`
	RecentlyEndedAttempts int `json:"ended,omitempty"` // attempts that ended in the last minute
	// RecentlyEndedByQueue splits RecentlyEndedAttempts by queue. It contains the MaxQueuesInNodeLoad busiest queues.
	RecentlyEndedByQueue map[string]int `json:"ended_of,omitempty"`
}

// MaxQueuesInNodeLoad is the maximum number of queues in a node's load. It keeps the stored load below 3 KiB.
const MaxQueuesInNodeLoad = 32

// MaxTakenOverLeases is the maximum number of leases that one call of TakeOverLeases transfers.
const MaxTakenOverLeases = 500

// MaxNodesPerPage is the maximum number of nodes that one call of Nodes returns.
const MaxNodesPerPage = 250
