package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// The table ErrorCodes agrees with the documentation.
func TestErrorCodesMatchDocumentation(t *testing.T) {
	want := `invalid -32602 2 no
invalid_request -32600 2 no
parse -32700 2 no
too_large -32700 2 no
unsupported -32601 1 no
not_found -32001 4 no
exists -32002 5 no
wrong_state -32003 5 no
denied -32004 5 no
full -32005 5 later
no_space -32005 5 later
unavailable -32006 3 later
outcome_unknown -32007 1 yes; for an enqueue, with the same idempotency key
internal -32603 1 no
`
	var got strings.Builder
	for _, r := range ErrorCodes {
		fmt.Fprintln(&got, r.Code, r.RPCCode, r.ExitStatus, r.RetryAdvice)
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if r := ErrorCodeInfoOf(errors.New("any")); r.Code != queue.CodeInternal {
		t.Errorf("an error without a code is %s, want internal", r.Code)
	}
}

// The members of a request may be in any order, and unknown members are ignored. A line is rejected if it is not an
// object, if its id or method is invalid, or if it names another protocol than JSON-RPC 2.0.
func TestParseRequestAcceptsAnyMemberOrder(t *testing.T) {
	for _, c := range []struct{ line, id, method, params string }{
		{`{"jsonrpc":"2.0","id":1,"method":"show","params":{"id":"a"}}`, `1`, "show", `{"id":"a"}`},
		{` {"params":{},"method":"st\u0061tus","id":"é","more":[1]} `, `"é"`, "status", `{}`},
		{`{"id":-1.5e3,"method":"x"}`, `-1.5e3`, "x", ``},
	} {
		r, err := parseRequest([]byte(c.line))
		if err != nil || string(r.id) != c.id || r.method != c.method || string(r.params) != c.params {
			t.Errorf("%s: got %s %q %s, %v", c.line, r.id, r.method, r.params, err)
		}
	}
	if r, err := parseRequest([]byte(`{"method":"x"}`)); err != nil || r.id != nil {
		t.Errorf("a notification: id %s, %v", r.id, err)
	}
	for line, want := range map[string]*queue.Error{
		`{"id":null,"method":"x"}`: queue.ErrInvalidRequest, `{"id":[1],"method":"x"}`: queue.ErrInvalidRequest,
		`{"id":1}`:                queue.ErrInvalidRequest,
		`[{"id":1,"method":"x"}]`: queue.ErrInvalidRequest, `{"id":1,"method":7}`: queue.ErrInvalidRequest,
		`{"id":1,"id":2}`:                       queue.ErrInvalidRequest,
		`{"jsonrpc":"1.0","id":1,"method":"x"}`: queue.ErrInvalidRequest,
		`{"id":1,"method":"x","params":"y"}`:    queue.ErrInvalidRequest,
		`7`:                                     queue.ErrInvalidRequest, `{"id":1`: queue.ErrParse,
		"{\"id\":\"\xff\"}":     queue.ErrParse,
		strings.Repeat("[", 99): queue.ErrParse, ``: queue.ErrParse,
	} {
		if _, err := parseRequest([]byte(line)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %s", line, err, want.Code)
		}
	}
}

// An unknown parameter is rejected. The error names a similar parameter, if there is one.
func TestUnknownParametersAreRejected(t *testing.T) {
	for raw, want := range map[string][2]string{
		`{"idz":"a"}`: {"idz", `"id"`}, `{"ID":"a"}`: {"ID", "unknown parameter"}, `{"id":true}`: {"id", "must be a job id"},
		`{"id":7.5}`: {"id", "must be a job id"}, `{"id":"a","id":"b"}`: {"id", "twice"}, `[]`: {"", "object"},
	} {
		var e *queue.Error
		err := decodeParams(json.RawMessage(raw), &JobShowParams{})
		if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != want[0] || !strings.Contains(e.Message, want[1]) {
			t.Errorf("%s: got %v, want invalid %s: …%s…", raw, err, want[0], want[1])
		}
	}
	for raw, want := range map[string][2]string{
		`{"since":"x"}`: {"since", "RFC 3339"}, `{"limit":"x"}`: {"limit", "a whole number"},
		`{"label":{"a":1}}`: {"label", "text"}, `{"state":3}`: {"state", ""},
	} {
		var e *queue.Error
		if err := decodeParams(json.RawMessage(raw), &JobListParams{}); !errors.As(err, &e) || e.Field != want[0] ||
			!strings.Contains(e.Message, want[1]) {
			t.Errorf("%s: got %v, want %s: …%s…", raw, err, want[0], want[1])
		}
	}
	var wait JobWaitParams
	if err := decodeParams(json.RawMessage(`{"id":60,"ids":[1,"b"],"timeout":"2s"}`), &wait); err != nil ||
		wait.ID != "60" || strings.Join(wait.IDs, " ") != "1 b" {
		t.Errorf("integers as ids: %+v, %v", wait, err)
	}
	for _, line := range []string{`{"jsonrpc":"1.0","id":7}`, `{"method":5,"id":7}`} {
		if r, err := parseRequest([]byte(line)); err == nil || string(r.id) != "7" {
			t.Errorf("%s: id %s, %v", line, r.id, err)
		}
	}
	var batch EnqueueBatchParams
	err := decodeParams(json.RawMessage(`{"jobs":[{"command":"a"},{"comand":"b"}],"commit":true}`), &batch)
	var e *queue.Error
	if !errors.As(err, &e) || e.BatchIndex != 2 || e.Field != "comand" {
		t.Errorf("got %v, want entry 2: comand", err)
	}
	for more, want := range map[int]string{0: "", 1: "jobs"} {
		jobs := `{"commit":true,"jobs":[{"argv":["a"],"env":{"A":"","B":""}},{"argv":[""` +
			strings.Repeat(`,""`, MaxArgEnvCount-4+more) + `]}]}`
		err := decodeParams(json.RawMessage(jobs), &EnqueueBatchParams{})
		if want == "" && err != nil || want != "" &&
			(!errors.As(err, &e) || e.Field != want || !strings.Contains(e.Message, "the maximum is 524288")) {
			t.Errorf("%d arguments and variables: got %v", MaxArgEnvCount+more, err)
		}
	}
	if err := decodeParams(nil, &JobListParams{}); err != nil {
		t.Errorf("no parameters: %v", err)
	}
}

// A line may have MaxLineBytes bytes and not a byte more. The line may end with a newline or with the
// connection.
func TestRequestLineLengthIsBounded(t *testing.T) {
	for _, c := range []struct {
		n    int
		end  string
		good bool
	}{{MaxLineBytes, "\n", true}, {MaxLineBytes + 1, "\n", false}, {MaxLineBytes, "", true}, {MaxLineBytes + 1, "", false},
		{2 * MaxLineBytes, "", false}} {
		in := bufio.NewReader(strings.NewReader(strings.Repeat("x", c.n) + c.end))
		line, err := readLine(in)
		if c.good && (err != nil || len(line) != c.n) || !c.good && !errors.Is(err, queue.ErrTooLarge) {
			t.Errorf("%d bytes and %q: got %d bytes, %v", c.n, c.end, len(line), err)
		}
	}
}

// If an answer does not fit into a line, the client gets the error too_large.
func TestTooLongAnswerCausesTooLargeError(t *testing.T) {
	line := encodeAnswerLine(json.RawMessage("1"), strings.Repeat("x", MaxLineBytes), nil)
	if len(line) > 1000 || !bytes.Contains(line, []byte(`"too_large"`)) {
		t.Errorf("got %.200s", line)
	}
}

// parseRequest never panics, and it returns the id of a request unchanged.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{`{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"command":"x"}}`,
		`{"id":"a","method":"list","params":{"state":"dead"}}`,
		`{"id":1,"method":"enqueue.batch","params":{"jobs":[{}],"commit":true}}`, `[1]`, `{"id":1e5}`,
		`{"id":1,"method":"wait","params":{"ids":["a"],"timeout":"1s"}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRequest(line)
		if err != nil {
			var e *queue.Error
			if !errors.As(err, &e) {
				t.Fatalf("%q: got an error without a code: %v", line, err)
			}
			return
		}
		if !json.Valid(encodeAnswerLine(r.id, nil, nil)) {
			t.Fatalf("%q: the answer is not JSON", line)
		}
		for _, p := range []any{&EnqueueParams{}, &EnqueueBatchParams{}, &JobShowParams{}, &JobListParams{}, &JobWaitParams{},
			&JobOutputParams{}, &JobSelection{}, &DeadJobRetryParams{},
			&WorkerStopParams{}, &ConfigSetParams{}} {
			err := decodeParams(r.params, p)
			var e *queue.Error
			if err != nil && (!errors.As(err, &e) || ErrorCodeInfoOf(err).Code != queue.CodeInvalid) {
				t.Fatalf("%q: %T: got %v, want invalid", line, p, err)
			}
		}
	})
}

// A notification that appendNotification has encoded decodes to the same value as one that encoding/json has encoded.
func TestEncodedNotificationsDecodeUnchanged(t *testing.T) {
	id := json.RawMessage(`"7"`)
	for _, v := range []any{
		OutputPiece{}, OutputPiece{JobID: "a/b", Attempt: 2, Stream: "stdout", PrintedAt: 1, Text: "x"},
		OutputPiece{JobID: "a", Stream: "stderr", Text: "\x00\r\n\t\"\\/<&>\u2028\u00e4\U0001f600", DroppedBytes: 3},
		OutputPiece{NonUTF8Bytes: []byte{0xff}}, OutputPiece{AttemptEnded: true, Attempt: 1},
		DoctorProgress{CheckedBytes: 1, TotalBytes: 2}, nil,
	} {
		got, err := appendNotification([]byte("before\n"), "logs", id, v)
		if err != nil {
			t.Fatal(err)
		}
		line, found := bytes.CutPrefix(got, []byte("before\n"))
		var have, want any
		raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": "logs",
			"params": map[string]any{"id": id, "value": v}})
		if err != nil || json.Unmarshal(raw, &want) != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &have); !found || err != nil || !reflect.DeepEqual(have, want) ||
			bytes.Count(line, []byte("\n")) != 1 {
			t.Errorf("%+v is encoded as %s, %v", v, got, err)
		}
	}
}
