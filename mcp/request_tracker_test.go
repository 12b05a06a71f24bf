package mcp

import (
	"testing"
	"testing/synctest"
	"time"
)

// The library learns of the end of the input only when all requests are answered. Calls that wait for jobs must stop
// waiting after maxJobWaitAfterInputEnd. If they have not replied after twice that time, the library learns of the end
// without their replies.
func TestEndOfInputDoesNotWaitForJobs(t *testing.T) {
	call := func(id, tool string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
	}
	const answerAfter = time.Minute // delay of the reply to a call that does not wait for jobs
	for _, c := range []struct {
		name  string
		lines []string
		want  time.Duration
	}{
		{"nothing is open", nil, 0},
		{"wait", []string{call("1", "wait")}, 2 * maxJobWaitAfterInputEnd},
		{"run_and_wait", []string{call("1", "run_and_wait")}, 2 * maxJobWaitAfterInputEnd},
		{"a quick call", []string{call("2", "list")}, answerAfter},
		{"a quick call and a wait", []string{call("1", "wait"), call("2", "list")}, answerAfter},
		{"many in a line", []string{"[" + call("1", "wait") + "," + call("3", "wait") + "]"}, 2 * maxJobWaitAfterInputEnd},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newRequestTracker()
			for _, line := range c.lines {
				p.recordRequests([]byte(line))
			}
			answer := time.AfterFunc(answerAfter, func() {
				p.removeAnsweredRequests([]byte(`{"jsonrpc":"2.0","id":2,"result":{}}`))
			})
			defer answer.Stop()
			begin := time.Now()
			p.waitForAllReplies(t.Context())
			if stopped := p.jobWaitCtx.Err() != nil; stopped != (c.want > maxJobWaitAfterInputEnd) {
				t.Errorf("%s: calls had to stop waiting for jobs: %t", c.name, stopped)
			}
			if took := time.Since(begin); took != c.want {
				t.Errorf("%s: the end of the input was delayed by %v, want %v", c.name, took, c.want)
			}
		})
	}
}
