//go:build linux || windows

package test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// methodSchemas holds the compiled schemas of a method. The field notification is the schema of the values in
// its stream notifications.
type methodSchemas struct{ params, notification, result *jsonschema.Schema }

// schemas returns the schemas that the command schema prints, by method.
func (q *queue) schemas() map[string]methodSchemas {
	q.Helper()
	var list []struct {
		Method                string
		Params, Tells, Result json.RawMessage
	}
	if err := json.Unmarshal([]byte(q.must("schema", "--json")), &list); err != nil {
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
	for _, m := range list {
		all[m.Method] = methodSchemas{compile("params-"+m.Method, m.Params), compile("tells-"+m.Method, m.Tells),
			compile("result-"+m.Method, m.Result)}
	}
	return all
}

func valid(s *jsonschema.Schema, raw []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// The command schema prints valid schemas that describe the protocol. Real requests and responses conform to
// them, and requests that the service rejects do not.
func TestSchemasDescribeTheWire(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	all := q.schemas()
	w := q.dial()
	called := map[string]bool{}
	type request struct {
		method string
		params fields
	}
	requests := []request{
		{"hello", fields{}}, {"whoami", fields{}},
		{"enqueue", fields{"command": "echo hi; echo warn >&2; exit 3", "id": "a", "max_retries": 0,
			"labels": fields{"k": "v"}, "timeout": "90s", "env": fields{"A": "b"}, "key": "k1"}},
		{"enqueue.batch", fields{"commit": true, "jobs": []fields{{"argv": []string{toolPath("true")}, "id": 12,
			"no_retry_codes": []int{4}}}}},
		{"wait", fields{"ids": []any{"a", 12}}},
		{"show", fields{"id": "a"}},
		{"list", fields{"state": []string{"dead", "done"}, "limit": 5}},
		{"status", fields{}}, {"screen", fields{"rows": 5}},
		{"logs", fields{"id": "a", "n": 3}},
		{"dlq.list", fields{}},
		{"dlq.retry", fields{"ids": "a", "timeout": 5}},
		{"wait", fields{"id": "a", "timeout": 20}},
		{"retry", fields{"id": "none"}},
		{"cancel", fields{"id_glob": "z*", "dry_run": true}},
		{"hold", fields{"older_than": "1h"}}, {"release", fields{"label": fields{"k": "z"}}}, {"requeue", fields{"id": "a"}},
		{"pause", fields{"id": "a"}}, {"pause", fields{"all": true}}, {"status", fields{}}, {"resume", fields{"all": true}},
		{"resume", fields{"label": fields{"k": "z"}}},
		{"kill", fields{"id": "a", "signal": "HUP"}}, {"edit", fields{"id": "a", "set": fields{"priority": 1}}},
		{"queue.set", fields{"name": "gpu", "weight": 3, "concurrency": 1, "max_pending": 9,
			"default": fields{"priority": 7, "timeout": nil}}}, {"queue.list", fields{}},
		{"queue.pause", fields{"name": "gpu", "reason": "x", "for": "1h"}}, {"queue.resume", fields{"all": true}},
		{"queue.rm", fields{"name": "gpu"}},
		{"tree", fields{"id": "a"}}, {"why", fields{"id": "a"}}, {"simulate", fields{"next": 5}},
		{"stats", fields{}}, {"stats", fields{"queue": "default", "since": "2026-01-01T00:00:00Z", "by": "day",
			"buckets": true}},
		{"worker.list", fields{}}, {"worker.start", fields{"count": 1}}, {"worker.scale", fields{"count": 1}},
		{"worker.stop", fields{"count": 1, "timeout": "1s"}},
		{"schedule.add", fields{"name": "n", "cron": "0 3 * * *", "tz": "UTC", "jitter": "10m", "backoff_jitter": 0.5,
			"command": "true"}}, {"schedule.list", fields{}}, {"gate.set", fields{"key": "@db", "lock": 2}},
		{"gate.list", fields{}}, {"node.list", fields{}}, {"config.set", fields{"key": "hooks.on_dead", "value": "true"}},
		{"hook.test", fields{"name": "on_dead"}}, {"schedule.run", fields{"name": "n"}},
		{"schedule.show", fields{"name": "n"}},
		{"schedule.pause", fields{"name": "n"}}, {"schedule.resume", fields{"name": "n"}},
		{"schedule.rm", fields{"name": "n"}},
		{"web.start", fields{"listen": "127.0.0.1:0"}}, {"web.open", fields{}}, {"web.stop", fields{}},
		{"config.list", fields{}}, {"config.get", fields{"key": "workers"}},
		{"config.set", fields{"key": "priority", "value": 4}}, {"config.unset", fields{"key": "priority"}},
		{"events", fields{"since": 0}}, {"events", fields{"audit": true}},
		{"cleanup", fields{"days": 1.5, "dry_run": true}}, {"drain", fields{"off": true}}, {"reload", fields{}},
		{"backup", fields{}}, {"doctor", fields{"verify": true}},
		{"rm", fields{"id": "a", "force": true}}, {"dequeue", fields{"id": "a"}}, {"clear", fields{"yes": true}},
		{"dlq.clear", fields{"yes": true}},
		{"service.stop", fields{"keep_jobs": false}},
	}
	if hasTerminals {
		requests = append([]request{
			{"enqueue", fields{"command": "read x", "id": "t", "tty": true}},
			{"attach", fields{"id": "t", "wait": true, "rows": 24, "cols": 80, "text": "x\r"}},
		}, requests...)
	} else {
		called["attach"] = true // this system has no terminals for jobs
	}
	called["node.drain"], called["node.rm"] = true, true // these methods work only on a queue that several nodes share
	for _, c := range requests {
		called[c.method] = true
		s := all[c.method]
		raw, err := json.Marshal(c.params)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(s.params, raw); err != nil {
			t.Errorf("params of %s: %v", c.method, err)
		}
		a := w.call(c.method, c.params)
		for a.Method != "" { // read the notifications of a stream up to the reply
			var notification struct{ Value json.RawMessage }
			if err := json.Unmarshal(a.Params, &notification); err != nil {
				t.Fatal(err)
			}
			if err := valid(s.notification, notification.Value); err != nil {
				t.Errorf("%s tells %.300s: %v", c.method, notification.Value, err)
			}
			if a, err = w.read(); err != nil {
				t.Fatal(err)
			}
		}
		if a.Error != nil {
			t.Errorf("%s: %+v", c.method, a.Error)
			continue
		}
		if err := valid(s.result, a.Result); err != nil {
			t.Errorf("result of %s: %.300s: %v", c.method, a.Result, err)
		}
	}
	for method, s := range all {
		if !called[method] {
			t.Errorf("%s was not asked", method)
		}
		if valid(s.params, []byte(`{"comand":"x"}`)) == nil {
			t.Errorf("%s takes a parameter that there is not", method)
		}
	}
	if valid(all["enqueue"].params, []byte(`{"command":5}`)) == nil ||
		valid(all["list"].params, []byte(`{"limit":"x"}`)) == nil {
		t.Error("values of the wrong type are taken")
	}
	for word, want := range map[string]string{"lst": `did you mean "list"`,
		"nosuch": "; use one of: hello, whoami, enqueue, "} {
		if r := q.cli("schema", word); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("schema %s, which is none: %+v", word, r)
		}
	}
}
