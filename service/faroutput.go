package service

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/queuectl/queuectl/queue"
)

// maxOutputPiece is the maximum number of bytes of an output file in one reply to another node.
const maxOutputPiece = 256 << 10

// piece reads the requested part of an output file, at most maxOutputPiece bytes, and the file's size.
func (c crew) piece(a *ask) (data []byte, size int64, err error) {
	f, err := c.s.openOutput(a.Ref)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data = make([]byte, min(maxOutputPiece, max(0, a.Length)))
	n, err := f.ReadAt(data, a.At)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], info.Size(), err
}

// outputFile is an output file on this node or on another.
type outputFile interface {
	io.ReaderAt
	io.Closer
}

// outputOf opens the output file of an attempt on the node that has it.
func (s *Service) outputOf(ctx context.Context, a *queue.Attempt) (f outputFile, size int64, err error) {
	own, err := s.openOutput(a.OutputRef)
	switch {
	case err == nil:
		info, err := own.Stat()
		if err != nil {
			own.Close()
			return nil, 0, err
		}
		return own, info.Size(), nil
	case s.cluster == nil || !errors.Is(err, os.ErrNotExist) || a.Node == s.node:
		return nil, 0, err
	}
	list, failed := s.nodes(ctx)
	if failed != nil {
		return nil, 0, failed
	}
	for i := range list {
		n := &list[i]
		switch {
		case n.Name != a.Node:
		case !n.Alive:
			return nil, 0, queue.Errorf(queue.CodeUnavailable, "the output of attempt %d is on node %s, which does not answer; see: queuectl node list", a.N, a.Node)
		default:
			far := &farOutput{ctx: ctx, c: s.crew(), node: n.ID, ref: a.OutputRef}
			size, err := far.look()
			return far, size, err
		}
	}
	return nil, 0, err
}

// farOutput is an output file on another node. It caches the last piece that it has read.
type farOutput struct {
	ctx  context.Context
	c    crew
	node int64
	ref  string
	at   int64 // offset of last in the file
	last []byte
}

func (f *farOutput) look() (size int64, err error) {
	is, err := f.c.ask(f.ctx, f.node, ask{Do: "output", Ref: f.ref, Length: maxOutputPiece})
	f.at, f.last = 0, is.Data
	return is.Size, err
}

// ReadAt implements io.ReaderAt.
func (f *farOutput) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		skip := at + int64(n) - f.at
		if skip < 0 || skip >= int64(len(f.last)) {
			is, err := f.c.ask(f.ctx, f.node, ask{Do: "output", Ref: f.ref, At: at + int64(n), Length: maxOutputPiece})
			if err != nil {
				return n, err
			}
			if f.at, f.last, skip = at+int64(n), is.Data, 0; len(is.Data) == 0 {
				return n, io.EOF
			}
		}
		n += copy(b[n:], f.last[skip:])
	}
	return n, nil
}

// Close implements io.Closer.
func (f *farOutput) Close() error { return nil }
