package hooks

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/worker"
)

const ownerUID = 61300 // no account has this uid

// newHooks returns the Hooks for the given settings, with an empty store. ApplyHookSettings was called, so the store
// creates the hooks that the settings define.
func newHooks(t *testing.T, values map[string]string) *Hooks {
	t.Helper()
	k, err := settings.New(settings.Options{})
	if err == nil {
		err = k.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: values})
	}
	if err != nil {
		t.Fatal(err)
	}
	s, d := memstore.New(queue.RankPolicy{}), &access.UserDirectory{}
	h := &Hooks{JobAccount: worker.Account{UID: 61301, UserName: "service"}, Log: slog.New(slog.DiscardHandler), Store: s,
		WebhookCommand: []string{"/queuectld", "post"}, UserDirectory: d,
		Owners:    access.NewOwners(s, nil, d, worker.Account{}),
		UserQuota: &settings.UserQuota{Store: s, Settings: k}, Settings: k}
	if err := h.ApplyHookSettings(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// runJobToEnd runs a job until it has ended in endState, and returns the hook jobs that exist then. It records the
// end of the job twice, as the service does if it gets no answer from the store the first time.
func runJobToEnd(t *testing.T, h *Hooks, draft queue.Job, endState queue.State) []queue.Job {
	t.Helper()
	draft.UID, draft.State, draft.ExitCode, draft.MaxAttempts = ownerUID, queue.Pending, -1, 1
	ctx := t.Context()
	if _, err := h.Store.Enqueue(ctx, store.EnqueueRequest{UID: ownerUID, Drafts: []queue.Job{draft}}); err != nil {
		t.Fatal(err)
	}
	claimed, err := h.Store.AwaitJobs(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	end := store.Settlement{Lease: claimed[0].Lease(), Decision: queue.AttemptDecision{NextState: endState,
		RecordsAttempt: true},
		Attempt: queue.Attempt{ExitCode: 3, StartedAt: h.Store.Now(), EndedAt: h.Store.Now()}}
	for range 2 {
		if _, err := h.Store.ReportAndClaim(ctx, store.LeaseReport{Settlements: []store.Settlement{end}}); err != nil {
			t.Fatal(err)
		}
	}
	return listHookJobs(t, h)
}

// listHookJobs returns all hook jobs, oldest first.
func listHookJobs(t *testing.T, h *Hooks) []queue.Job {
	t.Helper()
	ctx := t.Context()
	page, err := h.Store.ListJobs(ctx, store.JobFilter{Queue: queue.HookQueue, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var hookJobs []queue.Job
	for _, j := range slices.Backward(page.Jobs) {
		full, err := h.Store.GetWithEnvAndStdin(ctx, j.ID)
		if err != nil {
			t.Fatal(err)
		}
		hookJobs = append(hookJobs, full)
	}
	return hookJobs
}

// The end of a job creates one hook job for each hook of the job and of the settings, even if the end is
// recorded twice. A hook job gets the data of the job in environment variables and as JSON.
func TestJobEndCreatesEachHookOnce(t *testing.T) {
	h := newHooks(t, map[string]string{
		"hooks.on_dead": "mail ops", "hooks.on_completed": "never",
		"webhooks": `{"b": {"url": "https://example.org/b", "secret_file": "/s"},
			"a": {"url": "https://example.org/a", "secret_file": "/s", "events": ["dead"]},
			"other": {"url": "https://example.org/o", "secret_file": "/s", "queues": ["other"]}}`,
	})
	list := runJobToEnd(t, h, queue.Job{ID: "j", HookEvents: queue.HookDead, ExecutionSettings: queue.ExecutionSettings{
		Command: "false", Shell: "/bin/sh", Cwd: "/tmp", Env: []string{"A=secret"},
		HookCommands: queue.HookCommands{OnDead: "own"}}}, queue.Dead)
	type hook struct{ label, command, account string }
	var got []hook
	for _, j := range list {
		name := j.Command
		if len(j.Argv) > 0 {
			name = strings.Join(j.Argv, " ") + " " + j.Labels["webhook"]
		}
		got = append(got, hook{j.Labels["hook"], name, j.RunAsUser})
		for _, want := range []string{"QUEUECTL_HOOK_JOB=j", "QUEUECTL_HOOK_STATE=dead", "QUEUECTL_HOOK_EXIT_CODE=3"} {
			if !slices.Contains(j.Env, want) {
				t.Errorf("%s: the environment %q lacks %s", name, j.Env, want)
			}
		}
		if own := j.Command == "own"; slices.Contains(j.Env, "A=secret") != own || (j.UID == ownerUID) != own ||
			(j.Cwd == "/tmp") != own {
			t.Errorf("%s: uid %d, directory %q, environment %q", name, j.UID, j.Cwd, j.Env)
		}
		checkHookPayload(t, &j)
	}
	want := []hook{{"on_dead", "own", ""}, {"on_dead", "mail ops", "service"},
		{"on_dead", "/queuectld post a", "service"}, {"on_ended", "/queuectld post b", "service"}}
	if !slices.Equal(got, want) {
		t.Errorf("got the hooks %q, want %q", got, want)
	}
}

// checkHookPayload checks the JSON that a hook job reads from its standard input.
func checkHookPayload(t *testing.T, hookJob *queue.Job) {
	t.Helper()
	type job struct {
		ID, State, Command string
		ExitCode           int `json:"exit_code"`
	}
	var received job
	if len(hookJob.Argv) == 0 {
		if err := json.Unmarshal([]byte(hookJob.Stdin), &received); err != nil {
			t.Fatal(err)
		}
	} else {
		var message struct {
			Type, Timestamp string
			Data            job
		}
		if err := json.Unmarshal([]byte(hookJob.Stdin), &message); err != nil {
			t.Fatal(err)
		}
		moment := strings.TrimPrefix(hookJob.Labels["hook"], "on_")
		if message.Type != "job."+moment || message.Timestamp == "" {
			t.Errorf("the message of %s: %+v", moment, message)
		}
		received = message.Data
	}
	if want := (job{"j", "dead", "false", 3}); received != want || strings.Contains(hookJob.Stdin, "secret") {
		t.Errorf("the input of a hook: got %s, want %+v without the environment", hookJob.Stdin, want)
	}
}

// A receiver drops a message whose id it has received before. So the messages about two outcomes of a job have
// different ids, even if the job did not run between the two outcomes.
func TestWebhookMessagesHaveDifferentIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHooks(t, map[string]string{"webhooks": `{"a": {"url": "https://example.org/a", "secret_file": "/s"}}`})
		draft := queue.Job{ID: "j", ExecutionSettings: queue.ExecutionSettings{Command: "false", Shell: "/bin/sh"}}
		runJobToEnd(t, h, draft, queue.Dead)
		j, err := h.Store.GetJob(t.Context(), "j")
		for _, verb := range []queue.Verb{queue.VerbRetry, queue.VerbCancel} {
			time.Sleep(time.Millisecond)
			if err == nil {
				err = h.Store.ChangeJob(t.Context(), j.Seq, store.JobChange{Verb: verb})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		hookJobs := listHookJobs(t, h)
		var messageIDs []string
		for i := range hookJobs {
			for _, variable := range hookJobs[i].Env {
				if id, ok := strings.CutPrefix(variable, WebhookIDEnvName+"="); ok {
					messageIDs = append(messageIDs, id)
				}
			}
		}
		if len(messageIDs) != 2 || messageIDs[0] == messageIDs[1] {
			t.Errorf("the messages have the ids %q, want two different ids", messageIDs)
		}
	})
}

// Without a program that sends messages, webhooks create no jobs.
func TestWebhooksNeedSenderProgram(t *testing.T) {
	h := newHooks(t, map[string]string{"webhooks": `{"a": {"url": "https://example.org/a", "secret_file": "/s"}}`})
	h.WebhookCommand = nil
	if err := h.ApplyHookSettings(t.Context()); err != nil {
		t.Fatal(err)
	}
	list := runJobToEnd(t, h, queue.Job{ID: "j", ExecutionSettings: queue.ExecutionSettings{Command: "true"}},
		queue.Completed)
	if len(list) > 0 {
		t.Errorf("got the hooks %+v, want none", list)
	}
}

// If the JSON of a job would be too long, it does not contain the command.
func TestHookPayloadOmitsLongCommand(t *testing.T) {
	h := newHooks(t, map[string]string{"hooks.on_ended": "read"})
	long := strings.Repeat("x", maxJobJSONBytes)
	list := runJobToEnd(t, h, queue.Job{ID: "j", ExecutionSettings: queue.ExecutionSettings{Command: long}},
		queue.Completed)
	if len(list) != 1 || len(list[0].Stdin) > maxJobJSONBytes || !strings.Contains(list[0].Stdin, `"hidden":["command"]`) {
		t.Errorf("got %d hooks, want one without the command", len(list))
	}
}

// A user can test a hook of the settings. The test creates one hook job about a made-up job, without retries.
func TestHookTestCreatesOneHookJob(t *testing.T) {
	h := newHooks(t, map[string]string{"hooks.on_dead": "mail ops",
		"webhooks": `{"a": {"url": "https://example.org/a", "secret_file": "/s"}}`})
	m, err := h.NewHookMaker(&h.Settings.CurrentConfig().Settings)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"on_dead": "mail ops", "on-dead": "mail ops", "hooks.on_dead": "mail ops",
		"a": "/queuectld post", "webhooks.a": "/queuectld post", "on_failed": "", "b": ""} {
		got := ""
		drafts := m.HookTestDrafts(name, 1)
		for _, j := range drafts {
			got += j.Command + strings.Join(j.Argv, " ")
			if j.MaxAttempts != 1 || !strings.Contains(j.Stdin, `"id":"test"`) {
				t.Errorf("%s: %d attempts, input %s", name, j.MaxAttempts, j.Stdin)
			}
		}
		if got != want || len(drafts) > 1 {
			t.Errorf("%s: got %d hooks with %q, want %q", name, len(drafts), got, want)
		}
	}
}

// If the account for the hooks of the settings does not exist, the store still creates the hooks that jobs define.
func TestJobHooksWorkWithoutHooksAccount(t *testing.T) {
	h := newHooks(t, map[string]string{"hooks.on_ended": "never"})
	h.JobAccount.UsesPerJobAccount = true
	if err := h.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: map[string]string{
		"hooks.on_ended": "never", "hooks_user": "no-such-user", "run_as": "submitter"}}); err != nil {
		t.Fatal(err)
	}
	if err := h.ApplyHookSettings(context.Background()); err == nil || !strings.Contains(err.Error(), "no-such-user") {
		t.Errorf("got %v, want an error that names the account", err)
	}
	list := runJobToEnd(t, h, queue.Job{ID: "j", HookEvents: queue.HookEnded,
		ExecutionSettings: queue.ExecutionSettings{Command: "true",
			HookCommands: queue.HookCommands{OnEnded: "own"}}}, queue.Completed)
	if len(list) != 1 || list[0].Command != "own" {
		t.Errorf("got the hooks %+v, want that of the job alone", list)
	}
}
