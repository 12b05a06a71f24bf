package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// lingers is how long calls may still wait for jobs after the end of the input: the client is gone or about to go, and a
// job may take an hour. The calls are then answered as if their own time was over.
const lingers = 5 * time.Second

// pending holds the requests that were read and are not answered yet. A client may close its side right after a request:
// the library ends the session and every call in progress once it reads the end, so the end is held back until every
// request is answered. If calls that wait for jobs are not answered for another lingers, they get no answer.
type pending struct {
	enough   context.Context // ends when calls should no longer wait for jobs
	stop     context.CancelFunc
	mu       sync.Mutex
	ids      map[any]bool  // of the requests; whether they wait for jobs
	answered chan struct{} // closed at the next answer; nil unless a reader waits for it
}

func newPending() *pending {
	enough, stop := context.WithCancel(context.Background())
	return &pending{enough: enough, stop: stop}
}

// read notes the requests of a line.
func (p *pending) read(line []byte) {
	for _, message := range messagesOf(line) {
		request, is := message.(*jsonrpc.Request)
		switch {
		case is && request.ID.IsValid():
			p.mu.Lock()
			if p.ids == nil {
				p.ids = map[any]bool{}
			}
			p.ids[request.ID.Raw()] = waitsForJobs(request)
			p.mu.Unlock()
		case is && request.Method == "notifications/cancelled": // which is not answered any more
			var given struct {
				RequestID any `json:"requestId"`
			}
			if json.Unmarshal(request.Params, &given) == nil {
				if id, err := jsonrpc.MakeID(given.RequestID); err == nil {
					p.remove(id.Raw())
				}
			}
		}
	}
}

// waitsForJobs reports whether a request is a call of a tool that answers once jobs have ended.
func waitsForJobs(request *jsonrpc.Request) bool {
	var call struct {
		Name string `json:"name"`
	}
	if request.Method != "tools/call" || json.Unmarshal(request.Params, &call) != nil {
		return false
	}
	return slices.ContainsFunc(tools, func(t tool) bool { return t.waits && t.name == call.Name })
}

// written notes the answers of a line.
func (p *pending) written(line []byte) {
	for _, message := range messagesOf(line) {
		if answer, is := message.(*jsonrpc.Response); is {
			p.remove(answer.ID.Raw())
		}
	}
}

func (p *pending) remove(id any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ids, id)
	if p.answered != nil {
		close(p.answered)
		p.answered = nil
	}
}

// wait returns once every request is answered or ctx ends. After lingers it ends the waits for jobs, and after twice that
// time it returns although some of them are not answered.
func (p *pending) wait(ctx context.Context) {
	late, timer := false, time.After(2*lingers)
	stop := time.AfterFunc(lingers, p.stop)
	defer stop.Stop()
	for {
		p.mu.Lock()
		open := false
		for _, waits := range p.ids {
			open = open || !waits || !late
		}
		answered := make(chan struct{})
		p.answered = answered
		p.mu.Unlock()
		if !open {
			return
		}
		select {
		case <-answered:
		case <-timer:
			late = true
		case <-ctx.Done():
			return
		}
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
