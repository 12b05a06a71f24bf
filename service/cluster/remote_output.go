package cluster

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/queuectl/queuectl/queue"
)

// maxOutputPiece is the maximum number of bytes of an output file in one reply to another node.
const maxOutputPiece = 256 << 10

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
			size, err := remote.readSize()
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

func (f *remoteOutput) readSize() (size int64, err error) {
	reply, err := f.router.sendRequest(f.ctx, f.node, NodeRequest{Command: "output", Ref: f.ref, Length: maxOutputPiece})
	f.offset, f.cached = 0, reply.Data
	return reply.Size, err
}

// ReadAt implements io.ReaderAt.
func (f *remoteOutput) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		skip := off + int64(n) - f.offset
		if skip < 0 || skip >= int64(len(f.cached)) {
			reply, err := f.router.sendRequest(f.ctx, f.node,
				NodeRequest{Command: "output", Ref: f.ref, Offset: off + int64(n), Length: maxOutputPiece})
			if err != nil {
				return n, err
			}
			if f.offset, f.cached, skip = off+int64(n), reply.Data, 0; len(reply.Data) == 0 {
				return n, io.EOF
			}
		}
		n += copy(b[n:], f.cached[skip:])
	}
	return n, nil
}

// Close implements io.Closer.
func (f *remoteOutput) Close() error { return nil }
