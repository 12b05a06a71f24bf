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

// schemasByMethod returns the schemas that `queuectl schema` prints, by method.
func schemasByMethod(q *testrig.Harness) map[string]methodSchemas {
	q.Helper()
	var methods []struct {
		Method         string
		Params, Result json.RawMessage
		Notification   json.RawMessage `json:"tells"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("schema", "--json")), &methods); err != nil {
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

// validateJSON checks that a JSON text conforms to a schema.
func validateJSON(schema *jsonschema.Schema, jsonText []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(jsonText))
	if err != nil {
		return err
	}
	return schema.Validate(doc)
}

// `queuectl schema` prints valid JSON Schemas of the protocol. Real requests and replies conform to them.
// Requests that the service rejects do not.
func TestSchemasMatchRequestsAndReplies(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	all := schemasByMethod(q)
	w := q.DialService()
	called := map[string]bool{}
	type request struct {
		method string
		params testrig.JSONFields
	}
	requests := []request{
		{"hello", testrig.JSONFields{}}, {"whoami", testrig.JSONFields{}},
		{"enqueue", testrig.JSONFields{"command": "echo hi; echo warn >&2; exit 3", "id": "a", "max_retries": 0,
			"labels": testrig.JSONFields{"k": "v"}, "timeout": "90s", "env": testrig.JSONFields{"A": "b"}, "key": "k1"}},
		{"enqueue.batch", testrig.JSONFields{"commit": true,
			"jobs": []testrig.JSONFields{{"argv": []string{testrig.ToolPath("true")}, "id": 12,
				"no_retry_codes": []int{4}}}}},
		{"wait", testrig.JSONFields{"ids": []any{"a", 12}}},
		{"show", testrig.JSONFields{"id": "a"}},
		{"list", testrig.JSONFields{"state": []string{"dead", "done"}, "limit": 5}},
		{"status", testrig.JSONFields{}}, {"screen", testrig.JSONFields{"rows": 5}},
		{"logs", testrig.JSONFields{"id": "a", "n": 3}},
		{"dlq.list", testrig.JSONFields{}},
		{"dlq.retry", testrig.JSONFields{"ids": "a", "timeout": 5}},
		{"wait", testrig.JSONFields{"id": "a", "timeout": 20}},
		{"retry", testrig.JSONFields{"id": "none"}},
		{"cancel", testrig.JSONFields{"id_glob": "z*", "dry_run": true}},
		{"hold", testrig.JSONFields{"older_than": "1h"}}, {"release",
			testrig.JSONFields{"label": testrig.JSONFields{"k": "z"}}},
		{"requeue", testrig.JSONFields{"id": "a"}},
		{"pause", testrig.JSONFields{"id": "a"}}, {"pause", testrig.JSONFields{"all": true}},
		{"status", testrig.JSONFields{}},
		{"resume", testrig.JSONFields{"all": true}},
		{"resume", testrig.JSONFields{"label": testrig.JSONFields{"k": "z"}}},
		{"kill", testrig.JSONFields{"id": "a", "signal": "HUP"}}, {"edit",
			testrig.JSONFields{"id": "a", "set": testrig.JSONFields{"priority": 1}}},
		{"queue.set", testrig.JSONFields{"name": "gpu", "weight": 3, "concurrency": 1, "max_pending": 9,
			"default": testrig.JSONFields{"priority": 7, "timeout": nil}}}, {"queue.list", testrig.JSONFields{}},
		{"queue.pause", testrig.JSONFields{"name": "gpu", "reason": "x", "for": "1h"}},
		{"queue.resume", testrig.JSONFields{"all": true}},
		{"queue.rm", testrig.JSONFields{"name": "gpu"}},
		{"tree", testrig.JSONFields{"id": "a"}}, {"why", testrig.JSONFields{"id": "a"}},
		{"simulate", testrig.JSONFields{"next": 5}},
		{"stats", testrig.JSONFields{}}, {"stats", testrig.JSONFields{"queue": "default", "since": "2026-01-01T00:00:00Z",
			"by":      "day",
			"buckets": true}},
		{"worker.list", testrig.JSONFields{}}, {"worker.start", testrig.JSONFields{"count": 1}},
		{"worker.scale", testrig.JSONFields{"count": 1}},
		{"worker.stop", testrig.JSONFields{"count": 1, "timeout": "1s"}},
		{"schedule.add", testrig.JSONFields{"name": "n", "cron": "0 3 * * *", "tz": "UTC", "jitter": "10m",
			"backoff_jitter": 0.5,
			"command":        "true"}}, {"schedule.list", testrig.JSONFields{}},
		{"gate.set", testrig.JSONFields{"key": "@db", "lock": 2}},
		{"gate.list", testrig.JSONFields{}}, {"node.list", testrig.JSONFields{}},
		{"config.set", testrig.JSONFields{"key": "hooks.on_dead", "value": "true"}},
		{"hook.test", testrig.JSONFields{"name": "on_dead"}}, {"schedule.run", testrig.JSONFields{"name": "n"}},
		{"schedule.show", testrig.JSONFields{"name": "n"}},
		{"schedule.pause", testrig.JSONFields{"name": "n"}}, {"schedule.resume", testrig.JSONFields{"name": "n"}},
		{"schedule.rm", testrig.JSONFields{"name": "n"}},
		{"web.start", testrig.JSONFields{"listen": "127.0.0.1:0"}}, {"web.open", testrig.JSONFields{}},
		{"web.stop", testrig.JSONFields{}},
		{"config.list", testrig.JSONFields{}}, {"config.get", testrig.JSONFields{"key": "workers"}},
		{"config.set", testrig.JSONFields{"key": "priority", "value": 4}},
		{"config.unset", testrig.JSONFields{"key": "priority"}},
		{"events", testrig.JSONFields{"since": 0}}, {"events", testrig.JSONFields{"audit": true}},
		{"cleanup", testrig.JSONFields{"days": 1.5, "dry_run": true}}, {"drain", testrig.JSONFields{"off": true}},
		{"reload", testrig.JSONFields{}},
		{"backup", testrig.JSONFields{}}, {"doctor", testrig.JSONFields{"verify": true}},
		{"rm", testrig.JSONFields{"id": "a", "force": true}}, {"dequeue", testrig.JSONFields{"id": "a"}},
		{"clear", testrig.JSONFields{"yes": true}},
		{"dlq.clear", testrig.JSONFields{"yes": true}},
		{"service.stop", testrig.JSONFields{"keep_jobs": false}},
	}
	if testrig.JobsCanUseTerminals {
		requests = append([]request{
			{"enqueue", testrig.JSONFields{"command": "read x", "id": "t", "tty": true}},
			{"attach", testrig.JSONFields{"id": "t", "wait": true, "rows": 24, "cols": 80, "text": "x\r"}},
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
		if err := validateJSON(s.params, raw); err != nil {
			t.Errorf("params of %s: %v", c.method, err)
		}
		a := w.Call(c.method, c.params)
		for a.Method != "" { // read the notifications that precede the reply
			var notification struct{ Value json.RawMessage }
			if err := json.Unmarshal(a.Params, &notification); err != nil {
				t.Fatal(err)
			}
			if err := validateJSON(s.notification, notification.Value); err != nil {
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
		if err := validateJSON(s.result, a.Result); err != nil {
			t.Errorf("result of %s: %.300s: %v", c.method, a.Result, err)
		}
	}
	for method, s := range all {
		if !called[method] {
			t.Errorf("the method %s was not called", method)
		}
		if validateJSON(s.params, []byte(`{"comand":"x"}`)) == nil {
			t.Errorf("the schema of %s accepts an unknown parameter", method)
		}
	}
	if validateJSON(all["enqueue"].params, []byte(`{"command":5}`)) == nil ||
		validateJSON(all["list"].params, []byte(`{"limit":"x"}`)) == nil {
		t.Error("the schema accepts values of the wrong type")
	}
	for word, want := range map[string]string{"lst": `did you mean "list"`,
		"nosuch": "; use one of: hello, whoami, enqueue, "} {
		if r := q.RunCLI("schema", word); r.ExitCode != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("schema for the unknown method %s: %+v", word, r)
		}
	}
}
