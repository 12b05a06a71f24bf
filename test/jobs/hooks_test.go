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

// webhookServer is a server that records the requests of a webhook and replies to all of them with replyStatus.
type webhookServer struct {
	*httptest.Server
	mu          sync.Mutex
	replyStatus int
	requestIDs  []string
	bodies      []string
	errs        []error
}

const webhookSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

func newWebhookServer(t *testing.T, status int) *webhookServer {
	signer, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	p := &webhookServer{replyStatus: status}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = signer.Verify(body, r.Header)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.errs = append(p.errs, err)
		}
		p.requestIDs, p.bodies = append(p.requestIDs, r.Header.Get("webhook-id")), append(p.bodies, string(body))
		w.WriteHeader(p.replyStatus)
	}))
	t.Cleanup(p.Close)
	return p
}

// recordedRequests returns the ids and bodies of all requests that have arrived, and one error for each request
// with a wrong signature.
func (p *webhookServer) recordedRequests() (ids, bodies []string, requestErrs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestIDs, p.bodies, p.errs
}

// waitHooks waits until n hooks of a job have completed. It returns the output of each hook by the name of the
// job's field that requested the hook, such as on_dead.
func waitHooks(q *testrig.Queue, id string, n int) map[string]string {
	q.Helper()
	printed := map[string]string{}
	q.WaitUntil(fmt.Sprint(n, " hooks of ", id), 20*time.Second, func() bool {
		var jobs []struct {
			ID     string            `json:"id"`
			State  string            `json:"state"`
			Labels map[string]string `json:"labels"`
		}
		if err := json.Unmarshal([]byte(q.MustCLI("list", "--queue", "hooks", "--label", "job="+id, "--json")),
			&jobs); err != nil {
			q.Fatal(err)
		}
		for _, j := range jobs {
			if j.State == "completed" {
				printed[j.Labels["hook"]+j.Labels["webhook"]] = q.MustCLI("logs", j.ID)
			}
		}
		return len(jobs) == n && len(printed) == n
	})
	return printed
}

// A hook is a command that runs after an event of a job. It runs with the environment and in the directory of
// the job, and receives details of the event.
func TestHooksOfAJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	q.WriteFile("here", "in its directory\n")
	q.MustCLI("enqueue", "--id", "a", "--max-retries", "1", "--backoff-base", "0.01", "--env", "GREETING=hi",
		"--cwd", q.Dir,
		"--on-completed", "echo never", "--on-failed", "echo $GREETING $QUEUECTL_HOOK_STATE", "--on-dead", "cat here; cat",
		"--on-ended", "echo $QUEUECTL_HOOK_JOB $QUEUECTL_HOOK_EXIT_CODE", "exit 3")
	got := waitHooks(q, "a", 3)
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
	q.MustCLI("enqueue", "--id", "b", "--delay", "1h", "--on-ended", "echo $QUEUECTL_HOOK_STATE $QUEUECTL_HOOK_EXIT_CODE",
		"true")
	q.MustCLI("edit", "b", "--on-completed", "echo edited")
	q.MustCLI("cancel", "b")
	if got := waitHooks(q, "b", 1); got["on_ended"] != "cancelled" {
		t.Errorf("cancelled: got %q", got)
	}
}

// Hooks and webhooks in the settings apply to all jobs. A webhook is delivered by a job, which is dead if the
// delivery fails. `queuectl hook test` sends the same request as an event of a job.
func TestHooksOfTheSettings(t *testing.T) {
	to := newWebhookServer(t, http.StatusNoContent)
	goneServer := newWebhookServer(t, http.StatusGone)
	q := testrig.StartQueue(t, "--workers", "2")
	q.MustCLI("config", "set", "hooks.on_completed", "echo done $QUEUECTL_HOOK_JOB")
	secret := q.WriteFile("secret", webhookSecret+"\n")
	q.MustCLI("config", "set", "webhooks", fmt.Sprintf(
		`{"ops": {"url": %q, "secret_file": %q, "events": ["dead"]}, `+
			`"old": {"url": %q, "secret_file": %q, "queues": ["bulk"]}}`, to.URL, secret, goneServer.URL, secret))
	q.MustCLI("run", "--id", "a", "--on-completed", "echo own", "true")
	q.WaitUntil("two hooks of a", 20*time.Second, func() bool {
		return len(strings.Fields(q.MustCLI("list", "--label", "job=a", "-q"))) == 2
	})
	q.MustCLI("enqueue", "--id", "b", "--max-retries", "0", "exit 3")
	waitHooks(q, "b", 1)
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
	q.MustCLI("run", "--id", "c", "--queue", "bulk", "true")
	q.WaitUntil("a dead delivery", 20*time.Second, func() bool {
		return strings.Contains(q.MustCLI("dlq", "list", "--json"), `"webhook":"old"`)
	})
	id := strings.TrimSpace(q.MustCLI("hook", "test", "ops"))
	q.MustCLI("wait", id)
	if ids, bodies, bad := to.recordedRequests(); len(ids) != 2 || len(bad) != 0 ||
		!strings.Contains(bodies[1], `"id":"test"`) {
		t.Errorf("after a test: posted %q, %v", bodies, bad)
	}
	if got := q.CLI("hook", "test", "op"); got.Code != 4 || !strings.Contains(got.Stderr, `did you mean "ops"?`) {
		t.Errorf("hook test with a misspelled name: got %+v", got)
	}
	if got := q.MustCLI("logs", strings.TrimSpace(q.MustCLI("hook", "test", "on_completed")), "-f"); got != "done test" {
		t.Errorf("the test of on_completed prints %q", got)
	}
}
