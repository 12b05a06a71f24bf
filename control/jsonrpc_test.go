//go:build linux || windows

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// rpcAnswer is a response object of JSON-RPC 2.0, section 5.
type rpcAnswer struct {
	JSONRPC string
	ID      json.RawMessage
	Result  json.RawMessage
	Error   *struct {
		Code    int
		Message string
		Data    struct{ Field string }
	}
}

// lineConn is a connection whose method sendAndRead writes lines and reads one answer.
type lineConn struct {
	t      *testing.T
	reader *bufio.Reader
	io.Writer
}

// serveAndConnect serves an API and returns a connection to it.
func serveAndConnect(t *testing.T, api API) *lineConn {
	t.Helper()
	c := dial(t, serveUntilTestEnds(t, api))
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return &lineConn{t, bufio.NewReader(c), c}
}

func (e *lineConn) sendAndRead(lines ...string) (a rpcAnswer) {
	e.t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(e, line+"\n"); err != nil {
			e.t.Fatal(err)
		}
	}
	line, err := e.reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		e.t.Fatalf("%s: %v", lines, err)
	}
	return a
}

// If a line is valid JSON but not a request object, the server answers with the error -32600 and keeps the
// connection open. Examples without a comment are from section 7 of the specification of JSON-RPC 2.0. Codes
// and ids follow its sections 5 and 5.1.
func TestMalformedRequestObjectsGetInvalidRequestError(t *testing.T) {
	e := serveAndConnect(t, noopAPI{})
	for _, c := range []struct{ line, id, text string }{
		{`{"jsonrpc": "2.0", "method": 1, "params": "bar"}`, "null", "method: must be text"},
		{`[]`, "null", "one request per line"},
		{`[1,2,3]`, "null", "one request per line"},
		{`[{"id":1,"method":"hello"},{"id":2,"method":"hello"}]`, "null", "one request per line"},
		{`{"foo": "boo"}`, "null", "method: required"},
		{`7`, "null", "not a request"}, // valid JSON, but not an object
		{`"hello"`, "null", "not a request"},
		// If the line is an object with a valid id, the error contains this id.
		{`{"jsonrpc":"2.0","id":5}`, "5", "method: required"},
		{`{"jsonrpc":"1.0","id":"a","method":"hello"}`, `"a"`, "jsonrpc: must be"},
		{`{"jsonrpc":"2.0","id":6,"method":"hello","params":"bar"}`, "6", "params: must be an object"},
		{`{"jsonrpc":"2.0","id":{},"method":"hello"}`, "null", "id: must be a number or text"},
		{`{"jsonrpc":"2.0","id":null,"method":"hello"}`, "null", "id: must be a number or text"},
	} {
		a := e.sendAndRead(c.line)
		if a.JSONRPC != "2.0" || a.Error == nil || a.Error.Code != -32600 || string(a.ID) != c.id {
			t.Errorf("%s: got %+v, %+v; want -32600 for %s", c.line, a, a.Error, c.id)
			continue
		}
		if got := a.Error.Data.Field + ": " + a.Error.Message; !strings.Contains(got, c.text) {
			t.Errorf("%s: got %s, want %s", c.line, got, c.text)
		}
	}
	for line, code := range map[string]int{
		`{"id":1,"method":"nosuch"}`: -32601, `{"id":1,"method":"show"}`: -32602,
		`{"id":1,"method":"show","params":["a"]}`: -32602,
	} {
		if a := e.sendAndRead(line); a.Error == nil || a.Error.Code != code || string(a.ID) != "1" {
			t.Errorf("%s: got %+v, want %d", line, a, code)
		}
	}
}

// enqueueRecordingAPI is an API that records the commands of enqueued jobs.
type enqueueRecordingAPI struct {
	noopAPI
	enqueuedCommands chan string
}

func (n enqueueRecordingAPI) Enqueue(_ context.Context, p EnqueueParams) (EnqueueResult, error) {
	n.enqueuedCommands <- *p.JobSpec.Command
	return EnqueueResult{}, nil
}

// A notification is a request without an id. The server executes it but never answers it, even if it fails
// (JSON-RPC 2.0, section 4.1).
func TestNotificationsAreNotAnswered(t *testing.T) {
	api := enqueueRecordingAPI{enqueuedCommands: make(chan string, 1)}
	e := serveAndConnect(t, api)
	a := e.sendAndRead(`{"jsonrpc":"2.0","method":"enqueue","params":{"command":"true"}}`,
		`{"jsonrpc":"2.0","method":"nosuch"}`,
		`{"jsonrpc":"2.0","method":"show","params":{"idz":1}}`, `{"jsonrpc":"2.0","method":"logs","params":{"id":"a"}}`,
		`{"jsonrpc":"2.0","method":"hello"}`, `{"jsonrpc":"2.0","id":9,"method":"hello"}`)
	if string(a.ID) != "9" || a.Error != nil {
		t.Errorf("the first answer is %+v, want that of the request with id 9", a)
	}
	if got := <-api.enqueuedCommands; got != "true" {
		t.Errorf("enqueued %q", got)
	}
	if a := e.sendAndRead(`{"jsonrpc":"2.0","id":10,"method":"hello"}`); string(a.ID) != "10" {
		t.Errorf("the second answer is %+v, want that of the request with id 10", a)
	}
}
