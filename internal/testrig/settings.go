//go:build linux || windows

package testrig

import (
	"encoding/json"
	"os/exec"
	"time"
)

// Setting is the value of a setting and its origin.
type Setting struct{ Key, Value, Origin, Note string }

func (q *Queue) Setting(key string) (s Setting) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.Must("config", "get", key, "--json")), &s); err != nil {
		q.Fatal(err)
	}
	return s
}

// MustRefuseStart starts a service that must not start, and returns its exit code and output.
func (q *Queue) MustRefuseStart(args ...string) Result {
	q.Helper()
	cmd := exec.Command(q.Bin, append([]string{"serve"}, args...)...)
	cmd.Env = append(Environment(q.Dir), q.Env...)
	ended := time.AfterFunc(15*time.Second, func() { cmd.Process.Kill() })
	defer ended.Stop()
	return RunCommand(q, cmd)
}
