package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxJobWaitAfterInputEnd limits how long calls wait for jobs after the client has closed its input. Such a client is
// about to exit, but a job may take hours. After maxJobWaitAfterInputEnd, the calls return as if their own time limit
// had expired.
const maxJobWaitAfterInputEnd = 5 * time.Second

// requestTracker contains the requests of a client that have no reply yet. A client may close its input right after a
// request. At the end of the input, the library ends all calls. So lineReader reports the end of the input to the
// library only when all requests have a reply. Calls that wait for jobs delay this by at most twice
// maxJobWaitAfterInputEnd. If they take longer, they get no reply.
type requestTracker struct {
	jobWaitCtx              context.Context // ends when calls must stop waiting for jobs
	stopJobWaits            context.CancelFunc
	mu                      sync.Mutex
	waitsForJobsByRequestID map[any]bool  // whether each unanswered request waits for jobs, by its id
	nextReplySignal         chan struct{} // closed at the next reply; nil if waitForAllReplies does not run
}

func newRequestTracker() *requestTracker {
	enough, stop := context.WithCancel(context.Background())
	return &requestTracker{jobWaitCtx: enough, stopJobWaits: stop}
}

// recordRequests adds the requests that a line contains.
func (t *requestTracker) recordRequests(line []byte) {
	for _, message := range messagesInLine(line) {
		request, is := message.(*jsonrpc.Request)
		switch {
		case is && request.ID.IsValid():
			t.mu.Lock()
			if t.waitsForJobsByRequestID == nil {
				t.waitsForJobsByRequestID = map[any]bool{}
			}
			t.waitsForJobsByRequestID[request.ID.Raw()] = waitsForJobs(request)
			t.mu.Unlock()
		case is && request.Method == "notifications/cancelled": // a cancelled request gets no reply
			var cancelParams struct {
				RequestID any `json:"requestId"`
			}
			if json.Unmarshal(request.Params, &cancelParams) == nil {
				if id, err := jsonrpc.MakeID(cancelParams.RequestID); err == nil {
					t.removeRequest(id.Raw())
				}
			}
		}
	}
}

// waitsForJobs reports whether a request calls a tool that replies only when jobs have ended.
func waitsForJobs(request *jsonrpc.Request) bool {
	var toolParams struct {
		Name string `json:"name"`
	}
	if request.Method != "tools/call" || json.Unmarshal(request.Params, &toolParams) != nil {
		return false
	}
	return slices.ContainsFunc(tools, func(t tool) bool { return t.waitsForJobEnd && t.name == toolParams.Name })
}

// removeAnsweredRequests removes the requests that the replies in replyLine answer.
func (t *requestTracker) removeAnsweredRequests(replyLine []byte) {
	for _, message := range messagesInLine(replyLine) {
		if answer, is := message.(*jsonrpc.Response); is {
			t.removeRequest(answer.ID.Raw())
		}
	}
}

// removeRequest removes a request that was answered or cancelled.
func (t *requestTracker) removeRequest(requestID any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waitsForJobsByRequestID, requestID)
	if t.nextReplySignal != nil {
		close(t.nextReplySignal)
		t.nextReplySignal = nil
	}
}

// waitForAllReplies waits until all requests are answered or ctx ends. After maxJobWaitAfterInputEnd, it makes calls
// stop waiting for jobs. After twice maxJobWaitAfterInputEnd, it no longer waits for calls that wait for jobs.
func (t *requestTracker) waitForAllReplies(ctx context.Context) {
	late, timer := false, time.After(2*maxJobWaitAfterInputEnd)
	stop := time.AfterFunc(maxJobWaitAfterInputEnd, t.stopJobWaits)
	defer stop.Stop()
	for {
		t.mu.Lock()
		open := false
		for _, waits := range t.waitsForJobsByRequestID {
			open = open || !waits || !late
		}
		answered := make(chan struct{})
		t.nextReplySignal = answered
		t.mu.Unlock()
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

// messagesInLine returns the messages in a line, which may be a batch. It leaves out messages that it cannot
// decode.
func messagesInLine(line []byte) (messages []jsonrpc.Message) {
	var batch []json.RawMessage
	if json.Unmarshal(line, &batch) != nil {
		batch = []json.RawMessage{line}
	}
	for _, one := range batch {
		if message, err := jsonrpc.DecodeMessage(one); err == nil {
			messages = append(messages, message)
		}
	}
	return messages
}
