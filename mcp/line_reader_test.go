package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// A line that is not a JSON-RPC 2.0 message is not passed to the library. The client gets an error reply with
// the code -32600, a text of this package, and the id of the line if that id is valid (section 5 of the
// specification).
func TestInvalidLineGetsErrorReply(t *testing.T) {
	for _, c := range []struct{ line, id, why string }{
		{`{"jsonrpc":"2.0","id":10}`, "10", "method: missing; add the name of a method"},
		{`{"jsonrpc":"2.0","id":"a"}`, `"a"`, "method: missing; add the name of a method"},
		{`{"jsonrpc":"2.0"}`, "null", "method: missing; add the name of a method"},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", "id: must be a number or a string"},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, "null", "id: must be a number or a string"},
		{`{"jsonrpc":"2.0","id":11,"method":5}`, "11", "method: must be a string"},
		{`{"jsonrpc":"2.0","id":11,"method":null}`, "11", "method: must be a string"},
		{`{"jsonrpc":"1.0","id":12,"method":"ping"}`, "12", `jsonrpc: must be "2.0"`},
		{`{"id":13,"method":"ping"}`, "13", `jsonrpc: must be "2.0"`},
		{`{"jsonrpc":"2.0","id":14,"method":"ping","params":"bar"}`, "14", "params: must be a JSON object"},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "null",
			"this protocol version does not support batches; send one message per line"},
		{`[]`, "null",
			"this protocol version does not support batches; send one message per line"},
		{`5`, "null", "a message must be a JSON object"},
		{`null`, "null", "a message must be a JSON object"},
	} {
		got, passed := sendLine(t, c.line, false)
		if got.Error.Code != -32600 || string(got.ID) != c.id || got.Error.Message != c.why || passed != "" {
			t.Errorf("%s: got %+v with the id %s, passed on %q; want %q for %s", c.line, got.Error, got.ID, passed, c.why, c.id)
		}
	}
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"no"}}`,
	} {
		if got, passed := sendLine(t, line, false); got.Error.Code != 0 || strings.TrimSpace(passed) != line {
			t.Errorf("%s: got %+v, passed on %q", line, got.Error, passed)
		}
	}
	for line, want := range map[string]string{
		`[]`:                  "the batch is empty; send at least one message",
		`[1]`:                 "a message must be a JSON object",
		`[{"jsonrpc":"2.0"}]`: "method: missing; add the name of a method",
		`[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":1,"method":"b"}]`: "id: two requests in the batch " +
			"have the id 1; use different ids",
	} {
		if got, passed := sendLine(t, line, true); got.Error.Code != -32600 || string(got.ID) != "null" ||
			got.Error.Message != want || passed != "" {
			t.Errorf("%s in a session with batches: got %+v with the id %s, passed on %q; want %q", line, got.Error, got.ID,
				passed, want)
		}
	}
}

type errorReply struct {
	ID    json.RawMessage
	Error struct {
		Code    int
		Message string
	}
}

// sendLine passes one line to a line reader in a session that has already begun. It returns the error reply, if the
// line reader sends one, and what the line reader passes to the MCP library.
func sendLine(t *testing.T, line string, allowsBatches bool) (reply errorReply, forwarded string) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // otherwise the end of the input would wait for replies that no library sends
	l := &lineReader{clientInput: bufio.NewReader(strings.NewReader(line + "\n")), clientOutput: &out,
		firstMessageRead: true, allowsBatches: allowsBatches, requestTracker: newRequestTracker(), sessionContext: ctx}
	raw, err := io.ReadAll(l)
	if err == nil && out.Len() > 0 {
		err = json.Unmarshal(out.Bytes(), &reply)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reply, string(raw)
}
