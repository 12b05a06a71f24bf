//go:build linux || windows

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// checkConnectionClosed checks that the service closes the connection within the timeout and sends nothing more.
func checkConnectionClosed(conn *testrig.ServiceConn, description string, timeout time.Duration) {
	conn.Helper()
	conn.SetReadDeadline(time.Now().Add(timeout))
	if n, err := io.Copy(io.Discard, conn.Reader); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		conn.Errorf("%s: the connection is not closed: %d bytes, %v", description, n, err)
	}
}

// nestedArrays returns the JSON text of n nested arrays.
func nestedArrays(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// invalidLines lists invalid lines and the error that the service returns for each.
var invalidLines = []struct {
	name, line string
	code       string
	number     int // JSON-RPC error code
	field      string
	text       string // part of the error message
	closed     bool   // whether the service closes the connection
}{
	{"no JSON", `{"jsonrpc`, "parse", -32700, "", "byte", true},
	{"binary", "\x00\xff\x7fELF\x80", "parse", -32700, "", "", true},
	{"not UTF-8", "{\"id\":1,\"method\":\"\xff\"}", "parse", -32700, "", "UTF-8", true},
	{"too deep", testrig.RequestJSON("enqueue", `{"command":"x","env":`+nestedArrays(31)+`}`), "parse", -32700, "", "32",
		true},
	{"9 MiB", testrig.RequestJSON("enqueue", `{"command":"`+strings.Repeat("x", 9<<20)+`"}`), "too_large", -32700, "",
		"8388608",
		true},
	{"no method", `{"jsonrpc":"2.0","id":7}`, "invalid_request", -32600, "method", "required", false},
	{"null id", `{"jsonrpc":"2.0","id":null,"method":"status"}`, "invalid_request", -32600, "id", "", false},
	{"a batch of JSON-RPC", `[` + testrig.RequestJSON("status", "{}") + `]`, "invalid_request", -32600, "",
		"one request per line",
		false},
	{"a member twice", `{"id":7,"id":8,"method":"status"}`, "invalid_request", -32600, "id", "twice", false},
	{"a param twice", testrig.RequestJSON("enqueue", `{"command":"a","command":"b"}`), "invalid", -32602, "command",
		"twice",
		false},
	{"unknown method", testrig.RequestJSON("statuz", "{}"), "unsupported", -32601, "", `"status"`, false},
	{"method of a later version", testrig.RequestJSON("shard.list", "{}"), "unsupported", -32601, "", "", false},
	{"unknown param", testrig.RequestJSON("list", `{"sate":"dead"}`), "invalid", -32602, "sate", `"state"`, false},
	{"param of a method without", testrig.RequestJSON("status", `{"x":1}`), "invalid", -32602, "x", "", false},
	{"params not an object", testrig.RequestJSON("status", `[1]`), "invalid", -32602, "", "object", false},
	{"wrong version", `{"jsonrpc":"1.0","id":7,"method":"status"}`, "invalid_request", -32600, "jsonrpc", "", false},
	{"missing command", testrig.RequestJSON("enqueue", `{}`), "invalid", -32602, "command", "", false},
	{"unknown field", testrig.RequestJSON("enqueue", `{"comand":"x"}`), "invalid", -32602, "comand", `"command"`, false},
	{"field of a later version", testrig.RequestJSON("enqueue", `{"command":"x","on":"k"}`), "invalid", -32602, "on", "",
		false},
	{"negative timeout", testrig.RequestJSON("enqueue", `{"command":"x","timeout":-1}`), "invalid", -32602, "timeout",
		"negative",
		false},
	{"negative milliseconds", testrig.RequestJSON("enqueue", `{"command":"x","timeout_ms":-1}`), "invalid", -32602,
		"timeout_ms",
		"", false},
	{"retries differ", testrig.RequestJSON("enqueue", `{"command":"x","max_retries":1,"max_attempts":1}`), "invalid",
		-32602,
		"max_attempts", "", false},
	{"env_pass on the wire", testrig.RequestJSON("enqueue", `{"command":"x","env_pass":["A"]}`), "invalid", -32602,
		"env_pass", "",
		false},
	{"bad id", testrig.RequestJSON("enqueue", `{"command":"x","id":"-a"}`), "invalid", -32602, "id", "", false},
	{"priority", testrig.RequestJSON("enqueue", `{"command":"x","priority":1000001}`), "invalid", -32602, "priority", "",
		false},
	{"NUL", testrig.RequestJSON("enqueue", `{"command":"a\u0000b"}`), "invalid", -32602, "command", "NUL", false},
	{"long command", testrig.RequestJSON("enqueue", `{"command":"`+strings.Repeat("x", 131072)+`"}`), "invalid", -32602,
		"command",
		"131071", false},
	{"duplicate id", testrig.RequestJSON("enqueue", `{"command":"x","id":"taken"}`), "exists", -32002, "", "taken", false},
	{"unknown job", testrig.RequestJSON("show", `{"id":"none"}`), "not_found", -32001, "", "none", false},
	{"unknown state", testrig.RequestJSON("list", `{"state":"ded"}`), "invalid", -32602, "state", "dead", false},
	{"unknown key", testrig.RequestJSON("config.get", `{"key":"max_retrys"}`), "invalid", -32602, "", "max_retries",
		false},
	{"bad cursor", testrig.RequestJSON("list", `{"cursor":"x"}`), "invalid", -32602, "cursor", "", false},
	{"long page", testrig.RequestJSON("list", `{"limit":1001}`), "invalid", -32602, "limit", "1000", false},
	{"long key", testrig.RequestJSON("enqueue", `{"command":"x","key":"`+strings.Repeat("k", 129)+`"}`), "invalid",
		-32602, "key",
		"128", false},
	{"bad job of a batch", testrig.RequestJSON("enqueue.batch", `{"commit":true,"jobs":[{"command":"a"},{"command":""}]}`),
		"invalid", -32602, "command", "", false},
	{"duplicate id of a batch", testrig.RequestJSON("enqueue.batch",
		`{"commit":true,"jobs":[{"command":"a"},{"id":"taken","command":"b"}]}`), "exists", -32002, "", "taken", false},
}

// An invalid line gets an error with the right code, number and field, and stores no job. It does not
// affect other connections.
func TestInvalidLinesGetErrors(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	fine := q.DialService()
	fine.Enqueue(testrig.JSONFields{"id": "taken", "command": "true"})
	for _, c := range invalidLines {
		w := q.DialService()
		// Write in a goroutine, because the service may close the connection before it has read the whole line.
		go w.Write([]byte(c.line + "\n"))
		a, err := w.ReadMessage()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if a.ErrorCode() != c.code || a.Error.Code != c.number || c.field != "" && a.Error.Data.Field != c.field ||
			!strings.Contains(a.Error.Message, c.text) {
			t.Errorf("%s: got %+v, want %s %d, field %q, text %q", c.name, a.Error, c.code, c.number, c.field, c.text)
		}
		if c.closed {
			checkConnectionClosed(w, c.name, 5*time.Second)
		} else if a := w.Call("hello", nil); a.Error != nil {
			t.Errorf("after %s: %+v", c.name, a.Error)
		}
	}
	if n := fine.JobCountsByState(); n["pending"] != 1 {
		t.Errorf("invalid lines stored jobs: %v", n)
	}
	if a := fine.Call("enqueue", testrig.JSONFields{"command": "x", "env": json.RawMessage(`{"A":"1"}`)}); a.Error != nil {
		t.Errorf("%+v", a.Error)
	}
}

// The service ignores unknown members of a request. If the id of a request is a string, the reply contains it
// unchanged.
func TestServiceIgnoresUnknownRequestMembers(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	w.SendRawLine(`{"id":"a\"b","method":"hello","trace":{"x":[1]}}`)
	if a, err := w.ReadMessage(); err != nil || string(a.ID) != `"a\"b"` || a.Error != nil {
		t.Errorf("hello with a string as id: %+v, %v", a, err)
	}
}

// If 500 requests arrive in one write, the service replies to each one. If the client closes its sending side,
// the service first replies to all requests and then closes the connection.
func TestPipelinedRequestsAllGetReplies(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	var b bytes.Buffer
	for i := range 500 {
		fmt.Fprintf(&b, `{"jsonrpc":"2.0","id":%d,"method":"enqueue","params":{"id":"j%d","command":"true"}}`+"\n", i, i)
	}
	go func() { // this goroutine ends when the connection is closed
		w.Write(b.Bytes())
		testrig.HalfClose(w.Conn)
	}()
	seen := map[string]bool{}
	for range 500 {
		a, err := w.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ ID string }
		json.Unmarshal(a.Result, &got)
		if a.Error != nil || got.ID != "j"+string(a.ID) || seen[got.ID] {
			t.Errorf("reply %s is %s, %+v", a.ID, a.Result, a.Error)
		}
		seen[got.ID] = true
	}
	checkConnectionClosed(w, "half-closed", 5*time.Second)
	if n := q.DialService().JobCountsByState()["pending"]; n != 500 {
		t.Errorf("%d jobs are stored", n)
	}
}

// A repeated request with the same idempotency key gets the same reply, also after a restart of the service. A
// request for a different job with that key is rejected.
func TestIdempotencyKeyRepeatsReply(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	type receipt struct {
		ID        string
		Seq       int64
		Duplicate bool
	}
	enqueue := func(w *testrig.ServiceConn, command string) (r receipt, code string) {
		a := w.Call("enqueue", testrig.JSONFields{"command": command, "key": "k1"})
		if a.Error == nil {
			json.Unmarshal(a.Result, &r)
		}
		return r, a.ErrorCode()
	}
	first, _ := enqueue(q.DialService(), "true")
	for range 2 {
		w := q.DialService()
		repeated, code := enqueue(w, "true")
		if code != "" || !repeated.Duplicate || first.Duplicate || repeated.ID != first.ID || repeated.Seq != first.Seq {
			t.Errorf("first reply %+v, reply to the repeated request %+v %s", first, repeated, code)
		}
		if _, code := enqueue(w, "false"); code != "exists" {
			t.Errorf("a request with the same key and other params: %q", code)
		}
		if n := w.JobCountsByState()["pending"]; n != 1 {
			t.Errorf("%d jobs are stored after repeated requests", n)
		}
		q.KillService()
		q.StartService("--workers", "0")
	}
	batch := testrig.JSONFields{"jobs": []testrig.JSONFields{{"command": "a"}, {"command": "b"}}, "commit": true,
		"key": "k2"}
	w := q.DialService()
	var one, two struct {
		IDs       []string
		Duplicate bool
	}
	w.MustCall("enqueue.batch", batch, &one)
	w.MustCall("enqueue.batch", batch, &two)
	if len(one.IDs) != 2 || fmt.Sprint(one.IDs) != fmt.Sprint(two.IDs) || one.Duplicate || !two.Duplicate {
		t.Errorf("repeated batches: %+v, %+v", one, two)
	}
}

// 1,000 idle connections do not affect other clients, not even one that waits for the reply to a wait request.
// At the limit of connections, the service closes those that have been idle longest.
func TestIdleConnectionsDelayNoOtherClient(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	waiter := q.DialService()
	id := waiter.Enqueue(testrig.JSONFields{"command": "while [ ! -e " + q.Path("go") + " ]; do sleep 0.05; done"})
	answered := func(id string) {
		t.Helper()
		for {
			a, err := waiter.ReadMessage()
			if err != nil {
				t.Fatalf("the connection with the wait request: %v", err)
			}
			if string(a.ID) == id {
				return
			}
		}
	}
	waiter.SendRawLine(`{"jsonrpc":"2.0","id":99,"method":"wait","params":{"ids":["` + id + `"]}}`)
	waiter.SendRawLine(`{"jsonrpc":"2.0","id":98,"method":"whoami"}`)
	answered("98") // the reply shows that the service has begun the wait request
	for range 1000 {
		c, err := testrig.DialService(q.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	started := time.Now()
	w := q.DialService()
	for range 50 {
		w.Enqueue(testrig.JSONFields{"command": "true"})
	}
	q.MustRunCLI("status")
	if elapsed := time.Since(started); elapsed > 5*testrig.TimeoutFactor*time.Second {
		t.Errorf("50 enqueues took %v", elapsed)
	}
	q.WriteFile("go", "")
	answered("99")
}

// The service closes a connection whose first line is not complete within 10 s, even if bytes keep
// arriving.
func TestSlowFirstLineClosesConnection(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	started := time.Now()
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, w.Conn)
		close(ended)
	}()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case <-tick.C:
			io.WriteString(w, " ")
		}
		if time.Since(started) > 15*time.Second {
			t.Fatal("the connection is still open after 15 s")
		}
	}
	if elapsed := time.Since(started); elapsed < 9*time.Second {
		t.Errorf("the connection was closed after %v, want 10 s", elapsed)
	}
}

// A client that reads neither its stream nor its replies does not delay other clients.
func TestUnreadStreamDelaysNoOtherClient(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "timeout 1 yes; true", "output_limit": "8MiB"})
	deaf := q.DialService()
	deaf.SendRawLine(`{"jsonrpc":"2.0","id":1,"method":"logs","params":{"id":"` + id + `","follow":true}}`)
	mute := q.DialService()
	go func() { // this goroutine blocks until the service closes the connection
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(mute, `{"jsonrpc":"2.0","id":%d,"method":"hello"}`+"\n", i); err != nil {
				return
			}
		}
	}()
	var worst time.Duration
	for range 100 {
		started := time.Now()
		w.Enqueue(testrig.JSONFields{"command": "true"})
		worst = max(worst, time.Since(started))
	}
	if j := w.WaitJobEnded(id); j.State != "completed" || worst > 2*testrig.TimeoutFactor*time.Second {
		t.Errorf("job is %s; worst enqueue %v", j.State, worst)
	}
	q.WaitUntil("all have completed", 20*time.Second, func() bool { return w.JobCountsByState()["completed"] == 101 })
}

// The pages of a list contain each job exactly once, newest first.
func TestListPagesContainEachJobOnce(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	var specs []testrig.JSONFields
	for i := range 2500 {
		specs = append(specs, testrig.JSONFields{"command": "true", "labels": testrig.JSONFields{"half": fmt.Sprint(i % 2)}})
	}
	ids := w.EnqueueBatch(specs)
	for _, c := range []struct {
		params testrig.JSONFields
		want   int
	}{{testrig.JSONFields{"limit": 1000}, 2500}, {testrig.JSONFields{"limit": 700,
		"label": testrig.JSONFields{"half": "1"}}, 1250},
		{testrig.JSONFields{"limit": 1000, "state": "waiting"}, 2500},
		{testrig.JSONFields{"state": []string{"dead", "done"}}, 0}} {
		var got []string
		for {
			var page struct {
				Jobs []struct{ ID string }
				Next *string
			}
			w.MustCall("list", c.params, &page)
			for _, j := range page.Jobs {
				got = append(got, j.ID)
			}
			if page.Next == nil {
				break
			}
			c.params["cursor"] = *page.Next
		}
		if len(got) != c.want || c.want == 2500 && (got[0] != ids[2499] || got[2499] != ids[0]) {
			t.Errorf("%v: %d jobs, want %d", c.params, len(got), c.want)
		}
	}
}

// A batch of jobs can be sent in several requests. Its jobs are visible, claimable and counted only after the
// commit, but their ids are reserved from the first request on.
func TestBatchJobsAppearOnlyAfterCommit(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	frame := func(batch string, from, to int, extra testrig.JSONFields) testrig.ServiceMessage {
		var jobs []testrig.JSONFields
		for i := from; i < to; i++ {
			jobs = append(jobs, testrig.JSONFields{"id": fmt.Sprintf("j%d", i), "command": "true"})
		}
		p := testrig.JSONFields{"batch": batch, "jobs": jobs}
		for k, v := range extra {
			p[k] = v
		}
		return w.Call("enqueue.batch", p)
	}
	const n = 1000 / (testrig.JobCountDivisor * testrig.JobCountDivisor) // number of jobs in one request
	for i := range 3 {
		if a := frame("b", n*i, n*i+n, nil); a.Error != nil {
			t.Fatalf("request %d: %+v", i, a.Error)
		}
	}
	if n := w.JobCountsByState()["pending"]; n != 0 {
		t.Errorf("%d jobs are counted before the commit", n)
	}
	for name, c := range map[string]struct {
		a    testrig.ServiceMessage
		code string
	}{
		"a staged id": {w.Call("enqueue", testrig.JSONFields{"id": fmt.Sprint("j", n+n/2), "command": "true"}),
			"exists"},
		"the same part again":   {frame("b", 0, 1, nil), "exists"},
		"no name and no commit": {frame("", 5000, 5001, nil), "invalid"},
		"too many in one call":  {frame("b", 5000, 6001, nil), "invalid"},
		"a key before the end":  {frame("b", 5000, 5001, testrig.JSONFields{"key": "k"}), "invalid"},
		"nothing":               {frame("b", 0, 0, nil), "invalid"},
		"an abort with jobs":    {frame("b", 5000, 5001, testrig.JSONFields{"abort": true}), "invalid"},
		"a commit of no batch":  {frame("none", 0, 0, testrig.JSONFields{"commit": true}), "invalid"},
		"an unknown field": {w.Call("enqueue.batch", testrig.JSONFields{"batch": "b",
			"jobs": []testrig.JSONFields{{"comand": "x"}}}),
			"invalid"},
		"show of a staged job":   {w.Call("show", testrig.JSONFields{"id": "j0"}), "not_found"},
		"cancel of a staged job": {w.Call("show", testrig.JSONFields{"id": fmt.Sprint("j", 3*n-1)}), "not_found"},
	} {
		if c.a.Error == nil || c.a.Error.Data.Code != c.code {
			t.Errorf("%s: %+v, want %s", name, c.a, c.code)
		}
	}
	var got struct {
		IDs       []string
		Duplicate bool
	}
	for _, duplicate := range []bool{false, true} {
		a := frame("b", 3*n, 3*n+10, testrig.JSONFields{"commit": true, "key": "k"})
		if a.Error != nil || json.Unmarshal(a.Result, &got) != nil || len(got.IDs) != 10 || got.Duplicate != duplicate {
			t.Errorf("commit: %+v, %s", a.Error, a.Result)
		}
	}
	w.WaitUntil("all have run", 60*time.Second, func() bool { return w.JobCountsByState()["completed"] == 3*n+10 })

	frame("c", 4000, 4001, nil)
	w.MustCall("enqueue.batch", testrig.JSONFields{"batch": "c", "abort": true}, nil)
	w.Enqueue(testrig.JSONFields{"id": "j4000", "command": "true"})

	frame("d", 5000, 5001, nil)
	q.KillService()
	q.StartService("--workers", "2")
	w = q.DialService()
	if a := frame("d", 5001, 5002, testrig.JSONFields{"commit": true}); a.Error == nil ||
		a.Error.Data.Code != "wrong_state" ||
		!strings.Contains(a.Error.Message, "another name") {
		t.Errorf("commit of a batch whose first part was removed: %+v", a)
	}
	if a := frame("e", 5000, 5002, testrig.JSONFields{"commit": true}); a.Error != nil {
		t.Errorf("enqueue with the ids of the removed batch: %+v", a.Error)
	}
}
