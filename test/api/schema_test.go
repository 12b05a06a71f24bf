//go:build linux || windows

package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/queuectl/queuectl/internal/testrig"
)

// methodSchemas holds the compiled schemas of a method. notification is the schema of the values that a method
// streams before its result.
type methodSchemas struct{ params, notification, result *jsonschema.Schema }

// schemas returns the schemas that `queuectl schema` prints, by method.
func schemas(q *testrig.Queue) map[string]methodSchemas {
	q.Helper()
	var methods []struct {
		Method         string
		Params, Result json.RawMessage
		Notification   json.RawMessage `json:"tells"`
	}
	if err := json.Unmarshal([]byte(q.MustCLI("schema", "--json")), &methods); err != nil {
		q.Fatal(err)
	}
	compile := func(name string, raw json.RawMessage) *jsonschema.Schema {
		if raw == nil {
			return nil
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			q.Fatalf("%s: %v", name, err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(name, doc); err != nil {
			q.Fatalf("%s: %v", name, err)
		}
		s, err := c.Compile(name)
		if err != nil {
			q.Fatalf("%s: %v", name, err)
		}
		return s
	}
	all := map[string]methodSchemas{}
	for _, m := range methods {
		all[m.Method] = methodSchemas{compile("params-"+m.Method, m.Params),
			compile("notification-"+m.Method, m.Notification), compile("result-"+m.Method, m.Result)}
	}
	return all
}

// validate checks that a JSON text conforms to a schema.
func validate(s *jsonschema.Schema, raw []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// `queuectl schema` prints valid JSON Schemas of the protocol. Real requests and replies conform to them.
// Requests that the service rejects do not.
func TestSchemasDescribeTheWire(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	all := schemas(q)
	w := q.Dial()
	called := map[string]bool{}
	type request struct {
		method string
		params testrig.Fields
	}
	requests := []request{
		{"hello", testrig.Fields{}}, {"whoami", testrig.Fields{}},
		{"enqueue", testrig.Fields{"command": "echo hi; echo warn >&2; exit 3", "id": "a", "max_retries": 0,
			"labels": testrig.Fields{"k": "v"}, "timeout": "90s", "env": testrig.Fields{"A": "b"}, "key": "k1"}},
		{"enqueue.batch", testrig.Fields{"commit": true,
			"jobs": []testrig.Fields{{"argv": []string{testrig.ToolPath("true")}, "id": 12,
				"no_retry_codes": []int{4}}}}},
		{"wait", testrig.Fields{"ids": []any{"a", 12}}},
		{"show", testrig.Fields{"id": "a"}},
		{"list", testrig.Fields{"state": []string{"dead", "done"}, "limit": 5}},
		{"status", testrig.Fields{}}, {"screen", testrig.Fields{"rows": 5}},
		{"logs", testrig.Fields{"id": "a", "n": 3}},
		{"dlq.list", testrig.Fields{}},
		{"dlq.retry", testrig.Fields{"ids": "a", "timeout": 5}},
		{"wait", testrig.Fields{"id": "a", "timeout": 20}},
		{"retry", testrig.Fields{"id": "none"}},
		{"cancel", testrig.Fields{"id_glob": "z*", "dry_run": true}},
		{"hold", testrig.Fields{"older_than": "1h"}}, {"release", testrig.Fields{"label": testrig.Fields{"k": "z"}}},
		{"requeue", testrig.Fields{"id": "a"}},
		{"pause", testrig.Fields{"id": "a"}}, {"pause", testrig.Fields{"all": true}}, {"status", testrig.Fields{}},
		{"resume", testrig.Fields{"all": true}},
		{"resume", testrig.Fields{"label": testrig.Fields{"k": "z"}}},
		{"kill", testrig.Fields{"id": "a", "signal": "HUP"}}, {"edit",
			testrig.Fields{"id": "a", "set": testrig.Fields{"priority": 1}}},
		{"queue.set", testrig.Fields{"name": "gpu", "weight": 3, "concurrency": 1, "max_pending": 9,
			"default": testrig.Fields{"priority": 7, "timeout": nil}}}, {"queue.list", testrig.Fields{}},
		{"queue.pause", testrig.Fields{"name": "gpu", "reason": "x", "for": "1h"}},
		{"queue.resume", testrig.Fields{"all": true}},
		{"queue.rm", testrig.Fields{"name": "gpu"}},
		{"tree", testrig.Fields{"id": "a"}}, {"why", testrig.Fields{"id": "a"}}, {"simulate", testrig.Fields{"next": 5}},
		{"stats", testrig.Fields{}}, {"stats", testrig.Fields{"queue": "default", "since": "2026-01-01T00:00:00Z",
			"by":      "day",
			"buckets": true}},
		{"worker.list", testrig.Fields{}}, {"worker.start", testrig.Fields{"count": 1}},
		{"worker.scale", testrig.Fields{"count": 1}},
		{"worker.stop", testrig.Fields{"count": 1, "timeout": "1s"}},
		{"schedule.add", testrig.Fields{"name": "n", "cron": "0 3 * * *", "tz": "UTC", "jitter": "10m", "backoff_jitter": 0.5,
			"command": "true"}}, {"schedule.list", testrig.Fields{}}, {"gate.set", testrig.Fields{"key": "@db", "lock": 2}},
		{"gate.list", testrig.Fields{}}, {"node.list", testrig.Fields{}},
		{"config.set", testrig.Fields{"key": "hooks.on_dead", "value": "true"}},
		{"hook.test", testrig.Fields{"name": "on_dead"}}, {"schedule.run", testrig.Fields{"name": "n"}},
		{"schedule.show", testrig.Fields{"name": "n"}},
		{"schedule.pause", testrig.Fields{"name": "n"}}, {"schedule.resume", testrig.Fields{"name": "n"}},
		{"schedule.rm", testrig.Fields{"name": "n"}},
		{"web.start", testrig.Fields{"listen": "127.0.0.1:0"}}, {"web.open", testrig.Fields{}},
		{"web.stop", testrig.Fields{}},
		{"config.list", testrig.Fields{}}, {"config.get", testrig.Fields{"key": "workers"}},
		{"config.set", testrig.Fields{"key": "priority", "value": 4}}, {"config.unset", testrig.Fields{"key": "priority"}},
		{"events", testrig.Fields{"since": 0}}, {"events", testrig.Fields{"audit": true}},
		{"cleanup", testrig.Fields{"days": 1.5, "dry_run": true}}, {"drain", testrig.Fields{"off": true}},
		{"reload", testrig.Fields{}},
		{"backup", testrig.Fields{}}, {"doctor", testrig.Fields{"verify": true}},
		{"rm", testrig.Fields{"id": "a", "force": true}}, {"dequeue", testrig.Fields{"id": "a"}},
		{"clear", testrig.Fields{"yes": true}},
		{"dlq.clear", testrig.Fields{"yes": true}},
		{"service.stop", testrig.Fields{"keep_jobs": false}},
	}
	if testrig.HasTerminals {
		requests = append([]request{
			{"enqueue", testrig.Fields{"command": "read x", "id": "t", "tty": true}},
			{"attach", testrig.Fields{"id": "t", "wait": true, "rows": 24, "cols": 80, "text": "x\r"}},
		}, requests...)
	} else {
		called["attach"] = true // on this system, jobs have no terminals
	}
	called["node.drain"], called["node.rm"] = true, true // these methods work only on a queue that several nodes share
	for _, c := range requests {
		called[c.method] = true
		s := all[c.method]
		raw, err := json.Marshal(c.params)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(s.params, raw); err != nil {
			t.Errorf("params of %s: %v", c.method, err)
		}
		a := w.Call(c.method, c.params)
		for a.Method != "" { // read the notifications that precede the reply
			var notification struct{ Value json.RawMessage }
			if err := json.Unmarshal(a.Params, &notification); err != nil {
				t.Fatal(err)
			}
			if err := validate(s.notification, notification.Value); err != nil {
				t.Errorf("%s sends the notification %.300s: %v", c.method, notification.Value, err)
			}
			if a, err = w.ReadMessage(); err != nil {
				t.Fatal(err)
			}
		}
		if a.Error != nil {
			t.Errorf("%s: %+v", c.method, a.Error)
			continue
		}
		if err := validate(s.result, a.Result); err != nil {
			t.Errorf("result of %s: %.300s: %v", c.method, a.Result, err)
		}
	}
	for method, s := range all {
		if !called[method] {
			t.Errorf("the method %s was not called", method)
		}
		if validate(s.params, []byte(`{"comand":"x"}`)) == nil {
			t.Errorf("the schema of %s accepts an unknown parameter", method)
		}
	}
	if validate(all["enqueue"].params, []byte(`{"command":5}`)) == nil ||
		validate(all["list"].params, []byte(`{"limit":"x"}`)) == nil {
		t.Error("the schema accepts values of the wrong type")
	}
	for word, want := range map[string]string{"lst": `did you mean "list"`,
		"nosuch": "; use one of: hello, whoami, enqueue, "} {
		if r := q.CLI("schema", word); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("schema for the unknown method %s: %+v", word, r)
		}
	}
}
