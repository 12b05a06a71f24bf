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

// readOutputMethod is the method of a request to read output from a position. Only nodes send it to each other;
// clients cannot. The sending node has checked that the peer may see the output.
const readOutputMethod = "output"

// maxOutputPieceBytes limits how many bytes of an output file one answer to another node contains.
const maxOutputPieceBytes = 256 << 10

// outputReadRequest holds the parameters of readOutputMethod. It requests a part of the output file FileName. If
// FileName is "", it requests a part of the output of a running attempt.
type outputReadRequest struct {
	JobSeq        int64               `json:"seq,omitempty"`     // number of the job
	AttemptNumber int                 `json:"attempt,omitempty"` // number of the attempt; 0 means the one that runs now
	Cursor        output.StreamCursor `json:"cursor"`
	WaitForOutput bool                `json:"wait,omitempty"`

	FileName   string `json:"ref,omitempty"`
	FileOffset int64  `json:"at,omitempty"` // offset in the file, in bytes
}

// outputPiece is the result of readOutputMethod: a piece of a file or of a running attempt's output.
type outputPiece struct {
	Data []byte `json:"data,omitempty"`

	FileSize int64 `json:"size,omitempty"` // size of the whole file, in bytes

	// The next fields are set only for a running attempt. Data is then encoded by output.AppendEncodedChunks. It is empty
	// if the attempt has printed nothing for outputReadTimeout.
	NodeHoldsLease   bool                `json:"held,omitempty"` // the node holds the job's lease
	NextCursor       output.StreamCursor `json:"cursor"`         // position after Data
	IsOutputComplete bool                `json:"done,omitempty"` // no output follows after Data
}

// errOutputNodeUnavailable means that the node with a job's output does not answer.
var errOutputNodeUnavailable = queue.Errorf(queue.CodeUnavailable,
	"the node that has the job's output does not answer; see: queuectl node list")

// requestOutputFromNode requests output from another node, and returns the node's answer.
func (r *JobRouter) requestOutputFromNode(ctx context.Context, nodeID int64, p outputReadRequest) (piece *outputPiece,
	err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*outputReadTimeout, errOutputNodeUnavailable)
	defer cancel()
	piece = &outputPiece{}
	_, err = r.sendToNode(ctx, nodeID, Request{APIMethod: readOutputMethod, Params: p, MayTakeLong: true}, piece)
	if p.FileName != "" && IsNodeLost(err) { // do not wait: no other node takes over the files of a lost node
		err = errOutputNodeUnavailable
	}
	return piece, err
}

// readOutputForOtherNode reads output on this node, as another node has requested.
func (r *JobRouter) readOutputForOtherNode(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	if p.FileName != "" {
		return r.OutputFiles.readOutputPiece(p)
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, outputReadTimeout)
	defer cancel()
	piece, err := r.readLocalOutput(timeoutCtx, p)
	if err != nil && timeoutCtx.Err() != nil && ctx.Err() == nil && p.WaitForOutput {
		return &outputPiece{NodeHoldsLease: true, NextCursor: p.Cursor}, nil
	}
	return piece, err
}

// readLocalOutput reads the output of an attempt that runs on this node. If p.WaitForOutput is set, readLocalOutput
// waits for new output.
func (r *JobRouter) readLocalOutput(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	chunk, ok, err := r.Pool.ReadOutput(ctx, p.JobSeq, p.AttemptNumber, p.Cursor, p.WaitForOutput)
	if err != nil || !ok {
		return &outputPiece{}, err
	}
	return &outputPiece{NodeHoldsLease: true, NextCursor: chunk.StreamCursors, IsOutputComplete: chunk.OutputComplete,
		Data: chunk.OutputChunks}, nil
}

// readRemoteOutput reads the output of an attempt that runs on another node.
func (r *JobRouter) readRemoteOutput(ctx context.Context, p outputReadRequest) (*outputPiece, error) {
	if r.Cluster == nil {
		return &outputPiece{}, nil
	}
	node, err := r.Cluster.LeaseHolderNodeID(ctx, p.JobSeq)
	if err != nil || node == 0 {
		return &outputPiece{}, err
	}
	return r.requestOutputFromNode(ctx, node, p)
}

// ReadOutput reads the output of an attempt of a running job, which may run on any node. attempt is the number of the
// attempt; 0 means the attempt that runs now. If waitForOutput is true, ReadOutput waits until the attempt has printed
// something new. isRunning is false if no node runs the attempt.
func (r *JobRouter) ReadOutput(ctx context.Context, jobSeq int64, attemptNumber int, cursor output.StreamCursor,
	waitForOutput bool) (
	piece *outputPiece, isRunning bool, err error) {
	p := outputReadRequest{JobSeq: jobSeq, AttemptNumber: attemptNumber, Cursor: cursor, WaitForOutput: waitForOutput}
	piece, err = r.readLocalOutput(ctx, p)
	for lastAnswer := time.Now(); err == nil && !piece.NodeHoldsLease; {
		remote, failed := r.readRemoteOutput(ctx, p)
		switch {
		// The attempt has printed nothing new, so send another request.
		case failed == nil && waitForOutput && remote.NodeHoldsLease && !remote.IsOutputComplete &&
			remote.NextCursor == cursor:
			lastAnswer = time.Now()
		case failed == nil || !waitForOutput || !errors.Is(failed, queue.ErrUnavailable):
			return remote, remote.NodeHoldsLease, failed
		case IsNodeLost(failed):
			if !r.awaitJobTakeover(ctx, jobSeq) {
				return nil, false, failed
			}
		// Stop trying. If the node had been lost, its lease would have expired by now.
		case time.Since(lastAnswer) > 2*r.Cluster.NodeLeaseDuration():
			return nil, false, failed
		default: // the error may be temporary, for example because the store was unavailable
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(ChangePollInterval):
			}
		}
	}
	return piece, piece.NodeHoldsLease, err
}

// outputFile is an open output file, on this node or on another.
type outputFile interface {
	io.ReaderAt
	io.Closer
}

// OpenAttemptOutput opens the output file of an attempt on the node that has it.
func (r *JobRouter) OpenAttemptOutput(ctx context.Context, a *queue.Attempt) (outputFile, error) {
	local, err := r.OutputFiles.OpenOutputFile(a.OutputFileRef)
	switch {
	case err == nil:
		return local, nil
	case r.Cluster == nil || !errors.Is(err, os.ErrNotExist) || a.Node == r.NodeName:
		return nil, err
	}
	list, failed := r.Nodes(ctx)
	if failed != nil {
		return nil, failed
	}
	for i := range list {
		n := &list[i]
		switch {
		case n.Name != a.Node:
		case !n.IsNodeLeaseValid:
			return nil, queue.Errorf(queue.CodeUnavailable,
				"the output of attempt %d is on node %s, which does not answer; see: queuectl node list", a.Number, a.Node)
		default:
			remote := &remoteOutputFile{ctx: ctx, router: r, nodeID: n.ID, fileName: a.OutputFileRef}
			return remote, remote.fetchPieceAt(0)
		}
	}
	return nil, err
}

// remoteOutputFile is an output file on another node. It caches the piece of the file that it read last, so that
// several small reads need only one request.
type remoteOutputFile struct {
	ctx               context.Context
	router            *JobRouter
	nodeID            int64  // id of the node that has the file
	fileName          string // name of the file
	cachedPieceOffset int64  // offset of the cached piece in the file, in bytes
	cachedPiece       []byte
}

// fetchPieceAt reads the piece at an offset from the other node and caches it.
func (o *remoteOutputFile) fetchPieceAt(offset int64) error {
	piece, err := o.router.requestOutputFromNode(o.ctx, o.nodeID,
		outputReadRequest{FileName: o.fileName, FileOffset: offset})
	if errors.Is(err, queue.ErrNotFound) {
		err = os.ErrNotExist
	}
	if err == nil {
		o.cachedPieceOffset, o.cachedPiece = offset, piece.Data
	}
	return err
}

// ReadAt implements io.ReaderAt.
func (o *remoteOutputFile) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		at := off + int64(n)
		if at < o.cachedPieceOffset || at >= o.cachedPieceOffset+int64(len(o.cachedPiece)) {
			if err := o.fetchPieceAt(at); err != nil {
				return n, err
			}
			if len(o.cachedPiece) == 0 {
				return n, io.EOF
			}
		}
		n += copy(b[n:], o.cachedPiece[at-o.cachedPieceOffset:])
	}
	return n, nil
}

// Close implements io.Closer.
func (o *remoteOutputFile) Close() error { return nil }
