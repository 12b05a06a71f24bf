// Package hooks creates hook jobs. A hook job runs a command or sends a webhook (an HTTP request) when another job
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
	JobAccount     worker.Account // account that the service's jobs run as
	Log            *slog.Logger
	Store          store.Store
	WebhookCommand []string // command line that posts a webhook; empty if webhooks are disabled
	UserDirectory  *access.UserDirectory
	Owners         *access.Owners
	UserQuota      *settings.UserQuota
	Settings       *settings.Keeper
}

// No setting changes these properties of hook jobs. See docs/decisions/0094.
const (
	maxHookAttempts       = 4
	hookTimeout           = 5 * time.Minute
	maxWebhookAttempts    = 11
	webhookBackoffSeconds = 3 // seconds; see queue.BackoffExponential
)

// Names of environment variables for hooks and for the program that sends webhooks.
const (
	hookJobEnvName      = "QUEUECTL_HOOK_JOB"
	hookStateEnvName    = "QUEUECTL_HOOK_STATE"
	hookExitCodeEnvName = "QUEUECTL_HOOK_EXIT_CODE"
	WebhookURLEnvName   = "QUEUECTL_WEBHOOK_URL"
	// WebhookSecretFileEnvName names a file that contains the key for the signature of the message.
	// WebhookIDEnvName contains the id of the message.
	WebhookSecretFileEnvName = "QUEUECTL_WEBHOOK_SECRET_FILE"
	WebhookIDEnvName         = "QUEUECTL_WEBHOOK_ID"
)

// WebhookReceiverGoneExitCode is the exit code with which the program that sends a webhook reports that the receiver
// wants no more messages. The message is then not sent again.
const WebhookReceiverGoneExitCode = 10

// hookMaker creates hook jobs as the settings at one time define them. A hookMaker never changes, so changed settings
// need a new hookMaker. Its methods do not block.
type hookMaker struct {
	hooks        *Hooks
	defaults     queue.JobDefaults
	HookCommands queue.HookCommands // commands in the settings, which run for all jobs
	Webhooks     map[string]config.Webhook
	HookAccount  worker.Account // account that hooks of the settings run as
	// runAsSubmitter means that jobs run as their submitters. The hooks of the settings then run as the account in the
	// setting hooks_user or, if this setting is empty, as the service's own account.
	runAsSubmitter bool
}

// NewHookMaker returns the hookMaker for the settings. If the account in hooks_user does not exist,
// NewHookMaker also returns an error, and the hookMaker creates only the hooks that the jobs themselves define.
func (h *Hooks) NewHookMaker(c *config.Settings) (*hookMaker, error) {
	m := &hookMaker{hooks: h, defaults: c.JobDefaults(), HookCommands: c.Hooks, Webhooks: c.WebhooksByName(),
		HookAccount: h.UserDirectory.AccountByUID(accounts.CurrentUserID()), runAsSubmitter: h.JobAccount.UsesPerJobAccount}
	if !m.runAsSubmitter {
		m.HookAccount = h.JobAccount
	}
	if len(h.WebhookCommand) == 0 {
		m.Webhooks = nil
	}
	name := c.HooksUser
	if name == "" || !m.runAsSubmitter || m.configuredHookEvents() == 0 {
		return m, nil
	}
	a, err := h.UserDirectory.AccountByName(name)
	if err != nil {
		m.HookCommands, m.Webhooks = queue.HookCommands{}, nil
		return m,
			queue.InvalidFieldError("hooks_user", "%q: %v; webhooks and the hooks in the settings do not run until the setting "+
				"hooks_user is correct", name, err)
	}
	m.HookAccount = a
	return m, nil
}

// configuredHookEvents returns the events of a job, such as its failure, for which the settings define a hook or
// webhook.
func (m *hookMaker) configuredHookEvents() (events queue.HookEvents) {
	events = m.HookCommands.EventsWithCommand()
	for _, w := range m.Webhooks {
		events |= w.Events
	}
	return events
}

// ApplyHookSettings makes the store create the hooks that the settings now define. It returns an invalid-setting error
// if the account in hooks_user does not exist.
func (h *Hooks) ApplyHookSettings(ctx context.Context) error {
	m, missing := h.NewHookMaker(&h.Settings.CurrentConfig().Settings)
	if missing != nil {
		h.Log.Error("cannot use the hooks in the settings", "error", missing)
	}
	err := h.Store.SetHooks(ctx, store.HookSettings{TriggerEvents: m.configuredHookEvents(),
		MakeHookDrafts: m.makeHookDrafts,
		OwnerUID:       m.HookAccount.UID,
		OwnerName:      m.HookAccount.UserName, MaxBytesPerUser: h.UserQuota.MaxBytesPerUser()})
	return cmp.Or(err, missing)
}

// makeHookDrafts returns the hook jobs for events of a job, such as its failure. One change of the job's state may
// cause several events.
func (m *hookMaker) makeHookDrafts(j *queue.Job, events queue.HookEvents) (drafts []queue.Job) {
	jobJSON := m.jobJSON(j)
	for _, moment := range queue.AllHookEvents {
		if moment&events == 0 {
			continue
		}
		if line := j.CommandForEvent(moment); line != "" {
			drafts = append(drafts, m.draftJobDefinedHook(j, moment, line, jobJSON))
		}
		if line := m.HookCommands.CommandForEvent(moment); line != "" {
			drafts = append(drafts, m.draftSettingsHook(j, moment, line, jobJSON))
		}
		for _, name := range slices.Sorted(maps.Keys(m.Webhooks)) {
			if w := m.Webhooks[name]; w.WantsEvent(moment, j.Queue) {
				drafts = append(drafts, m.draftWebhook(j, moment, name, &w, jobJSON))
			}
		}
	}
	return drafts
}

// draftJobDefinedHook returns the hook job for a command that job j defines. The hook job runs with the account, shell,
// directory and environment of j.
func (m *hookMaker) draftJobDefinedHook(j *queue.Job, event queue.HookEvents, commandLine, jobJSON string) queue.Job {
	h := m.draftBaseHook(j, event, jobJSON)
	h.UID, h.RunAsUser, h.RunAsUID = j.UID, j.RunAsUser, j.RunAsUID
	h.Command, h.Shell, h.Cwd, h.Umask = commandLine, cmp.Or(j.Shell, m.defaults.Shell), j.Cwd, j.Umask
	h.SecretReferences, h.MaskSecrets = j.SecretReferences, j.MaskSecrets
	h.Env = mergeEnv(j.Env, h.Env)
	return h
}

// draftSettingsHook returns the hook job for a command that the settings define.
func (m *hookMaker) draftSettingsHook(j *queue.Job, event queue.HookEvents, commandLine, jobJSON string) queue.Job {
	h := m.draftBaseHook(j, event, jobJSON)
	m.setHookAccount(&h)
	h.Command, h.Shell = commandLine, m.defaults.Shell
	return h
}

// draftWebhook returns the hook job that sends jobJSON to a webhook.
func (m *hookMaker) draftWebhook(j *queue.Job, event queue.HookEvents, name string, w *config.Webhook,
	jobJSON string) queue.Job {
	h := m.draftBaseHook(j, event, jobJSON)
	m.setHookAccount(&h)
	h.Argv = m.hooks.WebhookCommand
	h.MaxAttempts, h.Backoff = maxWebhookAttempts, queue.Backoff{BaseSeconds: webhookBackoffSeconds,
		Strategy: queue.BackoffExponential}
	h.NoRetryCodes = []int{WebhookReceiverGoneExitCode}
	h.Labels["webhook"] = name
	h.Stdin = fmt.Sprintf(`{"type":"job.%s","timestamp":%q,"data":%s}`, event, j.UpdatedAt.String(), jobJSON)
	// A job can have two outcomes without running in between, such as "dead" and, after a retry, "cancelled". The fence is
	// then the same for both outcomes, so the id also contains the time of the outcome.
	id := fmt.Sprintf("%d.%d.%d.%s", j.Seq, j.Fence, j.UpdatedAt, event)
	h.Env = mergeEnv(h.Env, []string{
		WebhookIDEnvName + "=" + id, WebhookSecretFileEnvName + "=" + w.SecretFile, WebhookURLEnvName + "=" + w.URL,
	})
	return h
}

// draftBaseHook returns a job with the properties that all hook jobs share.
func (m *hookMaker) draftBaseHook(j *queue.Job, event queue.HookEvents, jobJSON string) queue.Job {
	exit := ""
	if j.ExitCode >= 0 {
		exit = fmt.Sprint(j.ExitCode)
	}
	return queue.Job{
		Queue: queue.HookQueue, Priority: m.defaults.Priority, MaxAttempts: maxHookAttempts, State: queue.Pending,
		ExitCode:   -1,
		HookEvents: queue.HookJobFlag,
		ExecutionSettings: queue.ExecutionSettings{
			Umask: 0o022, Stdin: jobJSON, Timeout: hookTimeout, KillAfter: m.defaults.KillAfter, OnLost: queue.OnLostRetry,
			OutputLimitBytes: m.defaults.OutputLimit,
			Env: []string{hookExitCodeEnvName + "=" + exit, hookJobEnvName + "=" + j.ID, hookStateEnvName + "=" +
				j.State.String()},
			Labels: map[string]string{"hook": "on_" + event.String(), "job": j.ID},
		},
	}
}

// setHookAccount makes a hook job that the settings define run as the account for such hooks.
func (m *hookMaker) setHookAccount(hookJob *queue.Job) {
	hookJob.UID, hookJob.RunAsUser, hookJob.HookEvents = m.HookAccount.UID, m.HookAccount.UserName,
		hookJob.HookEvents|queue.SettingsHookFlag
	if m.runAsSubmitter {
		hookJob.RunAsUID = new(m.HookAccount.UID)
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

// jobJSON returns a job as JSON, for the input of a hook. The JSON leaves out the environment. If the JSON would be too
// long, it also leaves out the commands.
func (m *hookMaker) jobJSON(j *queue.Job) string {
	v := control.JobViewContext{CurrentTime: j.UpdatedAt, RunAsUser: cmp.Or(j.RunAsUser,
		m.hooks.Owners.CachedUserName(j.UID))}
	if j.RunAsUID != nil {
		v.OwnerName = m.hooks.Owners.CachedUserName(j.UID)
	}
	view := control.NewJobView(j, v)
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

// HookTestDrafts returns the hook job for the hook or webhook of the settings with this name, or nil if the settings
// define no such hook. The input of the hook job describes a made-up job.
func (m *hookMaker) HookTestDrafts(name string, now queue.UnixMillis) (drafts []queue.Job) {
	defer func() {
		for i := range drafts {
			drafts[i].MaxAttempts = 1 // allow no retries, so that the test shows the result
		}
	}()
	// The user may copy a name from the output of "config list", where it has one of these prefixes.
	name = strings.TrimPrefix(strings.TrimPrefix(name, "webhooks."), "hooks.")
	j := queue.Job{
		ID: "test", Queue: queue.DefaultQueue, UID: m.HookAccount.UID, State: queue.Dead, ExitCode: 1, Attempts: 1,
		StartedAttempts: 1, MaxAttempts: 1, Error: "exit code 1",
		CreatedAt: now, UpdatedAt: now, RunAt: now, StartedAt: now, EndedAt: now, Fence: int64(now),
		ExecutionSettings: queue.ExecutionSettings{Command: "false", RunAsUser: m.HookAccount.UserName},
	}
	jobJSON := m.jobJSON(&j)
	if w, known := m.Webhooks[name]; known {
		return []queue.Job{m.draftWebhook(&j, queue.HookDead, name, &w, jobJSON)}
	}
	for _, moment := range queue.AllHookEvents {
		if line := m.HookCommands.CommandForEvent(moment); line != "" && strings.ReplaceAll(name, "-", "_") == "on_"+
			moment.String() {
			return []queue.Job{m.draftSettingsHook(&j, moment, line, jobJSON)}
		}
	}
	return nil
}
