package enqueue

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// Each job of a file is sent as one line of JSON, completed with the caller's environment. The line has the
// same meaning as the job in the file, however the file is formatted.
func TestUploadedJobsIncludeCallerEnvironment(t *testing.T) {
	t.Setenv("PATH", "/p")
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	u := NewUpload(t.Context(), UploadOptions{Output: &term.Output{}}, &queue.Spec{})
	for raw, want := range map[string]struct{ cwd, path, command string }{
		`{"command":"a"}`: {cwd, "/p", "a"},
		" { \"command\" :\r\n\t\"b\\n\" ,\n\"labels\": {\n}\n} ": {cwd, "/p", "b\n"},
		`{"command":"c","cwd":"/x"}`:                             {"/x", "/p", "c"},
		`{"command":"d","env":{"PATH":"/q"}}`:                    {cwd, "/q", "d"},
		`{"command":"e","cwd":null}`:                             {cwd, "/p", "e"},
		`{"command":"\u0063","cwd":"/y"}`:                        {"/y", "/p", "c"},
	} {
		j, err := u.prepareJob([]byte(raw))
		line := j.jobJSON
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		var s queue.Spec
		if err := json.Unmarshal(line, &s); err != nil || bytes.ContainsAny(line, "\r\n") {
			t.Errorf("%s was encoded as %s, %v", raw, line, err)
			continue
		}
		if *s.Cwd != want.cwd || s.Env["PATH"] != want.path || *s.Command != want.command {
			t.Errorf("%s was encoded as %s", raw, line)
		}
	}
	for _, raw := range []string{`{}`, `{ }`, `{"comand":"x"}`, `{"command":"x"`, `[]`, `{"command":""}`} {
		if j, err := u.prepareJob([]byte(raw)); err == nil {
			t.Errorf("%s was encoded as %s", raw, j.jobJSON)
		}
	}
}
