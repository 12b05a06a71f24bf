//go:build linux || windows

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// Each command that describes the service prints the directory and the socket of the service, in text and in
// JSON.
func TestCommandsNameTheirService(t *testing.T) {
	q := testrig.NewHarness(t, "")
	q.StartService()
	for _, verb := range []string{"status", "status --verbose", "whoami", "service status"} {
		args := strings.Fields(verb)
		if out := q.MustRunCLI(args...); !strings.Contains(out, "directory") || !strings.Contains(strings.ToLower(out),
			"socket") {
			t.Errorf("%s does not name the service and its socket:\n%s", verb, out)
		}
		var got struct{ Service, Socket string }
		if err := json.Unmarshal([]byte(q.MustRunCLI(append(args, "--json")...)), &got); err != nil {
			t.Errorf("%s --json: %v", verb, err)
		}
		if got.Service != "directory" || got.Socket == "" {
			t.Errorf("%s --json: got %+v, want a directory's service with its socket", verb, got)
		}
	}
}
