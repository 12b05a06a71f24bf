package present

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// The line of an event names the user who caused the event: by name, by uid, or by both.
func TestEventLineNamesTheUser(t *testing.T) {
	for _, c := range []struct {
		user string
		uid  *int
		want string
	}{
		{"", nil, "01abc  kill"},
		{"alice", nil, "01abc  by alice  kill"},
		{"alice", new(1000), "01abc  by alice (uid 1000)  kill"},
		{"", new(1000), "01abc (uid 1000)  kill"},
	} {
		line := EventLine(&control.Event{Kind: "signalled", JobID: "01abc", User: c.user, UID: c.uid, AuditCommand: "kill"})
		if !strings.HasSuffix(line, "  "+c.want) {
			t.Errorf("user %q, uid %v: got %q, want it to end with %q", c.user, c.uid, line, c.want)
		}
	}
}
