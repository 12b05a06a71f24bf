//go:build linux || windows

package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/queuectl/queuectl/internal/testrig"
)

// webhookServer is a server that records the requests of a webhook and replies to each request with the HTTP status
// replyStatus.
type webhookServer struct {
	*httptest.Server
	mu            sync.Mutex
	replyStatus   int
	requestIDs    []string
	requestBodies []string
	signatureErrs []error
}

const webhookSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

func newWebhookServer(t *testing.T, replyStatus int) *webhookServer {
	signer, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	p := &webhookServer{replyStatus: replyStatus}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = signer.Verify(body, r.Header)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.signatureErrs = append(p.signatureErrs, err)
		}
		p.requestIDs, p.requestBodies = append(p.requestIDs, r.Header.Get("webhook-id")),
			append(p.requestBodies, string(body))
		w.WriteHeader(p.replyStatus)
	}))
	t.Cleanup(p.Close)
	return p
}

// recordedRequests returns the ids and bodies of all requests that have arrived, and one error for each request
// with a wrong signature.
func (p *webhookServer) recordedRequests() (requestIDs, bodies []string, requestErrs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestIDs, p.requestBodies, p.signatureErrs
}

// waitForHookOutputs waits until hookCount hooks of a job have completed. It returns the output of each hook by the
// name of the job's field that requested the hook, such as on_dead.
func waitForHookOutputs(q *testrig.Harness, jobID string, hookCount int) map[string]string {
	q.Helper()
	printed := map[string]string{}
	q.WaitUntil(fmt.Sprint(hookCount, " hooks of ", jobID), 20*time.Second, func() bool {
		var jobs []struct {
			ID     string            `json:"id"`
			State  string            `json:"state"`
			Labels map[string]string `json:"labels"`
		}
		if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--queue", "hooks", "--label", "job="+jobID, "--json")),
			&jobs); err != nil {
			q.Fatal(err)
		}
		for _, j := range jobs {
			if j.State == "completed" {
				printed[j.Labels["hook"]+j.Labels["webhook"]] = q.MustRunCLI("logs", j.ID)
			}
		}
		return len(jobs) == hookCount && len(printed) == hookCount
	})
	return printed
}

// A hook is a command that runs after an event of a job. It runs with the environment and in the directory of
// the job, and receives details of the event.
func TestJobHooksRunAfterTheirEvents(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	q.WriteFile("here", "in its directory\n")
	q.MustRunCLI("enqueue", "--id", "a", "--max-retries", "1", "--backoff-base", "0.01", "--env", "GREETING=hi",
		"--cwd", q.StateDir,
		"--on-completed", "echo never", "--on-failed", "echo $GREETING $QUEUECTL_HOOK_STATE", "--on-dead", "cat here; cat",
		"--on-ended", "echo $QUEUECTL_HOOK_JOB $QUEUECTL_HOOK_EXIT_CODE", "exit 3")
	got := waitForHookOutputs(q, "a", 3)
	dir, payload, _ := strings.Cut(got["on_dead"], "\n")
	var job struct {
		ID       string `json:"id"`
		Command  string `json:"command"`
		State    string `json:"state"`
		ExitCode int    `json:"exit_code"`
		OnDead   string `json:"on_dead"`
	}
	if err := json.Unmarshal([]byte(payload), &job); err != nil || job.ID != "a" || job.Command != "exit 3" ||
		job.State != "dead" || job.ExitCode != 3 || job.OnDead != "cat here; cat" {
		t.Errorf("on_dead received %q, %v", payload, err)
	}
	if got["on_failed"] != "hi failed" || dir != "in its directory" || got["on_ended"] != "a 3" {
		t.Errorf("the hooks of job a printed %q", got)
	}
	q.MustRunCLI("enqueue", "--id", "b", "--delay", "1h", "--on-ended",
		"echo $QUEUECTL_HOOK_STATE $QUEUECTL_HOOK_EXIT_CODE",
		"true")
	q.MustRunCLI("edit", "b", "--on-completed", "echo edited")
	q.MustRunCLI("cancel", "b")
	if got := waitForHookOutputs(q, "b", 1); got["on_ended"] != "cancelled" {
		t.Errorf("cancelled: got %q", got)
	}
}

// Hooks and webhooks in the settings apply to all jobs. A webhook is delivered by a job, which is dead if the
// delivery fails. `queuectl hook test` sends the same request as an event of a job.
func TestHooksInSettingsApplyToAllJobs(t *testing.T) {
	to := newWebhookServer(t, http.StatusNoContent)
	goneServer := newWebhookServer(t, http.StatusGone)
	q := testrig.StartQueue(t, "--workers", "2")
	q.MustRunCLI("config", "set", "hooks.on_completed", "echo done $QUEUECTL_HOOK_JOB")
	secret := q.WriteFile("secret", webhookSecret+"\n")
	q.MustRunCLI("config", "set", "webhooks", fmt.Sprintf(
		`{"ops": {"url": %q, "secret_file": %q, "events": ["dead"]}, `+
			`"old": {"url": %q, "secret_file": %q, "queues": ["bulk"]}}`, to.URL, secret, goneServer.URL, secret))
	q.MustRunCLI("run", "--id", "a", "--on-completed", "echo own", "true")
	q.WaitUntil("two hooks of a", 20*time.Second, func() bool {
		return len(strings.Fields(q.MustRunCLI("list", "--label", "job=a", "-q"))) == 2
	})
	q.MustRunCLI("enqueue", "--id", "b", "--max-retries", "0", "exit 3")
	waitForHookOutputs(q, "b", 1)
	ids, bodies, bad := to.recordedRequests()
	var payload struct {
		Type string `json:"type"`
		Data struct {
			ID    string `json:"id"`
			State string `json:"state"`
		} `json:"data"`
	}
	if len(ids) != 1 || len(bad) != 0 || !strings.HasSuffix(ids[0], ".dead") {
		t.Fatalf("posted %q, %v", ids, bad)
	}
	if err := json.Unmarshal([]byte(bodies[0]), &payload); err != nil || payload.Type != "job.dead" ||
		payload.Data.ID != "b" || payload.Data.State != "dead" {
		t.Errorf("posted %s, %v", bodies[0], err)
	}
	q.MustRunCLI("run", "--id", "c", "--queue", "bulk", "true")
	q.WaitUntil("a dead delivery", 20*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("dlq", "list", "--json"), `"webhook":"old"`)
	})
	id := strings.TrimSpace(q.MustRunCLI("hook", "test", "ops"))
	q.MustRunCLI("wait", id)
	if ids, bodies, bad := to.recordedRequests(); len(ids) != 2 || len(bad) != 0 ||
		!strings.Contains(bodies[1], `"id":"test"`) {
		t.Errorf("after a test: posted %q, %v", bodies, bad)
	}
	if got := q.RunCLI("hook", "test", "op"); got.ExitCode != 4 || !strings.Contains(got.Stderr, `did you mean "ops"?`) {
		t.Errorf("hook test with a misspelled name: got %+v", got)
	}
	if got := q.MustRunCLI("logs", strings.TrimSpace(q.MustRunCLI("hook", "test", "on_completed")),
		"-f"); got != "done test" {
		t.Errorf("the test of on_completed prints %q", got)
	}
}
