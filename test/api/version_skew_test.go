//go:build linux || windows

package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// fakeOtherVersionService simulates a service of another version. It contains, for each method of that service, the
// JSON text of the members that follow the id in the reply.
type fakeOtherVersionService map[string]string

// serve listens on the queue's socket and replies as the simulated service.
func (o fakeOtherVersionService) serve(t *testing.T, q *testrig.Harness) {
	t.Helper()
	l, err := testrig.ListenAsService(q.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server.Go(func() { // this goroutine ends when the client closes the connection
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadBytes('\n')
					if err != nil {
						return
					}
					var request struct {
						ID     int64  `json:"id"`
						Method string `json:"method"`
					}
					if err := json.Unmarshal(line, &request); err != nil {
						t.Errorf("the client sent %s: %v", line, err)
						return
					}
					members, knows := o[request.Method]
					if !knows {
						members = `"error":{"code":-32601,"message":"there is no method \"` + request.Method +
							`\"","data":{"code":"unsupported","since":"2.0"}}`
					}
					fmt.Fprintf(c, "%s\n", strings.ReplaceAll(`{"jsonrpc":"2.0","trace":{"a":[1]},"id":ID,`+members+`}`, "ID",
						fmt.Sprint(request.ID)))
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		server.Wait()
	})
}

// olderHelloReply is the reply of an older service to the method "hello".
const olderHelloReply = `"result":{"version":"0.0.9","protocol":{"min":1,"max":1},"features":["hello","enqueue","show","list"],"build":"x"}`

// The reply to hello contains the protocol versions and the methods of the service, and the service has all
// these methods. A client may send its own version.
func TestHelloNamesProtocolVersions(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	var h struct {
		Version  string
		Protocol struct{ Min, Max int }
		Features []string
	}
	w.MustCall("hello", testrig.JSONFields{"version": "9.9.9"}, &h)
	if "queuectl "+h.Version != q.MustRunCLI("version") || h.Protocol.Min > 1 || h.Protocol.Max < 1 {
		t.Errorf("hello returned %+v; the program's version is %s", h, q.MustRunCLI("version"))
	}
	for _, method := range []string{"hello", "enqueue", "enqueue.batch", "status", "events"} {
		if !slices.Contains(h.Features, method) {
			t.Errorf("%s is missing from the features: %v", method, h.Features)
		}
	}
	for _, method := range h.Features {
		if method == "service.stop" || method == "drain" || method == "clear" {
			continue
		}
		if a := w.Call(method, testrig.JSONFields{"of_a_later_version": 1}); a.ErrorCode() != "invalid" ||
			!strings.Contains(a.Error.Message+a.Error.Data.Field, "of_a_later_version") {
			t.Errorf("%s with an unknown parameter: %+v", method, a)
		}
	}
	if a := w.Call("later.method", nil); a.ErrorCode() != "unsupported" || a.Error.Code != -32601 ||
		!strings.Contains(a.Error.Message, "later.method") {
		t.Errorf("an unknown method: %+v", a)
	}
	w.SendRawLine(`{"jsonrpc":"2.0","deadline":"5s","trace":null,"id":77,"method":"hello","params":{}}`)
	if a, err := w.ReadMessage(); err != nil || a.Error != nil || string(a.ID) != "77" {
		t.Errorf("unknown members of a request object: %+v, %v", a, err)
	}
}

// With a service of another version, each command still does what that service supports. If the service lacks a
// method, the error names the method and both versions. The client ignores unknown members of a reply.
func TestCommandsWorkWithOtherServiceVersion(t *testing.T) {
	t.Parallel()
	const jobMembers = `"id":"a","seq":1,"command":"true","state":"paused","reason":null,"queue":"q","priority":5,"labels":{},"colour":"red","nested":{"a":[{"b":null}]}`
	refusal := func(code int, word, field, text string) string {
		return fmt.Sprintf(`"error":{"code":%d,"message":%q,"data":{"code":%q,"field":%q,"hint":1}}`, code, text, word, field)
	}
	for _, c := range []struct {
		name    string
		service fakeOtherVersionService
		args    []string
		code    int
		out     string   // text that stdout contains
		errs    []string // texts that stderr contains
	}{
		{"no such verb", fakeOtherVersionService{"hello": olderHelloReply}, []string{"pause", "a"}, 1, "",
			[]string{`no method "pause"`, "0.0.9", "restart"}},
		{"no such method", fakeOtherVersionService{"hello": olderHelloReply}, []string{"drain"}, 1, "",
			[]string{`no method "drain"`, "0.0.9", "restart"}},
		{"no such stream", fakeOtherVersionService{"hello": olderHelloReply}, []string{"events"}, 1, "",
			[]string{`no method "events"`, "0.0.9"}},
		{"not even hello", fakeOtherVersionService{}, []string{"status"}, 1, "", []string{`no method "screen"`}},
		{"run, with its own code", fakeOtherVersionService{"hello": olderHelloReply}, []string{"run", "--", "true"}, 125, "",
			[]string{`no method "enqueue"`, "0.0.9"}},
		{"no such parameter", fakeOtherVersionService{"hello": olderHelloReply,
			"cleanup": refusal(-32602, "invalid", "keep", "keep: unknown parameter of this method")},
			[]string{"cleanup", "--keep", "3"}, 2, "", []string{"keep", "unknown parameter", "0.0.9"}},
		{"no such field", fakeOtherVersionService{"hello": olderHelloReply,
			"enqueue": refusal(-32602, "invalid", "idle_timeout", "unknown job field")},
			[]string{"enqueue", "--idle-timeout", "3s", "true"}, 2, "",
			[]string{"queuectl: --idle-timeout: unknown job field", "0.0.9"}},
		{"a code of a later version", fakeOtherVersionService{"enqueue": refusal(-32099, "quota", "",
			"you have used your share; ask for more")},
			[]string{"enqueue", "true"}, 1, "", []string{"you have used your share"}},
		{"more members: enqueue",
			fakeOtherVersionService{"enqueue": `"result":{"id":"a","seq":1,"duplicate":false,"position":7}`},
			[]string{"enqueue", "true"}, 0, "a\n", nil},
		{"more members: show", fakeOtherVersionService{"show": `"result":{` + jobMembers +
			`,"output":"x","stderr":"","spec":{"command":"true","colour":"red","shade":{"a":1}},"history":[{"attempt":1,"cpu":{"user":1}}]}`},
			[]string{"show", "a"}, 0, "paused", nil},
		{"more members: show --json", fakeOtherVersionService{"show": `"result":{` + jobMembers +
			`,"spec":{"command":"true","colour":"red"},"history":[]}`},
			[]string{"show", "a", "--json"}, 0, `"colour":"red"`, nil},
		{"more members: list", fakeOtherVersionService{"list": `"result":{"jobs":[{` + jobMembers +
			`}],"next":null,"total":1}`},
			[]string{"list", "--queue", "q"}, 0, "paused", nil},
		{"more members: status",
			fakeOtherVersionService{"screen": `"result":{"status":{"jobs":{"pending":1,"paused":2},"workers":{"total":1,"busy":0,"idle":1,"lost":0},"health":"ok","shards":[1]},"total":1}`},
			[]string{"status"}, 0, "1", nil},
		{"more members: a stream", fakeOtherVersionService{"events": `"more":1,"result":{"last":5,"gap":false}}` + "\n" +
			`{"method":"events","params":{"id":99,"value":{}}`}, []string{"events"}, 0, "", nil},
		{"more members: cancel", fakeOtherVersionService{"cancel": `"result":{"done":["a"],"refused":[],"skipped":[]}`},
			[]string{"cancel", "a"}, 0, "", nil},
	} {
		q := testrig.NewHarness(t, "")
		c.service.serve(t, q)
		r := q.RunCLI(c.args...)
		if r.ExitCode != c.code || !strings.Contains(r.Stdout, c.out) {
			t.Errorf("%s: %+v; want code %d and %q", c.name, r, c.code, c.out)
		}
		for _, text := range c.errs {
			if !strings.Contains(r.Stderr, text) {
				t.Errorf("%s: stderr %q, want %q in it", c.name, r.Stderr, text)
			}
		}
		if len(c.errs) == 0 && r.Stderr != "" {
			t.Errorf("%s: stderr %q", c.name, r.Stderr)
		}
	}
}

// An error from a service of the same version does not mention versions.
func TestSameVersionErrorsNameNoVersion(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	r := q.RunCLI("config", "set", "priority", "much")
	if r.ExitCode != 2 || strings.Contains(r.Stderr, "restart") {
		t.Errorf("config set with an invalid value: %+v", r)
	}
}
