package mcp

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// pending are the requests that were read and are not answered yet. A client may close its side right after a request:
// the library ends the session, with everything under way, once it reads the end, so the end is held back until every
// request is answered.
type pending struct {
	mu    sync.Mutex
	ids   map[any]bool
	empty chan struct{} // closed while a reader waits for the last answer, nil if none does
}

// read notes the requests of a line.
func (p *pending) read(line []byte) {
	for _, message := range messagesOf(line) {
		asks, is := message.(*jsonrpc.Request)
		switch {
		case is && asks.ID.IsValid():
			p.note(asks.ID.Raw(), true)
		case is && asks.Method == "notifications/cancelled": // which is not answered any more
			var given struct {
				RequestID any `json:"requestId"`
			}
			if json.Unmarshal(asks.Params, &given) == nil {
				if id, err := jsonrpc.MakeID(given.RequestID); err == nil {
					p.note(id.Raw(), false)
				}
			}
		}
	}
}

// written notes the answers of a line.
func (p *pending) written(line []byte) {
	for _, message := range messagesOf(line) {
		if answer, is := message.(*jsonrpc.Response); is {
			p.note(answer.ID.Raw(), false)
		}
	}
}

func (p *pending) note(id any, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open {
		if p.ids == nil {
			p.ids = map[any]bool{}
		}
		p.ids[id] = true
		return
	}
	delete(p.ids, id)
	if len(p.ids) == 0 && p.empty != nil {
		close(p.empty)
		p.empty = nil
	}
}

// wait returns once every request is answered, or ctx ends.
func (p *pending) wait(ctx context.Context) {
	p.mu.Lock()
	if len(p.ids) == 0 {
		p.mu.Unlock()
		return
	}
	p.empty = make(chan struct{})
	empty := p.empty
	p.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// messagesOf returns the messages of a line, which may be a list; none of one that is not understood.
func messagesOf(line []byte) (messages []jsonrpc.Message) {
	var list []json.RawMessage
	if json.Unmarshal(line, &list) != nil {
		list = []json.RawMessage{line}
	}
	for _, one := range list {
		if message, err := jsonrpc.DecodeMessage(one); err == nil {
			messages = append(messages, message)
		}
	}
	return messages
}
