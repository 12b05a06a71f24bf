// Package hooks creates hook jobs. They run a command or send a webhook (an HTTP request) when another job
// changes its state, for example when it fails.
//
// Start with Hooks.
package hooks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Hooks creates hook jobs as the settings define them.
type Hooks struct {
	Account        worker.Account // account that the service's jobs run as
	Log            *slog.Logger
	Store          store.Store
	WebhookCommand []string // command line that posts a webhook; empty if webhooks are disabled
	Directory      *access.Directory
	Owners         *access.Owners
	Quota          *settings.Quota
	Settings       *settings.Keeper
}

// No setting changes these properties of hook jobs. See docs/decisions/0094.
const (
	hookAttempts          = 4
	hookTimeout           = 5 * time.Minute
	webhookAttempts       = 11
	webhookBackoffSeconds = 3 // seconds; see queue.Exponential
)

// These are the names of environment variables that hooks, and the program that sends webhooks, get.
const (
	hookJobVariable      = "QUEUECTL_HOOK_JOB"
	hookStateVariable    = "QUEUECTL_HOOK_STATE"
	hookExitCodeVariable = "QUEUECTL_HOOK_EXIT_CODE"
	WebhookURLVariable   = "QUEUECTL_WEBHOOK_URL"
	// WebhookSecretVariable names a file that contains the key for the signature of the message.
	// WebhookIDVariable contains the id of the message.
	WebhookSecretVariable = "QUEUECTL_WEBHOOK_SECRET_FILE"
	WebhookIDVariable     = "QUEUECTL_WEBHOOK_ID"
)

// WebhookGoneExitCode is the exit code with which the program that sends a webhook reports that the receiver
// wants no more messages. The message is then not sent again.
const WebhookGoneExitCode = 10

// hookMaker creates hook jobs as the settings at one time define them. A hookMaker never changes; new
// settings need a new one. Its methods do not block.
type hookMaker struct {
	hooks    *Hooks
	defaults queue.Defaults
	Commands queue.HookCommands // commands in the settings, which run for all jobs
	Webhooks map[string]config.Webhook
	Account  worker.Account // account that hooks of the settings run as
	// runAsSubmitter says that jobs run as their submitters. The hooks of the settings then run as the account
	// in the setting hooks_user or, if it is empty, as the service's own account.
	runAsSubmitter bool
}

// NewHookMaker returns the hookMaker for the settings. If the account in hooks_user does not exist,
// NewHookMaker also returns an error, and the hookMaker creates only the hooks that the jobs themselves define.
func (h *Hooks) NewHookMaker(c *config.Settings) (*hookMaker, error) {
	m := &hookMaker{hooks: h, defaults: c.JobDefaults(), Commands: c.Hooks, Webhooks: c.WebhooksByName(),
		Account: h.Directory.AccountOf(accounts.CurrentUser()), runAsSubmitter: h.Account.RunsAsJobAccount}
	if !m.runAsSubmitter {
		m.Account = h.Account
	}
	if len(h.WebhookCommand) == 0 {
		m.Webhooks = nil
	}
	name := c.HooksUser
	if name == "" || !m.runAsSubmitter || m.hookEvents() == 0 {
		return m, nil
	}
	a, err := h.Directory.AccountNamed(name)
	if err != nil {
		m.Commands, m.Webhooks = queue.HookCommands{}, nil
		return m, queue.Invalid("hooks_user", "%q: %v; webhooks and the hooks in the settings do not run until the setting "+
			"hooks_user is correct", name, err)
	}
	m.Account = a
	return m, nil
}

// hookEvents returns the events of a job, such as its failure, for which the settings define a hook or
// webhook.
func (m *hookMaker) hookEvents() (events queue.HookEvents) {
	events = m.Commands.CommandEvents()
	for _, w := range m.Webhooks {
		events |= w.Events
	}
	return events
}

// ApplyHooks makes the store create the hooks that the settings now define. It returns an invalid-setting error
// if the account in hooks_user does not exist.
func (h *Hooks) ApplyHooks(ctx context.Context) error {
	m, missing := h.NewHookMaker(&h.Settings.Current().Settings)
	if missing != nil {
		h.Log.Error("cannot use the hooks in the settings", "error", missing)
	}
	err := h.Store.SetHooks(ctx, store.Hooks{Triggers: m.hookEvents(), MakeHooks: m.makeHooks, UID: m.Account.UID,
		Owner: m.Account.User, MaxBytesPerUser: h.Quota.MaxBytesPerUser()})
	return cmp.Or(err, missing)
}

// makeHooks returns the hook jobs for events of a job, such as its failure. Several events may occur at the
// same time.
func (m *hookMaker) makeHooks(j *queue.Job, events queue.HookEvents) (drafts []queue.Job) {
	jobJSON := m.jobJSON(j)
	for _, moment := range queue.AllHookEvents {
		if moment&events == 0 {
			continue
		}
		if line := j.CommandFor(moment); line != "" {
			drafts = append(drafts, m.jobHook(j, moment, line, jobJSON))
		}
		if line := m.Commands.CommandFor(moment); line != "" {
			drafts = append(drafts, m.commandHook(j, moment, line, jobJSON))
		}
		for _, name := range slices.Sorted(maps.Keys(m.Webhooks)) {
			if w := m.Webhooks[name]; w.Matches(moment, j.Queue) {
				drafts = append(drafts, m.webhook(j, moment, name, &w, jobJSON))
			}
		}
	}
	return drafts
}

// jobHook returns the hook job for a command that job j defines. The hook job runs with the account, shell,
// directory and environment of j.
func (m *hookMaker) jobHook(j *queue.Job, event queue.HookEvents, commandLine, jobJSON string) queue.Job {
	h := m.baseDraft(j, event, jobJSON)
	h.UID, h.User, h.AsUID = j.UID, j.User, j.AsUID
	h.Command, h.Shell, h.Cwd, h.Umask = commandLine, cmp.Or(j.Shell, m.defaults.Shell), j.Cwd, j.Umask
	h.Secrets, h.MaskSecrets = j.Secrets, j.MaskSecrets
	h.Env = mergeEnv(j.Env, h.Env)
	return h
}

// commandHook returns the hook job for a command that the settings define.
func (m *hookMaker) commandHook(j *queue.Job, event queue.HookEvents, commandLine, jobJSON string) queue.Job {
	h := m.baseDraft(j, event, jobJSON)
	m.setAccount(&h)
	h.Command, h.Shell = commandLine, m.defaults.Shell
	return h
}

// webhook returns the hook job that sends jobJSON to a webhook.
func (m *hookMaker) webhook(j *queue.Job, event queue.HookEvents, name string, w *config.Webhook,
	jobJSON string) queue.Job {
	h := m.baseDraft(j, event, jobJSON)
	m.setAccount(&h)
	h.Argv = m.hooks.WebhookCommand
	h.MaxAttempts, h.Backoff = webhookAttempts, queue.Backoff{Base: webhookBackoffSeconds, Strategy: queue.Exponential}
	h.NoRetryCodes = []int{WebhookGoneExitCode}
	h.Labels["webhook"] = name
	h.Stdin = fmt.Sprintf(`{"type":"job.%s","timestamp":%q,"data":%s}`, event, j.UpdatedAt.String(), jobJSON)
	// The fence stays the same if a job has two outcomes without running in between, such as "dead" and, after a
	// retry, "cancelled". So the id also contains the time of the outcome.
	id := fmt.Sprintf("%d.%d.%d.%s", j.Seq, j.Fence, j.UpdatedAt, event)
	h.Env = mergeEnv(h.Env, []string{
		WebhookIDVariable + "=" + id, WebhookSecretVariable + "=" + w.SecretFile, WebhookURLVariable + "=" + w.URL,
	})
	return h
}

// baseDraft returns a job with the properties that all hook jobs share.
func (m *hookMaker) baseDraft(j *queue.Job, event queue.HookEvents, jobJSON string) queue.Job {
	exit := ""
	if j.ExitCode >= 0 {
		exit = fmt.Sprint(j.ExitCode)
	}
	return queue.Job{
		Queue: queue.HookQueue, Priority: m.defaults.Priority, MaxAttempts: hookAttempts, State: queue.Pending, ExitCode: -1,
		HookEvents: queue.IsHook,
		Execution: queue.Execution{
			Umask: 0o022, Stdin: jobJSON, Timeout: hookTimeout, KillAfter: m.defaults.KillAfter, OnLost: queue.OnLostRetry,
			OutputLimit: m.defaults.OutputLimit,
			Env: []string{hookExitCodeVariable + "=" + exit, hookJobVariable + "=" + j.ID, hookStateVariable + "=" +
				j.State.String()},
			Labels: map[string]string{"hook": "on_" + event.String(), "job": j.ID},
		},
	}
}

// setAccount makes a hook job that the settings define run as the account for such hooks.
func (m *hookMaker) setAccount(hookJob *queue.Job) {
	hookJob.UID, hookJob.User, hookJob.HookEvents = m.Account.UID, m.Account.User,
		hookJob.HookEvents|queue.HookFromSettings
	if m.runAsSubmitter {
		hookJob.AsUID = new(m.Account.UID)
	}
}

// mergeEnv adds variables to an environment, and sorts the result by name. An added variable replaces a
// variable with the same name.
func mergeEnv(env, addedVars []string) (merged []string) {
	named := map[string]string{}
	for _, e := range slices.Concat(env, addedVars) {
		name, _, _ := strings.Cut(e, "=")
		named[name] = e
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		merged = append(merged, named[name])
	}
	return merged
}

// jobJSON returns a job as JSON, for the input of a hook. The JSON leaves out the environment and, if it
// would be too long, also the commands.
func (m *hookMaker) jobJSON(j *queue.Job) string {
	v := control.JobViewContext{CurrentTime: j.UpdatedAt, RunAsUser: cmp.Or(j.User, m.hooks.Owners.CachedUserName(j.UID))}
	if j.AsUID != nil {
		v.Owner = m.hooks.Owners.CachedUserName(j.UID)
	}
	view := control.ViewJob(j, v)
	raw, err := json.Marshal(view)
	if err != nil {
		panic("service: a job that cannot be written: " + err.Error())
	}
	if len(raw) <= maxJobJSONBytes {
		return string(raw)
	}
	view.HiddenParts = []string{"command"}
	view.Command, view.Argv, view.HookCommands = "", nil, queue.HookCommands{}
	raw, _ = json.Marshal(view) // ignore the error: the same view was encoded above, with more fields
	return string(raw)
}

// maxJobJSONBytes is the maximum length of jobJSON's result in bytes. A webhook adds up to 1024 bytes to it.
const maxJobJSONBytes = queue.MaxStdinBytes - 1024

// DraftsForTest returns the hook job for the hook or webhook of the settings with this name, or nil if the
// settings define no such hook. The hook job's input describes an invented job.
func (m *hookMaker) DraftsForTest(name string, now queue.Millis) (drafts []queue.Job) {
	defer func() {
		for i := range drafts {
			drafts[i].MaxAttempts = 1 // allow no retries, so that the test shows the result
		}
	}()
	// The user may copy a name from the output of "config list", where it has one of these prefixes.
	name = strings.TrimPrefix(strings.TrimPrefix(name, "webhooks."), "hooks.")
	j := queue.Job{
		ID: "test", Queue: queue.DefaultQueue, UID: m.Account.UID, State: queue.Dead, ExitCode: 1, Attempts: 1,
		StartedAttempts: 1, MaxAttempts: 1, Error: "exit code 1",
		CreatedAt: now, UpdatedAt: now, RunAt: now, StartedAt: now, EndedAt: now, Fence: int64(now),
		Execution: queue.Execution{Command: "false", User: m.Account.User},
	}
	jobJSON := m.jobJSON(&j)
	if w, known := m.Webhooks[name]; known {
		return []queue.Job{m.webhook(&j, queue.HookDead, name, &w, jobJSON)}
	}
	for _, moment := range queue.AllHookEvents {
		if line := m.Commands.CommandFor(moment); line != "" && strings.ReplaceAll(name, "-", "_") == "on_"+moment.String() {
			return []queue.Job{m.commandHook(&j, moment, line, jobJSON)}
		}
	}
	return nil
}
