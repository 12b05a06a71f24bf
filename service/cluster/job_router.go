// Package cluster connects the nodes that share a queue, so that a request about a job reaches the node that runs
// the job.
//
// Start with JobRouter, which sends requests, and Responder, which answers them. LeaseKeeper keeps the right of this
// node to run jobs. Without other nodes, all types work on this node alone.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// JobRouter executes commands about jobs that may be running. In a queue that several nodes share, JobRouter
// sends a command to the node that holds the job's lease. See docs/decisions/0032.
//
// For example, node A gets a request to cancel a job whose lease node B holds. A's pool reports that it does
// not hold the job (execLocal). A finds the holder, stores a request for B in the database and waits for the
// reply (execRemote). B reads the request, cancels the job in its pool and stores the reply (answerRequests).
// A stops waiting if B's lease expires (watchNode). Once another node has taken over the job, A repeats the
// command (route).
type JobRouter struct {
	Cluster     store.Cluster      // nil if no other node can use the store
	Requests    store.NodeRequests // nil if Cluster is nil
	Node        string             // name of this node
	Pool        *worker.Pool
	NodeList    *NodeList
	OutputFiles *OutputFiles

	remoteWaits remoteWaits
}

// NodeRequest is a request from one node to another.
type NodeRequest struct {
	Command string         `json:"do"` // the command, one of the cases in Answer and execLocal
	Seq     int64          `json:"seq,omitempty"`
	UID     int            `json:"uid,omitempty"`
	Number  int            `json:"number,omitempty"` // number of the signal to send
	On      bool           `json:"on,omitempty"`
	Change  *changeRequest `json:"change,omitempty"`
	Cursor  output.Cursor  `json:"cursor,omitempty"`
	Ref     string         `json:"ref,omitempty"` // reference of an output file, or the id of a job
	Offset  int64          `json:"at,omitempty"`  // offset in the output file, in bytes
	Length  int64          `json:"length,omitempty"`
}

// changeRequest is a store.Change in the form in which a node sends it to another node. If Verb is empty,
// the receiving node only returns the job to the queue, so that the sender can change the job.
type changeRequest struct {
	Verb           queue.Verb     `json:"verb,omitempty"`
	UID            int            `json:"uid"`
	Timeout        *time.Duration `json:"timeout,omitempty"`
	Alone          bool           `json:"alone,omitempty"`
	Only           []queue.State  `json:"only,omitempty"`
	MaxPending     int64          `json:"max_pending,omitempty"`
	MaxPendingUser int64          `json:"max_pending_user,omitempty"`
	MaxBytesUser   int64          `json:"max_bytes_user,omitempty"`
}

// NodeReply is the reply to a NodeRequest.
type NodeReply struct {
	Held       bool       `json:"held,omitempty"` // the replying node holds the job's lease
	Chunk      *livePiece `json:"chunk,omitempty"`
	Data       []byte     `json:"data,omitempty"` // part of an output file
	Size       int64      `json:"size,omitempty"` // size of the whole output file, in bytes
	TryAgain   bool       `json:"again,omitempty"`
	Done       []string   `json:"done,omitempty"` // ids of jobs
	KnownError string     `json:"met,omitempty"`  // name of an error in namedErrors; "" if there was none
	Code       queue.Code `json:"code,omitempty"`
	Field      string     `json:"field,omitempty"`
	Error      string     `json:"error,omitempty"`

	Reasons []control.Reason   `json:"reasons,omitempty"` // why the replying node does not start the job
	Units   []control.GateView `json:"units,omitempty"`   // resources of the replying node
}

// namedErrors contains the errors that nodes send by name, so that the requesting node can compare them with
// errors.Is.
var namedErrors = map[string]error{"moved": store.ErrStateChanged, "leased": store.ErrLeased,
	"runs": worker.ErrAttemptStarted, "otherwise": worker.ErrAttemptEnded, "none": os.ErrNotExist}

// livePiece is a piece of a running attempt's output, encoded by output.AppendChunks.
type livePiece struct {
	Cursor output.Cursor `json:"cursor"` // position after the piece
	Done   bool          `json:"done,omitempty"`
	Data   []byte        `json:"data,omitempty"`
}

// readLocal reads output of an attempt that runs on this node.
func (r *JobRouter) readLocal(ctx context.Context, seq int64, cursor output.Cursor, wait bool) (*livePiece, bool,
	error) {
	chunk, ok, err := r.Pool.Read(ctx, seq, cursor, wait)
	if err != nil || !ok {
		return nil, ok, err
	}
	return &livePiece{chunk.Cursor, chunk.Done, chunk.Data}, true, nil
}

func (a *NodeReply) fail(err error) {
	if err == nil {
		return
	}
	for name, known := range namedErrors {
		if errors.Is(err, known) {
			a.KnownError = name
			return
		}
	}
	a.Code, a.Error = queue.CodeInternal, err.Error()
	if e, ok := errors.AsType[*queue.Error](err); ok {
		a.Code, a.Field, a.Error = e.Code, e.Field, e.Message
	}
}

func (a *NodeReply) err() error {
	switch {
	case a.KnownError != "":
		return namedErrors[a.KnownError]
	case a.Error != "":
		return &queue.Error{Code: a.Code, Field: a.Field, Message: a.Error}
	}
	return nil
}

// Limits of requests between nodes.
const (
	// Maximum time to answer a request, which may include waiting until a job ends.
	requestTimeout = 10 * time.Minute
	// Maximum wait for new output in one request; after that, the caller sends another request.
	readTimeout = 5 * time.Second
	// Maximum number of requests of each kind, fast or slow, that are read in one query.
	maxParallelRequests = 64
)

// execRemote sends a request to the node that holds the job's lease. held is false if no node holds the
// lease.
func (r *JobRouter) execRemote(ctx context.Context, req NodeRequest) (reply NodeReply, held bool, err error) {
	if r.Cluster == nil {
		return reply, false, nil
	}
	node, err := r.Cluster.LeaseHolder(ctx, req.Seq)
	if err != nil || node == 0 {
		return reply, false, err
	}
	reply, err = r.sendRequest(ctx, node, req)
	return reply, reply.Held, err
}

// sendRequest sends a request to a node and waits for the reply. It stops waiting and returns an error when
// the node's lease has expired.
func (r *JobRouter) sendRequest(ctx context.Context, node int64, req NodeRequest) (reply NodeReply, err error) {
	text, err := json.Marshal(req)
	if err != nil {
		return reply, err
	}
	// The other node answers only after the job's attempt has ended.
	if req.Command == "cancel" || req.Command == "requeue" {
		release, err := r.remoteWaits.acquire(ctx, req.UID)
		if err != nil {
			return reply, err
		}
		defer release()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if req.Command == "read" || req.Command == "output" {
		timeout := time.AfterFunc(2*readTimeout, func() {
			cancel(queue.Errorf(queue.CodeUnavailable,
				"the node that has the job's output does not answer; see: queuectl node list"))
		})
		defer timeout.Stop()
	}
	go r.watchNode(ctx, node, cancel)
	raw, err := r.Requests.Ask(ctx, node, text, slices.Contains([]string{"read", "output", "quiet"}, req.Command))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == nil {
		err = json.Unmarshal(raw, &reply)
	}
	if err == nil {
		err = reply.err()
	}
	return reply, err
}

// remoteWaits limits how many jobs on other nodes one user can wait for concurrently. Further requests of
// the same user wait for a slot.
type remoteWaits struct {
	mu     sync.Mutex
	byUser map[int]*userSlots // by uid; guarded by mu
}

// userSlots is the semaphore of one user.
type userSlots struct {
	slots    chan struct{}
	requests int // requests that hold or wait for a slot; guarded by the mu of remoteWaits
}

// acquire waits for a slot of the user. The caller returns the slot by calling release.
func (f *remoteWaits) acquire(ctx context.Context, uid int) (release func(), err error) {
	f.mu.Lock()
	p := f.byUser[uid]
	if p == nil {
		p = &userSlots{slots: make(chan struct{}, maxRemoteWaits)}
		if f.byUser == nil {
			f.byUser = map[int]*userSlots{}
		}
		f.byUser[uid] = p
	}
	p.requests++
	f.mu.Unlock()
	forget := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if p.requests--; p.requests == 0 {
			delete(f.byUser, uid)
		}
	}
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

// maxRemoteWaits is the number of slots of a user.
const maxRemoteWaits = 16

// watchNode cancels a request with a nodeLost error when the lease of the requested node has expired or the
// node was removed.
func (r *JobRouter) watchNode(ctx context.Context, node int64, cancel func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.Cluster.Lease() / 3):
		}
		list, err := r.NodeList.Nodes(ctx)
		if i := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == node }); err == nil && i < 0 {
			cancel(nodeLost{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job was removed; another node takes over the job soon; then repeat the command")})
		} else if err == nil && !list[i].Alive {
			cancel(nodeLost{queue.Errorf(queue.CodeUnavailable,
				"the node that runs the job, %s, does not answer; another node takes over the job soon; then repeat the command",
				list[i].Name)})
		}
	}
}

// nodeLost says that a node was lost or removed while it was handling a request.
type nodeLost struct{ error }

// Unwrap returns the underlying error for package errors.
func (e nodeLost) Unwrap() error { return e.error }

// IsNodeLost reports whether an error means that a node was lost or removed while it was handling a request.
func IsNodeLost(err error) bool { return errors.As(err, new(nodeLost)) }

// route executes a command in this node's pool. If this node does not hold the job, route sends the command
// to the node that holds it. If the holder is lost while it ends the job, route waits until the job has a
// new holder or none, and repeats the command.
func (r *JobRouter) route(ctx context.Context, req NodeRequest) (bool, error) {
	for {
		reply, err := r.execLocal(ctx, &req)
		if reply.Held || err != nil {
			return reply.Held, err
		}
		_, held, err := r.execRemote(ctx, req)
		if !IsNodeLost(err) || req.Command != "cancel" && req.Command != "requeue" || !r.awaitTakeover(ctx, req.Seq) {
			return held, err
		}
	}
}

// awaitTakeover waits until the lease of a lost node's job has moved to a live node or no longer exists. If
// that takes longer than the duration of a node lease, it returns false.
func (r *JobRouter) awaitTakeover(ctx context.Context, seq int64) bool {
	ctx, cancel := context.WithTimeout(ctx, r.Cluster.Lease())
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

// PollInterval is the polling interval for states that are expected to change soon.
const PollInterval = 250 * time.Millisecond

// execLocal executes a request in this node's pool.
func (r *JobRouter) execLocal(ctx context.Context, req *NodeRequest) (reply NodeReply, err error) {
	p := r.Pool
	switch req.Command {
	case "cancel":
		reply.Held, err = p.Cancel(ctx, req.Seq, req.UID)
	case "requeue":
		reply.Held, err = p.Requeue(ctx, req.Seq, req.UID)
	case "signal":
		reply.Held, err = p.Signal(ctx, req.Seq, req.Number)
	case "pause":
		reply.Held, err = p.Pause(ctx, req.Seq, req.On, req.UID)
	case "thaw":
		reply.Held, err = p.Running(req.Seq) > 0, p.ResumeForSignal(ctx, req.Seq, req.UID)
	case "change":
		if req.Change.Verb == "" {
			reply.Held, err = p.GiveBack(ctx, req.Seq)
			break
		}
		g := req.Change
		reply.Held, err = p.Change(ctx, req.Seq, store.Change{Verb: g.Verb, UID: g.UID, Timeout: g.Timeout,
			KeepDependants: g.Alone, Only: g.Only, MaxPending: g.MaxPending, MaxPendingUser: g.MaxPendingUser,
			MaxBytesUser: g.MaxBytesUser})
	case "read":
		timeoutCtx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		reply.Chunk, reply.Held, err = r.readLocal(timeoutCtx, req.Seq, req.Cursor, req.On)
		if err != nil && timeoutCtx.Err() != nil && ctx.Err() == nil && req.On {
			reply.TryAgain, reply.Held, err = true, true, nil
		}
	default:
		err = queue.Errorf(queue.CodeUnsupported, "node %s runs a queuectl version that does not know the request "+
			"%q; upgrade node %[1]s",
			r.Node, queue.Clip(req.Command))
	}
	return reply, err
}

// Cancel works like worker.Pool.Cancel, for a job on any node. Each method below extends the Pool method of
// the same name in this way.
func (r *JobRouter) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	return r.route(ctx, NodeRequest{Command: "cancel", Seq: seq, UID: uid})
}

// Requeue ends an attempt and returns its job to the queue.
func (r *JobRouter) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	return r.route(ctx, NodeRequest{Command: "requeue", Seq: seq, UID: uid})
}

// Signal sends a signal to a running job's process tree.
func (r *JobRouter) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	return r.route(ctx, NodeRequest{Command: "signal", Seq: seq, Number: number})
}

// Pause freezes a running job, or resumes it.
func (r *JobRouter) Pause(ctx context.Context, seq int64, on bool, uid int) (bool, error) {
	return r.route(ctx, NodeRequest{Command: "pause", Seq: seq, On: on, UID: uid})
}

// Thaw resumes a job if it is paused.
func (r *JobRouter) Thaw(ctx context.Context, seq int64, uid int) error {
	_, err := r.route(ctx, NodeRequest{Command: "thaw", Seq: seq, UID: uid})
	return err
}

// Change changes a job that is leased and has not started.
func (r *JobRouter) Change(ctx context.Context, seq int64, g store.Change) (bool, error) {
	done, err := r.Pool.Change(ctx, seq, g)
	if done || err != nil {
		return done, err
	}
	change := &changeRequest{g.Verb, g.UID, g.Timeout, g.KeepDependants, g.Only, g.MaxPending, g.MaxPendingUser,
		g.MaxBytesUser}
	if g.Edit != nil {
		change.Verb = ""
	}
	reply, held, err := r.execRemote(ctx, NodeRequest{Command: "change", Seq: seq, Change: change})
	return held && (g.Edit == nil || reply.err() != nil), err
}

// Running returns the number of the attempt for which a node holds the job's lease. It returns 0 if no node
// holds it.
func (r *JobRouter) Running(ctx context.Context, j *queue.Job) int {
	if n := r.Pool.Running(j.Seq); n > 0 || r.Cluster == nil || j.State != queue.Processing {
		return n
	}
	if node, err := r.Cluster.LeaseHolder(ctx, j.Seq); err == nil && node != 0 {
		return j.Runs + 1
	}
	return 0
}

// Read reads output of a running job on any node.
func (r *JobRouter) Read(ctx context.Context, seq int64, cursor output.Cursor, wait bool) (*livePiece, bool, error) {
	chunk, ok, err := r.readLocal(ctx, seq, cursor, wait)
	for lastReply := time.Now(); !ok && err == nil; {
		reply, held, failed := r.execRemote(ctx, NodeRequest{Command: "read", Seq: seq, Cursor: cursor, On: wait})
		switch {
		case failed == nil && !reply.TryAgain, failed != nil && (!wait || !errors.Is(failed, queue.ErrUnavailable)):
			return reply.Chunk, held, failed
		case failed == nil:
			lastReply = time.Now()
		case IsNodeLost(failed):
			if !r.awaitTakeover(ctx, seq) {
				return nil, false, failed
			}
		// Give up: if the node was lost, its lease has expired by now.
		case time.Since(lastReply) > 2*r.Cluster.Lease():
			return nil, false, failed
		default: // try again: for example, the store may be temporarily unavailable
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(PollInterval):
			}
		}
	}
	return chunk, ok, err
}

// NodeOf returns the name of the node that holds a job's lease. It returns this node's name if no node
// holds it.
func (l *NodeList) NodeOf(ctx context.Context, seq int64) string {
	if l.Cluster == nil {
		return l.Node
	}
	node, err := l.Cluster.LeaseHolder(ctx, seq)
	if err == nil && node != 0 {
		list, err := l.Nodes(ctx)
		for i := range list {
			if err == nil && list[i].ID == node {
				return list[i].Name
			}
		}
	}
	return l.Node
}
