// Package cluster connects the nodes that share a queue, so that a request about a job reaches the node that runs
// the job.
//
// Start with JobRouter, which sends requests, and Responder, which answers them. LeaseKeeper keeps the right of this
// node to run jobs. Without other nodes, all types work on this node alone.
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
// For example, node A gets a request to cancel a job whose lease node B holds. A finds the holder, stores the
// request "cancel" for B in the database and waits for the answer (Forward). B reads the request, executes it
// like a request from its own socket, and stores the answer (startRequests). A stops waiting if B's lease
// expires (cancelWhenNodeLost). Once another node has taken over the job, A repeats the request.
type JobRouter struct {
	*NodeList
	NodeRequests      store.NodeRequests // nil if Cluster is nil
	OutputFiles       *OutputFiles
	RemoteWaitLimiter *fair.Limiter // created by NewRemoteWaitLimiter; nil if Cluster is nil
}

// Request is a control request to another node, in the form in which the database stores it. The answer is stored
// in the form of the control socket.
type Request struct {
	Method string        `json:"method"`
	Params any           `json:"params,omitempty"`
	UID    int           `json:"uid"`           // uid of the peer that sent the request to the first node
	PID    int           `json:"pid,omitempty"` // pid of this peer
	Right  control.Right `json:"right"`         // the right of the peer on the first node
	// JobSeq is the number of the job that the request is about; 0 if it is not about one job. Params contains
	// only the job's id, which another job can have by the time of the answer.
	JobSeq int64 `json:"seq,omitempty"`
	// AllowedStates lists the states in which the request may change a job. An empty list means every state.
	AllowedStates []queue.State `json:"states,omitempty"`

	// AwaitsAttemptEnd says that the answer may come only after the job's attempt has ended.
	AwaitsAttemptEnd bool `json:"-"`
	// IsSlow says that the request may take seconds and that many such requests may be in progress.
	IsSlow bool `json:"-"`
}

// Limits of requests between nodes.
const (
	// requestTimeout is the maximum time to answer a request, which may include waiting for a job to end.
	requestTimeout = 10 * time.Minute
	// readTimeout is how long one request waits for new output; the caller then sends another request.
	readTimeout = 5 * time.Second
	// maxParallelRequests is the maximum number of requests that one query reads, separately for fast and slow
	// ones.
	maxParallelRequests = 64
)

// Forward sends a request to the other node that holds the job's lease, and decodes the answer into result.
// leasedElsewhere is false if no other node holds the lease; no request is sent then. If the holder is lost during
// a request with AwaitsAttemptEnd, Forward waits until another node or no node holds the lease, and repeats the
// request.
func (r *JobRouter) Forward(ctx context.Context, seq int64, req Request, result any) (leasedElsewhere bool, err error) {
	req.JobSeq = seq
	for r.Cluster != nil && r.Pool.LeasedAttemptNumber(seq) == 0 {
		node, err := r.Cluster.LeaseHolder(ctx, seq)
		if err != nil || node == 0 {
			return false, err
		}
		_, err = r.send(ctx, node, req, result)
		if !IsNodeLost(err) || !req.AwaitsAttemptEnd || !r.awaitTakeover(ctx, seq) {
			return true, err
		}
	}
	return false, nil
}

// send sends a request to a node on behalf of the peer of ctx, and decodes the answer into result. It stops
// waiting and returns an error when the node's lease has expired. hasAnswered is true if the result or the
// error comes from the node.
func (r *JobRouter) send(ctx context.Context, node int64, req Request, result any) (hasAnswered bool, err error) {
	peer := control.PeerFrom(ctx)
	req.UID, req.PID, req.Right = peer.UID, peer.PID, peer.Right
	text, err := json.Marshal(req)
	if err != nil {
		return false, err
	}
	if req.AwaitsAttemptEnd {
		slot := fair.Request{User: req.UID}
		if err := r.RemoteWaitLimiter.Acquire(ctx, slot); err != nil {
			return false, err
		}
		defer r.RemoteWaitLimiter.Release(slot)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go r.cancelWhenNodeLost(ctx, node, cancel)
	raw, err := r.NodeRequests.SendRequest(ctx, node, text, req.IsSlow)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return false, err
	}
	return true, control.DecodeAnswer(raw, result)
}

// maxRemoteWaits is the maximum number of concurrent requests of one user that wait for a job on another node.
const maxRemoteWaits = 16

// NewRemoteWaitLimiter returns the limiter for requests that wait for a job on another node.
func NewRemoteWaitLimiter() *fair.Limiter { return fair.NewLimiter(fair.Bound{Max: maxRemoteWaits}) }

// cancelWhenNodeLost cancels a request to a node once the node's lease has expired or the node was removed. The
// cause is a nodeLostError. cancelWhenNodeLost returns when ctx ends.
func (r *JobRouter) cancelWhenNodeLost(ctx context.Context, node int64, cancel func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.Cluster.NodeLeaseDuration() / 3):
		}
		list, err := r.NodeList.Nodes(ctx)
		if i := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == node }); err == nil && i < 0 {
			cancel(nodeLostError{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job was removed; another node takes over the job soon; then repeat the command")})
		} else if err == nil && !list[i].LeaseValid {
			cancel(nodeLostError{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job, %s, does not answer; another node takes over the job soon; then repeat the command",
				list[i].Name)})
		}
	}
}

// nodeLostError says that a node was lost or removed while it was handling a request.
type nodeLostError struct{ error }

// Unwrap returns the underlying error for package errors.
func (e nodeLostError) Unwrap() error { return e.error }

// IsNodeLost reports whether an error means that a node was lost or removed while it was handling a request.
func IsNodeLost(err error) bool { return errors.As(err, new(nodeLostError)) }

// awaitTakeover waits until a live node, or no node, holds the lease of a job whose node was lost. It returns
// false after the duration of a node lease or after an error.
func (r *JobRouter) awaitTakeover(ctx context.Context, seq int64) bool {
	ctx, cancel := context.WithTimeout(ctx, r.Cluster.NodeLeaseDuration())
	defer cancel()
	holder, err := r.Cluster.LeaseHolder(ctx, seq)
	for err == nil && holder != 0 && !r.NodeList.isNodeAlive(ctx, holder) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(PollInterval):
		}
		holder, err = r.Cluster.LeaseHolder(ctx, seq)
	}
	return err == nil
}

// PollInterval is the delay between two checks for a change that is expected soon.
const PollInterval = 250 * time.Millisecond

// LeasedAttemptNumber returns the number of the attempt for which a node holds the job's lease. It returns 0 if no node
// holds it.
func (r *JobRouter) LeasedAttemptNumber(ctx context.Context, j *queue.Job) int {
	if n := r.Pool.LeasedAttemptNumber(j.Seq); n > 0 || r.Cluster == nil || j.State != queue.Processing {
		return n
	}
	if node, err := r.Cluster.LeaseHolder(ctx, j.Seq); err == nil && node != 0 {
		return j.StartedAttempts + 1
	}
	return 0
}

// NodeNameOf returns the name of the node that runs a job, or of this node if that is unknown.
func (l *NodeList) NodeNameOf(ctx context.Context, seq int64) string {
	if l.Cluster == nil {
		return l.Node
	}
	names, _ := l.Cluster.LastNodeNames(ctx, []int64{seq}) // ignore the error and return this node's name
	return cmp.Or(names[seq], l.Node)
}
