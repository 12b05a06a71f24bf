package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// lines are the messages that a client sends, a line each. Those that are none are answered, as JSON-RPC says, and left
// out: the library would end the session, with all that is under way. It may, before the first message: then a person types
// there. It is for one goroutine.
type lines struct {
	io.Closer
	in    *bufio.Reader
	out   io.Writer
	began bool   // a message was read
	many  bool   // by the protocol that the client speaks, a line may hold many
	rest  []byte // of the last one, still to be read
	open  *pending
	ctx   context.Context // of the session
}

// alone is the first version of the protocol in which each line is one message.
const alone = "2025-06-18"

// Read implements io.Reader.
func (l *lines) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		line, whole, err := l.next()
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case !whole:
			l.refuse(-32600, fmt.Sprintf("the line is longer than %d bytes", control.MaxLine))
		case !l.began:
			l.begin(line)
			l.began, l.rest = true, line
			l.open.read(line)
		case !json.Valid(line):
			l.refuse(-32700, "the line is not JSON: "+queue.Clip(string(line)))
		default:
			if wrong := l.check(line); wrong != nil {
				l.refuse(-32600, "the line is no JSON-RPC message: "+wrong.Error())
				break
			}
			l.rest = line
			l.open.read(line)
		}
		if err != nil && len(l.rest) == 0 {
			l.open.wait(l.ctx)
			return 0, err
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// begin hears by the first message which protocol the client speaks.
func (l *lines) begin(line []byte) {
	var hello struct {
		Params struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &hello) == nil {
		l.many = hello.Params.ProtocolVersion != "" && hello.Params.ProtocolVersion < alone
	}
}

// check refuses a line that is neither a message nor, where there may be, many.
func (l *lines) check(line []byte) error {
	var list []json.RawMessage
	if !l.many || json.Unmarshal(line, &list) != nil {
		_, err := jsonrpc.DecodeMessage(line)
		return err
	}
	if len(list) == 0 {
		return errors.New("it is an empty list")
	}
	ids := map[any]bool{}
	for _, one := range list {
		message, err := jsonrpc.DecodeMessage(one)
		if err != nil {
			return err
		}
		if asks, is := message.(*jsonrpc.Request); is && asks.ID.IsValid() {
			if ids[asks.ID.Raw()] {
				return fmt.Errorf("two of its requests have the id %v", asks.ID.Raw())
			}
			ids[asks.ID.Raw()] = true
		}
	}
	return nil
}

// next is the next line, which is whole unless it is too long.
func (l *lines) next() (line []byte, whole bool, err error) {
	for whole = true; ; {
		part, err := l.in.ReadSlice('\n')
		if whole = whole && len(line)+len(part) <= control.MaxLine+1; whole { // with its end
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, whole, err
		}
	}
}

// refuse answers a line of which nobody knows the request.
func (l *lines) refuse(code int, why string) {
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": why}})
	if err == nil {
		l.out.Write(append(raw, '\n')) // where it fails the next answer does
	}
}

// shared is a writer for many, of whom each writes whole lines.
type shared struct {
	io.WriteCloser
	open *pending
	mu   sync.Mutex
}

// Write implements io.Writer.
func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.WriteCloser.Write(p)
	s.open.written(p)
	return n, err
}
