package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// outputMethod is the method of a request to read output from a position. Only nodes send it to each other;
// clients cannot. The sending node has checked that the peer may see the output.
const outputMethod = "output"

// maxOutputPieceBytes limits how many bytes of an output file one answer to another node contains.
const maxOutputPieceBytes = 256 << 10

// outputReadRequest holds the parameters of outputMethod: a part of the output file Ref or, if Ref is "", the
// output of a running attempt.
type outputReadRequest struct {
	JobSeq        int64         `json:"seq,omitempty"`     // number of the job
	Attempt       int           `json:"attempt,omitempty"` // number of the attempt; 0 means the one that runs now
	Cursor        output.Cursor `json:"cursor"`
	WaitForOutput bool          `json:"wait,omitempty"`

	Ref    string `json:"ref,omitempty"`
	Offset int64  `json:"at,omitempty"` // offset in the file, in bytes
}

// outputPiece is the result of outputMethod: a piece of a file or of a running attempt's output.
type outputPiece struct {
	Data []byte `json:"data,omitempty"`

	Size int64 `json:"size,omitempty"` // size of the whole file, in bytes

	// The next fields are set only for a running attempt. Data is encoded by output.AppendChunks. It is empty
	// if the attempt has printed nothing for readTimeout.
	LeaseHeld  bool          `json:"held,omitempty"` // the node holds the job's lease
	Cursor     output.Cursor `json:"cursor"`         // position after Data
	IsComplete bool          `json:"done,omitempty"` // no output follows after Data
}

// errOutputNodeUnavailable means that the node with a job's output does not answer.
var errOutputNodeUnavailable = queue.Errorf(queue.CodeUnavailable,
	"the node that has the job's output does not answer; see: queuectl node list")

// readOnNode requests output from another node, and returns the node's answer.
func (r *JobRouter) readOnNode(ctx context.Context, node int64, p outputReadRequest) (piece *outputPiece, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*readTimeout, errOutputNodeUnavailable)
	defer cancel()
	piece = &outputPiece{}
	_, err = r.send(ctx, node, Request{Method: outputMethod, Params: p, IsSlow: true}, piece)
	if p.Ref != "" && IsNodeLost(err) { // waiting is useless, because no other node takes over the file
		err = errOutputNodeUnavailable
	}
	return piece, err
}

// readForOtherNode reads the output on this node that another node has requested.
func (r *JobRouter) readForOtherNode(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	if p.Ref != "" {
		return r.OutputFiles.readPiece(p)
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	piece, err := r.readLocal(timeoutCtx, p)
	if err != nil && timeoutCtx.Err() != nil && ctx.Err() == nil && p.WaitForOutput {
		return &outputPiece{LeaseHeld: true, Cursor: p.Cursor}, nil
	}
	return piece, err
}

// readLocal reads the output of an attempt that runs on this node. If p.WaitForOutput is set, it waits for
// new output.
func (r *JobRouter) readLocal(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	chunk, ok, err := r.Pool.ReadOutput(ctx, p.JobSeq, p.Attempt, p.Cursor, p.WaitForOutput)
	if err != nil || !ok {
		return &outputPiece{}, err
	}
	return &outputPiece{LeaseHeld: true, Cursor: chunk.Cursor, IsComplete: chunk.LogComplete, Data: chunk.Data}, nil
}

// readRemote reads the output of an attempt that runs on another node.
func (r *JobRouter) readRemote(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	if r.Cluster == nil {
		return &outputPiece{}, nil
	}
	node, err := r.Cluster.LeaseHolder(ctx, p.JobSeq)
	if err != nil || node == 0 {
		return &outputPiece{}, err
	}
	return r.readOnNode(ctx, node, p)
}

// ReadOutput reads the output of an attempt of a running job, which may run on any node. attempt is its number; 0
// means the attempt that runs now. If wait is true, ReadOutput waits until the attempt has printed something. ok is
// false if no node runs the attempt.
func (r *JobRouter) ReadOutput(ctx context.Context, seq int64, attempt int, cursor output.Cursor, wait bool) (
	piece *outputPiece, ok bool, err error) {
	p := outputReadRequest{JobSeq: seq, Attempt: attempt, Cursor: cursor, WaitForOutput: wait}
	piece, err = r.readLocal(ctx, p)
	for lastAnswer := time.Now(); err == nil && !piece.LeaseHeld; {
		remote, failed := r.readRemote(ctx, p)
		switch {
		// The job has printed nothing new, so send another request.
		case failed == nil && wait && remote.LeaseHeld && !remote.IsComplete && remote.Cursor == cursor:
			lastAnswer = time.Now()
		case failed == nil || !wait || !errors.Is(failed, queue.ErrUnavailable):
			return remote, remote.LeaseHeld, failed
		case IsNodeLost(failed):
			if !r.awaitTakeover(ctx, seq) {
				return nil, false, failed
			}
		// Stop trying: if the node had been lost, its lease would have expired by now.
		case time.Since(lastAnswer) > 2*r.Cluster.NodeLeaseDuration():
			return nil, false, failed
		default: // the error may be temporary, for example because the store was unavailable
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(PollInterval):
			}
		}
	}
	return piece, piece.LeaseHeld, err
}

// outputFile is an open output file, on this node or on another.
type outputFile interface {
	io.ReaderAt
	io.Closer
}

// OpenAttemptOutput opens the output file of an attempt on the node that has it.
func (r *JobRouter) OpenAttemptOutput(ctx context.Context, a *queue.Attempt) (outputFile, error) {
	local, err := r.OutputFiles.OpenOutput(a.OutputRef)
	switch {
	case err == nil:
		return local, nil
	case r.Cluster == nil || !errors.Is(err, os.ErrNotExist) || a.Node == r.Node:
		return nil, err
	}
	list, failed := r.NodeList.Nodes(ctx)
	if failed != nil {
		return nil, failed
	}
	for i := range list {
		n := &list[i]
		switch {
		case n.Name != a.Node:
		case !n.LeaseValid:
			return nil, queue.Errorf(queue.CodeUnavailable,
				"the output of attempt %d is on node %s, which does not answer; see: queuectl node list", a.Number, a.Node)
		default:
			remote := &remoteOutput{ctx: ctx, router: r, node: n.ID, ref: a.OutputRef}
			return remote, remote.fetchPiece(0)
		}
	}
	return nil, err
}

// remoteOutput is an output file on another node. It caches the piece that it read last, so that several small
// reads need only one request.
type remoteOutput struct {
	ctx          context.Context
	router       *JobRouter
	node         int64  // id of the node that has the file
	ref          string // name of the file
	cachedOffset int64  // offset of the cached piece in the file, in bytes
	cachedPiece  []byte
}

// fetchPiece reads the piece at an offset from the other node and caches it.
func (o *remoteOutput) fetchPiece(offset int64) error {
	piece, err := o.router.readOnNode(o.ctx, o.node, outputReadRequest{Ref: o.ref, Offset: offset})
	if errors.Is(err, queue.ErrNotFound) {
		err = os.ErrNotExist
	}
	if err == nil {
		o.cachedOffset, o.cachedPiece = offset, piece.Data
	}
	return err
}

// ReadAt implements io.ReaderAt.
func (o *remoteOutput) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		at := off + int64(n)
		if at < o.cachedOffset || at >= o.cachedOffset+int64(len(o.cachedPiece)) {
			if err := o.fetchPiece(at); err != nil {
				return n, err
			}
			if len(o.cachedPiece) == 0 {
				return n, io.EOF
			}
		}
		n += copy(b[n:], o.cachedPiece[at-o.cachedOffset:])
	}
	return n, nil
}

// Close implements io.Closer.
func (o *remoteOutput) Close() error { return nil }
