package api

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A client that requests progress gets notifications with the token of its request. The progress
// value rises with each notification, as the section "Progress" of the MCP specification requires.
func TestMCPReportsRequestedProgress(t *testing.T) {
	a := newMCPAgent(t, testrig.StartQueue(t, "--workers", "2").CLICommand("mcp", "--write"))
	call := func(tool string, args toolArgs, token any, last float64) (got []mcp.ProgressNotificationParams) {
		t.Helper()
		p := &mcp.CallToolParams{Name: tool, Arguments: args}
		if token != nil {
			p.SetProgressToken(token)
		}
		if r, err := a.session.CallTool(t.Context(), p); err != nil || r.IsError {
			t.Fatalf("%s: %+v, %v", tool, r, err)
		}
		// The SDK handles notifications separately from replies, so some may arrive after the reply.
		for token != nil && (len(got) == 0 || got[len(got)-1].Progress < last) {
			select {
			case p := <-a.notifications:
				got = append(got, p)
			case <-time.After(10 * time.Second):
				return got
			}
		}
		return got
	}
	call("run_and_wait", toolArgs{"command": "true"}, nil, 0)
	for _, c := range []struct {
		tool  string
		args  toolArgs
		total float64
	}{
		{"run_and_wait", toolArgs{"command": "true"}, 100},
		{"wait", toolArgs{"ids": []string{"1"}}, 100},
		{"wait", toolArgs{"ids": []string{"1", "2"}}, 2},
	} {
		// Check that the first notification has the token of this call. The earlier call requested no progress. If the server
		// had sent a notification for it anyway, that notification would arrive first.
		got := call(c.tool, c.args, "of "+c.tool, c.total)
		if len(got) < 2 || got[len(got)-1].Progress != c.total {
			t.Errorf("%s %v: %+v", c.tool, c.args, got)
		}
		for i, p := range got {
			if p.ProgressToken != "of "+c.tool || p.Total != c.total || p.Message == "" || i > 0 &&
				p.Progress <= got[i-1].Progress {
				t.Errorf("%s %v: notification %d is %+v", c.tool, c.args, i, p)
			}
		}
	}
}

// A client that waits for a job receives the percentages that the job reports.
func TestMCPPassesOnTheProgressOfAJob(t *testing.T) {
	a := newMCPAgent(t, testrig.StartQueue(t, "--workers", "1").CLICommand("mcp", "--write"))
	gate := filepath.Join(t.TempDir(), "seen")
	done := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "run_and_wait", Arguments: toolArgs{
			"command": `echo 40 >"$QUEUECTL_PROGRESS"; until test -e ` + gate + `; do sleep 0.05; done`,
		}}
		p.SetProgressToken(1)
		_, err := a.session.CallTool(t.Context(), p)
		done <- err
	}()
	var got []float64
	for len(got) == 0 || got[len(got)-1] < 100 {
		select {
		case p := <-a.notifications:
			got = append(got, p.Progress)
		case <-time.After(20 * time.Second):
			t.Fatalf("progress stops at %v", got)
		}
		if got[len(got)-1] == 40 {
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := []float64{0, 40, 100}; !slices.Equal(got, want) {
		t.Errorf("progress is %v, want %v", got, want)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
