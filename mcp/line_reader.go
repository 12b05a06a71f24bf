package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// lineReader reads the client's messages, one per line, and passes valid messages to the MCP library. For an invalid
// line it sends an error reply, as JSON-RPC requires. The library would instead end the session with all its calls.
//
// lineReader passes on the first line even if it is invalid. Such a line was probably typed by a person, and it is
// right that the library then ends the session. lineReader is not safe for concurrent use.
type lineReader struct {
	io.Closer
	clientInput      *bufio.Reader
	clientOutput     io.Writer
	firstMessageRead bool   // the first message, which contains the protocol version, has been read
	allowsBatches    bool   // the protocol version allows batches: several messages in a line
	unreadLinePart   []byte // part of the current line that the library has not read yet
	requestTracker   *requestTracker
	sessionContext   context.Context // context of the session
}

// firstVersionWithoutBatches is the first version of the protocol without batches.
const firstVersionWithoutBatches = "2025-06-18"

// Read implements io.Reader.
func (l *lineReader) Read(p []byte) (int, error) {
	for len(l.unreadLinePart) == 0 {
		line, whole, err := l.nextLine()
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case !whole:
			l.sendErrorReply(nullJSONID, -32600, fmt.Sprintf("the line is longer than %d bytes", control.MaxLineBytes))
		case !l.firstMessageRead:
			l.readProtocolVersion(line)
			l.firstMessageRead, l.unreadLinePart = true, line
			l.requestTracker.recordRequests(line)
		case !json.Valid(line):
			l.sendErrorReply(nullJSONID, -32700, "the line is not valid JSON: "+queue.ClipForMessage(string(line)))
		default:
			if id, wrong := l.checkMessageLine(line); wrong != "" {
				l.sendErrorReply(id, -32600, wrong)
				break
			}
			l.unreadLinePart = line
			l.requestTracker.recordRequests(line)
		}
		if err != nil && len(l.unreadLinePart) == 0 {
			l.requestTracker.waitForAllReplies(l.sessionContext)
			return 0, err
		}
	}
	n := copy(p, l.unreadLinePart)
	l.unreadLinePart = l.unreadLinePart[n:]
	return n, nil
}

// readProtocolVersion reads the client's protocol version from the first message, and sets allowsBatches.
func (l *lineReader) readProtocolVersion(line []byte) {
	var initMessage struct {
		Params struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &initMessage) == nil {
		l.allowsBatches = initMessage.Params.ProtocolVersion != "" &&
			initMessage.Params.ProtocolVersion < firstVersionWithoutBatches
	}
}

// checkMessageLine returns what is wrong with a line, or "" if the line is valid. A valid line is a valid message or,
// in a session with batches, a valid batch. id is the id for an error reply: the id of the message, or null if the line
// is a batch or has no valid id.
func (l *lineReader) checkMessageLine(line []byte) (id json.RawMessage, problem string) {
	var batch []json.RawMessage
	if json.Unmarshal(line, &batch) != nil || batch == nil {
		return checkMessage(line)
	}
	switch {
	case !l.allowsBatches:
		return nullJSONID, "this protocol version does not support batches; send one message per line"
	case len(batch) == 0:
		return nullJSONID, "the batch is empty; send at least one message"
	}
	ids := map[any]bool{}
	for _, one := range batch {
		if _, wrong := checkMessage(one); wrong != "" {
			return nullJSONID, wrong
		}
		message, _ := jsonrpc.DecodeMessage(one) // no error, since checkMessage has accepted it
		if request, is := message.(*jsonrpc.Request); is && request.ID.IsValid() {
			if ids[request.ID.Raw()] {
				return nullJSONID, fmt.Sprintf("id: two requests in the batch have the id %v; use different ids", request.ID.Raw())
			}
			ids[request.ID.Raw()] = true
		}
	}
	return nullJSONID, ""
}

var nullJSONID = json.RawMessage("null")

// checkMessage is like checkMessageLine, except that it checks one message. It accepts requests, notifications and
// responses of JSON-RPC 2.0. Their parameters must be an object, as MCP requires.
func checkMessage(raw json.RawMessage) (id json.RawMessage, problem string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return nullJSONID, "a message must be a JSON object"
	}
	begins := func(name, firstChars string) bool { return strings.IndexByte(firstChars, members[name][0]) >= 0 }
	given := func(name string) bool { return members[name] != nil }
	id = nullJSONID
	if given("id") && begins("id", `"-0123456789`) {
		id = members["id"]
	}
	answers := given("result") || given("error")
	switch {
	case string(members["jsonrpc"]) != `"2.0"`:
		return id, `jsonrpc: must be "2.0"`
	case given("id") && bytes.Equal(id, nullJSONID):
		return nullJSONID, "id: must be a number or a string"
	case given("method") && !begins("method", `"`):
		return id, "method: must be a string"
	case !given("method") && !answers:
		return id, "method: missing; add the name of a method"
	case !given("method") && !given("id"):
		return id, "id: missing; add the id of the request"
	case given("params") && !begins("params", "{n"):
		return id, "params: must be a JSON object"
	}
	if _, err := jsonrpc.DecodeMessage(raw); err != nil {
		return id, "the line is not a JSON-RPC 2.0 message"
	}
	return id, ""
}

// nextLine returns the next line. If the line is too long, isComplete is false and only its beginning is returned.
func (l *lineReader) nextLine() (line []byte, isComplete bool, err error) {
	for isComplete = true; ; {
		part, err := l.clientInput.ReadSlice('\n')
		// MaxLineBytes does not include the newline.
		if isComplete = isComplete && len(line)+len(part) <= control.MaxLineBytes+1; isComplete {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, isComplete, err
		}
	}
}

// sendErrorReply sends an error reply for a line that lineReader does not pass to the library.
func (l *lineReader) sendErrorReply(id json.RawMessage, code int, message string) {
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": code, "message": message}})
	if err == nil {
		l.clientOutput.Write(append(raw, '\n')) // if this write fails, the next reply fails too
	}
}

// sharedWriter is a writer that several goroutines can use. Each call of Write must contain whole lines.
type sharedWriter struct {
	io.WriteCloser
	requestTracker *requestTracker
	mu             sync.Mutex
}

// Write implements io.Writer.
func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.WriteCloser.Write(p)
	s.requestTracker.removeAnsweredRequests(p)
	return n, err
}
