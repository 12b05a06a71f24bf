package store

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Cluster is a store that several services share. Each service is a node and has a node lease, which it
// renews. A node's jobs belong to it while its lease lasts, by the store's clock. After that, another node
// may take them over, and the first write of the old node then makes its store fail.
type Cluster interface {
	// Database identifies the database among those of all servers. A promoted standby has the same value as
	// its primary.
	Database() string
	// HasOthers reports whether another node had a valid lease as of the last transaction.
	HasOthers() bool
	// Lease returns the duration of a node lease.
	Lease() time.Duration
	// Extend renews the node's lease: it lasts at least for Lease from the call of Extend. The other nodes
	// can read load; see NodeState.
	Extend(ctx context.Context, load Load) (Membership, error)
	// TakeOver transfers up to MaxTakeOver leases of nodes whose node lease has ended to this node, each with
	// a new fence. The caller must settle them as lost.
	TakeOver(ctx context.Context) ([]LostLease, error)
	// Nodes lists, by name, up to MaxNodes nodes with names after the given one.
	Nodes(ctx context.Context, after string) ([]NodeState, error)
	// DrainNode makes a node stop claiming jobs, or claim again.
	DrainNode(ctx context.Context, name string, on bool) error
	// RemoveNode deletes a node whose service does not run.
	RemoveNode(ctx context.Context, name string) error
	// Drained reports whether this node must not claim jobs.
	Drained(ctx context.Context) (bool, error)
	// Holder returns the other node that has leased a job, or 0 if none has.
	Holder(ctx context.Context, seq int64) (int64, error)
	// NodesOf returns the names of the nodes that leased jobs last, by the jobs' seqs.
	NodesOf(ctx context.Context, seqs []int64) (map[int64]string, error)
	// Ask sends a request to another node, and waits for the answer until ctx ends. Slow requests, which may
	// be many, are queued separately, so that other requests do not wait for them.
	Ask(ctx context.Context, node int64, ask []byte, slow bool) (answer []byte, err error)
	// Asked returns up to limit new requests to this node. It returns each request only once.
	Asked(ctx context.Context, slow bool, limit int) ([]Asked, error)
	// Wanted returns the numbers of the unanswered requests to this node whose senders are still waiting.
	Wanted(ctx context.Context) (map[int64]bool, error)
	// Answer answers the request with the number n.
	Answer(ctx context.Context, n int64, answer []byte) error
	// Hints returns a channel that receives a hint when the node may have a new request, until the store is
	// closed.
	Hints() <-chan struct{}
	// Changes returns a channel that receives a hint when another node may have changed shared data, like
	// settings, until the store is closed.
	Changes() <-chan struct{}
}

// Membership is the result of Extend for the node.
type Membership struct {
	Drained bool
	Orphans bool // another node's lease has ended, and its jobs can be taken over
}

// LostLease is a lease that was taken over from another node. Job has the new fence, Was is the old fence,
// and From is the other node.
type LostLease struct {
	Job     queue.Job
	Running bool // the attempt is known to have started
	Was     int64
	From    string
}

// NodeState is the current state of a node.
type NodeState struct {
	Node
	This    bool // the node whose store was asked
	Alive   bool // its node lease is valid
	Left    bool // its service was stopped and has given up its lease
	Drained bool
	Load        // as of Heard
	Running int // number of running jobs
	Version string
	Joined  queue.Millis
	Heard   queue.Millis // approximate time of the last renewal of its lease
}

// Load describes how busy a node is.
type Load struct {
	Workers int            `json:"workers"`
	Ended   int            `json:"ended,omitempty"`    // attempts that ended in the last minute
	EndedOf map[string]int `json:"ended_of,omitempty"` // the same by queue, for the MaxLoadQueues busiest queues
}

// MaxLoadQueues limits the queues in a node's load, so that the stored load stays below 3 KiB.
const MaxLoadQueues = 32

// Asked is a request from another node.
type Asked struct {
	N   int64
	Ask []byte
}

// MaxTakeOver limits the leases that one call of TakeOver transfers.
const MaxTakeOver = 500

// MaxNodes limits the nodes that one call of Nodes returns.
const MaxNodes = 250

// Limits of requests between nodes.
const (
	MaxAsk    = 64 << 10  // bytes
	MaxAnswer = 512 << 10 // bytes
)
