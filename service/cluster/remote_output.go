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

// The requests that only nodes send. They read output from a position, which no control request does. The node that
// sends them has checked that the peer may see the output.
const (
	liveMethod = "output.live" // the output of a running attempt
	fileMethod = "output.file" // an output file
)

// maxOutputPiece is the maximum number of bytes of an output file in one answer to another node.
const maxOutputPiece = 256 << 10

// liveRead holds the parameters of liveMethod.
type liveRead struct {
	Seq    int64         `json:"seq"`
	Cursor output.Cursor `json:"cursor"`
	Wait   bool          `json:"wait,omitempty"`
}

// livePiece is the result of liveMethod: a piece of a running attempt's output, encoded by output.AppendChunks.
type livePiece struct {
	Held   bool          `json:"held,omitempty"` // the node holds the job's lease
	Cursor output.Cursor `json:"cursor"`         // position after the piece
	Done   bool          `json:"done,omitempty"`
	Data   []byte        `json:"data,omitempty"` // empty if the attempt has printed nothing for readTimeout
}

// fileRead holds the parameters of fileMethod.
type fileRead struct {
	Ref    string `json:"ref"`
	Offset int64  `json:"at,omitempty"` // in bytes
}

// filePiece is the result of fileMethod: at most maxOutputPiece bytes of a file.
type filePiece struct {
	Data []byte `json:"data,omitempty"`
	Size int64  `json:"size"` // size of the whole file, in bytes
}

// readFrom sends a request for output to a node.
func (r *JobRouter) readFrom(ctx context.Context, node int64, method string, params, result any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*readTimeout, queue.Errorf(queue.CodeUnavailable,
		"the node that has the job's output does not answer; see: queuectl node list"))
	defer cancel()
	_, err := r.send(ctx, node, Request{Method: method, Params: params, Slow: true}, result)
	return err
}

// readLocal reads output of an attempt that runs on this node.
func (r *JobRouter) readLocal(ctx context.Context, p liveRead) (*livePiece, error) {
	chunk, ok, err := r.Pool.Read(ctx, p.Seq, p.Cursor, p.Wait)
	if err != nil || !ok {
		return &livePiece{}, err
	}
	return &livePiece{Held: true, Cursor: chunk.Cursor, Done: chunk.Done, Data: chunk.Data}, nil
}

// answerLive executes liveMethod.
func (r *JobRouter) answerLive(ctx context.Context, p liveRead) (*livePiece, error) {
	timeoutCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	piece, err := r.readLocal(timeoutCtx, p)
	if err != nil && timeoutCtx.Err() != nil && ctx.Err() == nil && p.Wait {
		return &livePiece{Held: true, Cursor: p.Cursor}, nil
	}
	return piece, err
}

// readRemote reads output of an attempt that runs on another node.
func (r *JobRouter) readRemote(ctx context.Context, p liveRead) (*livePiece, error) {
	piece := &livePiece{}
	if r.Cluster == nil {
		return piece, nil
	}
	node, err := r.Cluster.LeaseHolder(ctx, p.Seq)
	if err == nil && node != 0 {
		err = r.readFrom(ctx, node, liveMethod, p, piece)
	}
	return piece, err
}

// Read reads output of a running job on any node. ok is false if no node runs the job.
func (r *JobRouter) Read(ctx context.Context, seq int64, cursor output.Cursor, wait bool) (piece *livePiece, ok bool,
	err error) {
	p := liveRead{seq, cursor, wait}
	piece, err = r.readLocal(ctx, p)
	for begun := time.Now(); err == nil && !piece.Held; {
		remote, failed := r.readRemote(ctx, p)
		switch {
		case failed == nil || !wait || !errors.Is(failed, queue.ErrUnavailable):
			return remote, remote.Held, failed
		case IsNodeLost(failed):
			if !r.awaitTakeover(ctx, seq) {
				return nil, false, failed
			}
		// Give up: if the node was lost, its lease has expired by now.
		case time.Since(begun) > 2*r.Cluster.Lease():
			return nil, false, failed
		default: // try again: for example, the store may be temporarily unavailable
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-time.After(PollInterval):
			}
		}
	}
	return piece, piece.Held, err
}

// outputFile is an output file on this node or on another.
type outputFile interface {
	io.ReaderAt
	io.Closer
}

// OpenAttemptOutput opens the output file of an attempt on the node that has it.
func (r *JobRouter) OpenAttemptOutput(ctx context.Context, a *queue.Attempt) (f outputFile, size int64, err error) {
	local, err := r.OutputFiles.OpenOutput(a.OutputRef)
	switch {
	case err == nil:
		info, err := local.Stat()
		if err != nil {
			local.Close()
			return nil, 0, err
		}
		return local, info.Size(), nil
	case r.Cluster == nil || !errors.Is(err, os.ErrNotExist) || a.Node == r.Node:
		return nil, 0, err
	}
	list, failed := r.NodeList.Nodes(ctx)
	if failed != nil {
		return nil, 0, failed
	}
	for i := range list {
		n := &list[i]
		switch {
		case n.Name != a.Node:
		case !n.Alive:
			return nil, 0, queue.Errorf(queue.CodeUnavailable,
				"the output of attempt %d is on node %s, which does not answer; see: queuectl node list", a.N, a.Node)
		default:
			remote := &remoteOutput{ctx: ctx, router: r, node: n.ID, ref: a.OutputRef}
			size, err := remote.fetch(0)
			return remote, size, err
		}
	}
	return nil, 0, err
}

// remoteOutput is an output file on another node. It keeps the piece that it read last, so that small reads
// cause few requests.
type remoteOutput struct {
	ctx    context.Context
	router *JobRouter
	node   int64
	ref    string
	offset int64 // offset of the cached piece in the file, in bytes
	cached []byte
}

// fetch reads the piece at an offset, and returns the size of the file.
func (f *remoteOutput) fetch(offset int64) (size int64, err error) {
	var piece filePiece
	err = f.router.readFrom(f.ctx, f.node, fileMethod, fileRead{f.ref, offset}, &piece)
	if errors.Is(err, queue.ErrNotFound) {
		err = os.ErrNotExist
	}
	if err == nil {
		f.offset, f.cached = offset, piece.Data
	}
	return piece.Size, err
}

// ReadAt implements io.ReaderAt.
func (f *remoteOutput) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		at := off + int64(n)
		if at < f.offset || at >= f.offset+int64(len(f.cached)) {
			if _, err := f.fetch(at); err != nil {
				return n, err
			}
			if len(f.cached) == 0 {
				return n, io.EOF
			}
		}
		n += copy(b[n:], f.cached[at-f.offset:])
	}
	return n, nil
}

// Close implements io.Closer.
func (f *remoteOutput) Close() error { return nil }
