// Package cluster connects the nodes that share a queue, so that a request about a job reaches the node that runs
// the job.
//
// Start with JobRouter, which sends requests, and Responder, which answers them. NodeLeaseKeeper renews this
// node's right to run jobs. If the queue is not shared, all types work with this node alone.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// JobRouter sends requests about jobs to the other nodes that share the queue. See docs/decisions/0032 and
// 0106.
//
// For example, node A gets a request to cancel a job that runs on node B. A reads from the database that B holds the
// job's lease, stores the request "cancel" for B there, and waits for the answer (ForwardJobRequest). B reads the
// request, executes it like a request from its own socket, and stores the answer (startNodeRequests). If B's right to
// run jobs expires, A stops waiting (cancelWhenNodeLost), and repeats the request when another node has taken over the
// job.
type JobRouter struct {
	*NodeRegistry
	NodeRequests      store.NodeRequests // nil if Cluster is nil
	OutputFiles       *OutputFiles
	RemoteWaitLimiter *fair.Limiter // created by NewRemoteWaitLimiter; nil if Cluster is nil
}

// Request is a control request to another node, in the form in which it is stored in the database. The answer
// is stored in the form that the control socket uses.
type Request struct {
	APIMethod string        `json:"method"`
	Params    any           `json:"params,omitempty"`
	UID       int           `json:"uid"`           // uid of the peer whose request is passed on
	PID       int           `json:"pid,omitempty"` // pid of this peer; 0 if unknown
	Right     control.Right `json:"right"`         // right of this peer, as the sending node determined it
	// JobSeq is the number of the job that the request is about; 0 if the request is not about a single job. The job's id,
	// in Params, is not sufficient. Before the request is executed, the job may be removed, and another job may get its
	// id.
	JobSeq int64 `json:"seq,omitempty"`
	// AllowedStates lists the states in which the request may change a job. An empty list means all states.
	AllowedStates []queue.State `json:"states,omitempty"`

	// AwaitsAttemptEnd means that the answer may come only after the end of the job's current attempt.
	AwaitsAttemptEnd bool `json:"-"`
	// MayTakeLong means that the request may take seconds. Nodes read slow requests separately, so that slow
	// requests do not delay fast ones.
	MayTakeLong bool `json:"-"`
}

// Limits of requests between nodes.
const (
	// nodeRequestTimeout limits how long a node works on one request, which may include waiting for the end of a
	// job.
	nodeRequestTimeout = 10 * time.Minute
	// outputReadTimeout limits how long one request waits for new output. The sender then sends another request.
	outputReadTimeout = 5 * time.Second
	// maxParallelNodeRequests is the maximum number of requests that one query reads from the database. Fast and slow
	// requests are read separately.
	maxParallelNodeRequests = 64
)

// ForwardJobRequest sends a request to the node that holds the job's lease, if that is not this node, and decodes the
// answer into result. If no other node holds the lease, ForwardJobRequest sends nothing, and leasedElsewhere is false.
// The node may be lost during a request with AwaitsAttemptEnd. ForwardJobRequest then waits until another node holds
// the lease or no node does, and tries again.
func (r *JobRouter) ForwardJobRequest(ctx context.Context, jobSeq int64, req Request, result any) (leasedElsewhere bool,
	err error) {
	req.JobSeq = jobSeq
	for r.Cluster != nil && r.Pool.LeasedAttemptNumber(jobSeq) == 0 {
		node, err := r.Cluster.LeaseHolderNodeID(ctx, jobSeq)
		if err != nil || node == 0 {
			return false, err
		}
		_, err = r.sendToNode(ctx, node, req, result)
		if !IsNodeLost(err) || !req.AwaitsAttemptEnd || !r.awaitJobTakeover(ctx, jobSeq) {
			return true, err
		}
	}
	return false, nil
}

// sendToNode sends a request to a node on behalf of the peer of ctx, and decodes the answer into result. It returns
// an error when the node's lease has expired. hasAnswered is true if the node has answered, with a result or
// an error.
func (r *JobRouter) sendToNode(ctx context.Context, nodeID int64, req Request, result any) (hasAnswered bool,
	err error) {
	peer := control.PeerFrom(ctx)
	req.UID, req.PID, req.Right = peer.UID, peer.PID, peer.Right
	text, err := json.Marshal(req)
	if err != nil {
		return false, err
	}
	if req.AwaitsAttemptEnd {
		slot := fair.Request{UserID: req.UID}
		if err := r.RemoteWaitLimiter.Acquire(ctx, slot); err != nil {
			return false, err
		}
		defer r.RemoteWaitLimiter.Release(slot)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go r.cancelWhenNodeLost(ctx, nodeID, cancel)
	raw, err := r.NodeRequests.SendRequest(ctx, nodeID, text, req.MayTakeLong)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return false, err
	}
	return true, control.DecodeAnswer(raw, result)
}

// maxRemoteWaitsPerUser is the maximum number of concurrent requests of one user that wait for a job on another node.
const maxRemoteWaitsPerUser = 16

// NewRemoteWaitLimiter returns the limiter for requests that wait for a job on another node.
func NewRemoteWaitLimiter() *fair.Limiter {
	return fair.NewLimiter(fair.Bound{MaxAmount: maxRemoteWaitsPerUser})
}

// cancelWhenNodeLost cancels a request to a node when the node's lease has expired, or the node was removed.
// The cause is then a nodeLostError. cancelWhenNodeLost returns when ctx ends.
func (r *JobRouter) cancelWhenNodeLost(ctx context.Context, nodeID int64, cancel func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.Cluster.NodeLeaseDuration() / 3):
		}
		list, err := r.Nodes(ctx)
		if i := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == nodeID }); err == nil && i < 0 {
			cancel(nodeLostError{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job was removed; another node takes over the job soon; then repeat the command")})
		} else if err == nil && !list[i].IsNodeLeaseValid {
			cancel(nodeLostError{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job, %s, does not answer; another node takes over the job soon; then repeat the command",
				list[i].Name)})
		}
	}
}

// nodeLostError means that a node's lease expired, or the node was removed, before it answered a request.
type nodeLostError struct{ error }

// Unwrap returns the underlying error for package errors.
func (e nodeLostError) Unwrap() error { return e.error }

// IsNodeLost reports whether err means that a node was lost or removed before it answered a request.
func IsNodeLost(err error) bool { return errors.As(err, new(nodeLostError)) }

// awaitJobTakeover waits until a live node, or no node, holds the lease of a job whose node was lost. It returns
// false if this takes longer than the duration of a node lease, or after an error.
func (r *JobRouter) awaitJobTakeover(ctx context.Context, jobSeq int64) bool {
	ctx, cancel := context.WithTimeout(ctx, r.Cluster.NodeLeaseDuration())
	defer cancel()
	holder, err := r.Cluster.LeaseHolderNodeID(ctx, jobSeq)
	for err == nil && holder != 0 && !r.isNodeAlive(ctx, holder) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(ChangePollInterval):
		}
		holder, err = r.Cluster.LeaseHolderNodeID(ctx, jobSeq)
	}
	return err == nil
}

// ChangePollInterval is the delay between two checks for a change that will probably happen soon.
const ChangePollInterval = 250 * time.Millisecond

// LeasedAttemptNumber returns the number of the attempt for which a node holds the job's lease. It returns 0 if no node
// holds the lease.
func (r *JobRouter) LeasedAttemptNumber(ctx context.Context, j *queue.Job) int {
	if n := r.Pool.LeasedAttemptNumber(j.Seq); n > 0 || r.Cluster == nil || j.State != queue.Processing {
		return n
	}
	if node, err := r.Cluster.LeaseHolderNodeID(ctx, j.Seq); err == nil && node != 0 {
		return j.StartedAttempts + 1
	}
	return 0
}

// LastNodeNameOfJob returns the name of the node that ran a job last, or this node's name if that node is unknown.
func (l *NodeRegistry) LastNodeNameOfJob(ctx context.Context, jobSeq int64) string {
	if l.Cluster == nil {
		return l.NodeName
	}
	names, _ := l.Cluster.LastNodeNames(ctx, []int64{jobSeq}) // after an error, use this node's name
	return cmp.Or(names[jobSeq], l.NodeName)
}
