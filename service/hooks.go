package service

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
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// hooks creates hook jobs as defined by the settings.
type hooks struct {
	account   worker.Account // account that jobs run as
	log       *slog.Logger
	store     store.Store
	webhook   []string // command line that posts a webhook; empty if webhooks are disabled
	directory *directory
	owners    *owners
	quota     *quota
	settings  *keeper
}

// These properties of hook jobs are fixed: no setting changes them. See docs/decisions/0094.
const (
	hookAttempts    = 4
	hookTimeout     = 5 * time.Minute
	webhookAttempts = 11
	webhookBase     = 3 // seconds; see queue.Exponential
)

// Environment variables of a hook, and of the program that posts a webhook.
const (
	hookJob    = "QUEUECTL_HOOK_JOB"
	hookState  = "QUEUECTL_HOOK_STATE"
	hookExit   = "QUEUECTL_HOOK_EXIT_CODE"
	WebhookURL = "QUEUECTL_WEBHOOK_URL"
	// WebhookSecret names a file whose content signs the message. WebhookID is the message's id.
	WebhookSecret = "QUEUECTL_WEBHOOK_SECRET_FILE"
	WebhookID     = "QUEUECTL_WEBHOOK_ID"
)

// WebhookGone is the exit code of the posting program if the receiver answers that it wants no more
// messages. The message is then not sent again.
const WebhookGone = 10

// hookMaker creates hook jobs as defined by the settings. It is immutable and does not block.
type hookMaker struct {
	h        *hooks
	defaults queue.Defaults
	lines    queue.HookLines // commands of the settings, which run for all jobs
	webhooks map[string]config.Webhook
	account  worker.Account // account that the hooks of the settings run as
	// runAsSubmitter is set if jobs run as their submitters. The hooks of the settings must then name the
	// account that they run as.
	runAsSubmitter bool
}

// newHookMaker returns the hookMaker for the settings. If the account in hooks_user does not exist,
// newHookMaker also returns an error, and the hookMaker creates only the hooks that jobs define.
func (h *hooks) newHookMaker(c *config.Settings) (*hookMaker, error) {
	m := &hookMaker{h: h, defaults: c.Defaults(), lines: c.Hooks, webhooks: c.WebhooksByName(), account: h.directory.accountOf(accounts.Self()), runAsSubmitter: h.account.Each}
	if !m.runAsSubmitter {
		m.account = h.account
	}
	if len(h.webhook) == 0 {
		m.webhooks = nil
	}
	name := c.HooksAs()
	if name == "" || !m.runAsSubmitter || m.moments() == 0 {
		return m, nil
	}
	a, err := h.directory.accountNamed(name)
	if err != nil {
		m.lines, m.webhooks = queue.HookLines{}, nil
		return m, queue.Invalid("hooks_user", "%q: %v; webhooks and the hooks in the settings do not run until the setting hooks_user is correct", name, err)
	}
	m.account = a
	return m, nil
}

// moments returns the moments of a job's life, such as its failure, for which the settings define a hook.
func (m *hookMaker) moments() (moments queue.HookSet) {
	moments = m.lines.Set()
	for _, w := range m.webhooks {
		moments |= w.Events
	}
	return moments
}

// applyHooks makes the store create hooks as defined by the settings. It returns an invalid-setting error if
// the account in hooks_user does not exist.
func (h *hooks) applyHooks(ctx context.Context) error {
	m, missing := h.newHookMaker(&h.settings.config.Load().Settings)
	if missing != nil {
		h.log.Error("cannot use the hooks in the settings", "error", missing)
	}
	err := h.store.SetHooks(ctx, store.Hooks{On: m.moments(), Make: m.make, UID: m.account.UID, Owner: m.account.User, MaxBytesUser: h.quota.maxBytesUser()})
	return cmp.Or(err, missing)
}

// make returns the hooks for a job that has reached some moments of its life, such as its failure.
func (m *hookMaker) make(j *queue.Job, moments queue.HookSet) (drafts []queue.Job) {
	jobJSON := m.jobJSON(j)
	for _, moment := range queue.Hooks {
		if moment&moments == 0 {
			continue
		}
		if line := j.At(moment); line != "" {
			drafts = append(drafts, m.ownHook(j, moment, line, jobJSON))
		}
		drafts = append(drafts, m.settingsHooks(j, moment, jobJSON)...)
	}
	return drafts
}

// settingsHooks returns the hooks that the settings define for one moment of a job's life.
func (m *hookMaker) settingsHooks(j *queue.Job, moment queue.HookSet, jobJSON string) (drafts []queue.Job) {
	if line := m.lines.At(moment); line != "" {
		drafts = append(drafts, m.lineHook(j, moment, line, jobJSON))
	}
	for _, name := range slices.Sorted(maps.Keys(m.webhooks)) {
		if w := m.webhooks[name]; w.Wants(moment, j.Queue) {
			drafts = append(drafts, m.webhook(j, moment, name, &w, jobJSON))
		}
	}
	return drafts
}

// ownHook returns the hook that the job itself defines. The hook runs with the job's account, shell,
// directory and environment.
func (m *hookMaker) ownHook(j *queue.Job, moment queue.HookSet, line, jobJSON string) queue.Job {
	h := m.draft(j, moment, jobJSON)
	h.UID, h.User, h.AsUID = j.UID, j.User, j.AsUID
	h.Command, h.Shell, h.Cwd, h.Umask = line, cmp.Or(j.Shell, m.defaults.Shell), j.Cwd, j.Umask
	h.Secrets, h.MaskSecrets = j.Secrets, j.MaskSecrets
	h.Env = withVariables(j.Env, h.Env)
	return h
}

// lineHook returns a hook that the settings define as a shell command.
func (m *hookMaker) lineHook(j *queue.Job, moment queue.HookSet, line, jobJSON string) queue.Job {
	h := m.draft(j, moment, jobJSON)
	m.setAccount(&h)
	h.Command, h.Shell = line, m.defaults.Shell
	return h
}

// webhook returns a job that posts jobJSON to a webhook.
func (m *hookMaker) webhook(j *queue.Job, moment queue.HookSet, name string, w *config.Webhook, jobJSON string) queue.Job {
	h := m.draft(j, moment, jobJSON)
	m.setAccount(&h)
	h.Argv = m.h.webhook
	h.MaxAttempts, h.Backoff = webhookAttempts, queue.Backoff{Base: webhookBase, Strategy: queue.Exponential}
	h.NoRetryCodes = []int{WebhookGone}
	h.Labels["webhook"] = name
	h.Stdin = fmt.Sprintf(`{"type":"job.%s","timestamp":%q,"data":%s}`, moment, j.UpdatedAt.String(), jobJSON)
	h.Env = withVariables(h.Env, []string{
		WebhookID + "=" + fmt.Sprintf("%d.%d.%s", j.Seq, j.Fence, moment), WebhookSecret + "=" + w.SecretFile, WebhookURL + "=" + w.URL,
	})
	return h
}

// draft returns a job with the properties that all hooks share.
func (m *hookMaker) draft(j *queue.Job, moment queue.HookSet, jobJSON string) queue.Job {
	exit := ""
	if j.ExitCode >= 0 {
		exit = fmt.Sprint(j.ExitCode)
	}
	return queue.Job{
		Queue: queue.HookQueue, Priority: m.defaults.Priority, MaxAttempts: hookAttempts, State: queue.Pending, ExitCode: -1, Hooks: queue.HookItself,
		Execution: queue.Execution{
			Umask: 0o022, Stdin: jobJSON, Timeout: hookTimeout, KillAfter: m.defaults.KillAfter, OnLost: queue.OnLostRetry, OutputLimit: m.defaults.OutputLimit,
			Env:    []string{hookExit + "=" + exit, hookJob + "=" + j.ID, hookState + "=" + j.State.String()},
			Labels: map[string]string{"hook": "on_" + moment.String(), "job": j.ID},
		},
	}
}

// setAccount makes a hook run as the account that the settings define for their hooks.
func (m *hookMaker) setAccount(h *queue.Job) {
	h.UID, h.User, h.Hooks = m.account.UID, m.account.User, h.Hooks|queue.HookSettings
	if m.runAsSubmitter {
		h.AsUID = new(m.account.UID)
	}
}

// withVariables adds variables to an environment, sorted by name. An added variable replaces a variable
// with the same name.
func withVariables(env, others []string) (all []string) {
	named := map[string]string{}
	for _, e := range slices.Concat(env, others) {
		name, _, _ := strings.Cut(e, "=")
		named[name] = e
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		all = append(all, named[name])
	}
	return all
}

// jobJSON returns a job as JSON, in the format of show but without the environment. If the text would be too
// long, it also omits the command.
func (m *hookMaker) jobJSON(j *queue.Job) string {
	v := control.View{Now: j.UpdatedAt, User: cmp.Or(j.User, m.h.owners.knownName(j.UID))}
	if j.AsUID != nil {
		v.Owner = m.h.owners.knownName(j.UID)
	}
	view := control.ViewJob(j, v)
	raw, err := json.Marshal(view)
	if err != nil {
		panic("service: a job that cannot be written: " + err.Error())
	}
	if len(raw) <= maxJobJSON {
		return string(raw)
	}
	view.Hidden = []string{"command"}
	view.Command, view.Argv, view.HookLines = "", nil, queue.HookLines{}
	raw, _ = json.Marshal(view) // ignore the error: the same view was encoded above, with more fields
	return string(raw)
}

// maxJobJSON is the maximum length of the JSON of a job in a hook's input, in bytes. The remaining 1024
// bytes are for what a webhook adds.
const maxJobJSON = queue.MaxStdin - 1024

// knownName returns the name of a uid, or its number if the name is not cached. It does not query the system.
func (o *owners) knownName(uid int) string {
	if name, ok := o.users.Load(uid); ok {
		return name.(string)
	}
	return cmp.Or(o.nameOf(uid), fmt.Sprint(uid))
}

// HookTest implements control.API.
func (h *Administration) HookTest(ctx context.Context, p control.HookName) (control.Enqueued, error) {
	m, err := h.hooks.newHookMaker(&h.settings.config.Load().Settings)
	if err != nil {
		return control.Enqueued{}, err
	}
	drafts := m.test(p.Name, h.store.Now())
	if len(drafts) == 0 {
		names := slices.Sorted(maps.Keys(m.webhooks))
		for _, moment := range queue.Hooks {
			if m.lines.At(moment) != "" {
				names = append(names, "on_"+moment.String())
			}
		}
		return control.Enqueued{}, queue.Errorf(queue.CodeNotFound, "the settings have no hook or webhook %q%s", p.Name, cmp.Or(queue.Nearest(p.Name, names), "; see: queuectl config list"))
	}
	if err := h.runAs.mayRun(h.account.RunsAs(&drafts[0])); err != nil {
		return control.Enqueued{}, err
	}
	if err := h.guard.audit(ctx, "hook.test", p.Name, nil); err != nil {
		return control.Enqueued{}, err
	}
	receipt, err := h.store.Enqueue(ctx, store.Request{Drafts: drafts, UID: m.account.UID, Owner: m.account.User})
	if err != nil {
		return control.Enqueued{}, err
	}
	return control.Enqueued{ID: receipt.IDs[0], Seq: receipt.Seqs[0]}, nil
}

// test returns the hook or webhook of the settings with the given name. Its input describes an invented
// job.
func (m *hookMaker) test(name string, now queue.Millis) (drafts []queue.Job) {
	defer func() {
		for i := range drafts {
			drafts[i].MaxAttempts = 1 // allow no retries, so that the test shows the result
		}
	}()
	// The user may copy a name from the output of config list, where it has one of these prefixes.
	name = strings.TrimPrefix(strings.TrimPrefix(name, "webhooks."), "hooks.")
	j := queue.Job{
		ID: "test", Queue: queue.DefaultQueue, UID: m.account.UID, State: queue.Dead, ExitCode: 1, Attempts: 1, Runs: 1, MaxAttempts: 1, Error: "exit code 1",
		CreatedAt: now, UpdatedAt: now, RunAt: now, StartedAt: now, EndedAt: now, Fence: int64(now), Execution: queue.Execution{Command: "false", User: m.account.User},
	}
	jobJSON := m.jobJSON(&j)
	if w, known := m.webhooks[name]; known {
		return []queue.Job{m.webhook(&j, queue.HookDead, name, &w, jobJSON)}
	}
	for _, moment := range queue.Hooks {
		if line := m.lines.At(moment); line != "" && strings.ReplaceAll(name, "-", "_") == "on_"+moment.String() {
			return []queue.Job{m.lineHook(&j, moment, line, jobJSON)}
		}
	}
	return nil
}
