package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// storedSettings distributes the settings that the store keeps to the parts that use them.
type storedSettings struct {
	drainState *drainState
	pauses     *allPause
	rights     *rights
	settings   *keeper
}

// settingsLock lets one caller at a time change settings. A change of settings, of the number of workers or of the
// drain takes the lock before it reads the old values. It releases the lock once the change is in effect. Changes
// therefore take effect in the order in which they are stored.
type settingsLock struct {
	token chan struct{} // holds one token while a caller changes settings
}

// changer stores changed settings and puts them into effect.
type changer struct {
	background    bool // a client started the service on demand
	home          runner.Home
	log           *slog.Logger
	logFile       *os.File // the log, if the service must reopen it; otherwise nil
	manager       *Manager
	pool          *worker.Pool
	store         store.Store
	accountChoice *accountChoice
	directory     *directory
	drains        *drains
	endpoint      *endpoint
	gateRules     *gateRules
	hooks         *hooks
	lease         *leaseKeeper
	lock          *settingsLock
	owners        *owners
	page          *webPage
	pauses        *allPause
	queueRules    *queueRules
	rights        *rights
	router        *jobRouter
	self          *thisNode
	settings      *keeper
	stored        *storedSettings
	tracing       *tracing

	settingsChanged chan struct{} // wake-up: settings have changed

	// The next applyShared applies the stored settings even if they look unchanged; guarded by lock.
	reapplyShared  bool
	sharedSettings []store.Setting // the settings as last read from the store; guarded by lock
}

// ownDefaults returns default settings that depend on how the service was started. A service that a Manager
// has started runs all jobs as its own account by default.
func ownDefaults(o *Options, d *directory) map[string]string {
	if o.Manager == nil {
		return nil
	}
	return map[string]string{"run_as": config.Fixed(d.accountOf(accounts.Self()).User)}
}

func (s *storedSettings) setStored(stored []store.Setting) error {
	err := s.mergeStored(stored)
	if err == nil {
		s.rights.resolveAccess()
	}
	return err
}

func (s *storedSettings) mergeStored(stored []store.Setting) error {
	values := map[string]string{}
	drained := false
	var paused *store.Setting
	for i, set := range stored {
		switch set.Key {
		case drainKey:
			drained = true
		case pauseKey:
			paused = &stored[i]
		default:
			values[set.Key] = set.Value
		}
	}
	s.drainState.setAll(drained)
	s.pauses.paused.Store(paused)
	return s.settings.replaceStored(values)
}

// applyUserLimit passes the limit of running jobs per user to the store.
func applyUserLimit(ctx context.Context, s store.Store, settings *keeper) error {
	return s.SetMaxRunningUser(ctx, settings.config.Load().MaxRunningUser)
}

// applyNode sets in the store which jobs this node may claim.
func (t *thisNode) applyNode(ctx context.Context) error {
	return t.store.SetNode(ctx, t.nodeRecord())
}

// newChanger returns a changer. page is nil in read-only mode.
func newChanger(s *Service, e *endpoint, page *webPage) *changer {
	ch := &changer{
		home: s.home, log: s.log, pool: s.pool, store: s.store, settings: s.settings, lock: s.lock, pauses: s.pauses, stored: s.stored,
		queueRules: s.queueRules, gateRules: s.gateRules, owners: s.owners, directory: s.directory, rights: s.rights,
		accountChoice: s.accountChoice(), self: s.self, router: s.router, drains: s.drains, lease: s.lease, hooks: s.hooks,
		tracing: s.tracing, endpoint: e, page: page, settingsChanged: make(chan struct{}, 1),
	}
	if s.opt.Background || s.opt.Manager != nil {
		ch.logFile = s.opt.Log
	}
	return ch
}

// apply puts changed settings into effect. It returns a message that says which changes are not in effect yet
// and why, or "".
func (ch *changer) apply(ctx context.Context) (pending string) {
	ctx = context.WithoutCancel(ctx) // the settings are already stored
	if err := ch.applyToStore(ctx); err != nil {
		pending = fmt.Sprintf("the change could not be applied to the queue (%v); it takes effect when a setting is changed again or the service restarts", err)
		ch.log.Error("cannot apply the changed settings for job order, user limits, resources or hooks; they take effect when a setting is changed again or the service restarts", "error", err)
	}
	return cmp.Or(pending, ch.applyHere())
}

// applyHere puts the settings into effect everywhere except in the store. Like apply, it returns a message
// that says which changes are not in effect yet, or "".
func (ch *changer) applyHere() (pending string) {
	ch.endpoint.updateSocketAccess()
	pending = cmp.Or(ch.page.setWeb(), ch.tracing.setTraces())
	select {
	case ch.settingsChanged <- struct{}{}:
	default: // a wake-up is already pending; upkeep will then see this change too
	}
	if n := ch.settings.config.Load().WorkerCount(); n != ch.pool.Workers() {
		ch.pool.Scale(n)
		select {
		case ch.lease.workersChanged <- struct{}{}:
		default: // a wake-up is already pending; the next lease renewal will send this number too
		}
		return pending
	}
	ch.pool.Refresh()
	return pending
}

// applyToStore passes the settings to the store.
func (ch *changer) applyToStore(ctx context.Context) error {
	return errors.Join(ch.store.SetOrder(ctx, ch.settings.config.Load().Order()), applyUserLimit(ctx, ch.store, ch.settings), ch.self.applyNode(ctx), ch.hooks.applyHooks(ctx))
}

func newSettingsLock() *settingsLock { return &settingsLock{token: make(chan struct{}, 1)} }

// withSettingsLock calls f while it holds the lock, so that no other caller changes
// settings.
func (l *settingsLock) withSettingsLock(ctx context.Context, f func() error) error {
	select {
	case l.token <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.token }()
	return f()
}

// reload reads the settings file again. If the file is invalid, the old settings stay in effect. It returns a
// message that says which changes are not in effect yet, or "".
func (ch *changer) reload(ctx context.Context) (pending string, err error) {
	err = ch.lock.withSettingsLock(ctx, func() (err error) {
		pending, err = ch.rereadSettings(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	ch.reopenLog()
	// This is outside withSettingsLock, because a slow directory must not delay other changes of settings.
	ch.rights.resolveAccess()
	if unknown := ch.rights.unknownNames(); unknown != "" {
		ch.log.Warn(unknown)
	}
	return pending, nil
}

// reopenLog opens a new log file if the old one was moved, and makes the runners do the same.
func (ch *changer) reopenLog() {
	if ch.logFile == nil {
		return // the log is standard error, which belongs to the caller
	}
	if err := logs.Reopen(ch.logFile, ch.logFile.Name()); err != nil {
		ch.log.Error("the log file was moved, and a new one cannot be opened", "error", err)
	}
	ch.home.ReopenLogs()
}

func (ch *changer) rereadSettings(ctx context.Context) (pending string, err error) {
	file, err := ch.settings.readFile()
	if err != nil {
		return "", err
	}
	stored, err := ch.store.Settings(ctx)
	if err != nil {
		return "", err
	}
	if err := ch.checkStart(ch.settings.withFile(file)); err != nil {
		return "", err
	}
	if err := ch.settings.replaceFile(file); err != nil {
		return "", err
	}
	if err := ch.stored.mergeStored(stored); err != nil {
		return "", err
	}
	ch.owners.users.Clear()
	pending = ch.apply(ctx)
	if hidden := ch.settings.config.Load().Hides(config.FromFile); len(hidden) > 0 {
		ch.log.Warn("settings in the file have no effect, because the environment, a flag of the service or a stored setting (queuectl config set) overrides them", "keys", strings.Join(hidden, " "))
	}
	ch.log.Info("settings reloaded")
	var waits []string
	for _, w := range ch.settings.config.Load().Waiting() {
		waits = append(waits, w.Name)
	}
	if len(waits) > 0 {
		pending = strings.TrimPrefix(pending+"; these take effect after a restart of the service: "+strings.Join(waits, ", "), "; ")
	}
	return pending, nil
}

// ConfigList implements control.API.
func (h *Administration) ConfigList(ctx context.Context, _ control.Nothing) (control.ConfigList, error) {
	var list control.ConfigList
	for i := range config.Keys() {
		list.Settings = append(list.Settings, h.settings.valueFor(ctx, &config.Keys()[i]))
	}
	return list, nil
}

// ConfigGet implements control.API.
func (h *Administration) ConfigGet(ctx context.Context, p control.ConfigKey) (control.ConfigValue, error) {
	k, _, err := config.Find(p.Key, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.settings.valueFor(ctx, k), nil
}

// ConfigSet implements control.API.
func (h *Administration) ConfigSet(ctx context.Context, p control.ConfigSet) (control.ConfigValue, error) {
	k, text, err := config.Find(p.Key, string(p.Value))
	if err == nil {
		err = k.Check(text)
	}
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.changes.change(ctx, k, text)
}

// unknownRoles returns a message that lists the users in store_roles that do not exist on this machine, or
// "".
func (ch *changer) unknownRoles() string {
	var list []string
	for role, name := range ch.settings.config.Load().RoleUsers() {
		if _, err := ch.directory.peerNamed(name); err != nil {
			list = append(list, fmt.Sprintf("user %q, who owns the jobs of the database role %q: %v", name, queue.Clip(role), err))
		}
	}
	if list == nil {
		return ""
	}
	slices.Sort(list)
	return "stored, but jobs of these database roles wait or are refused: " + strings.Join(list, "; ")
}

// ConfigUnset implements control.API.
func (h *Administration) ConfigUnset(ctx context.Context, p control.ConfigKey) (control.ConfigValue, error) {
	k, _, err := config.Find(p.Key, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.changes.change(ctx, k, "")
}

// change stores a setting, or removes it if text is empty, and puts it into effect.
func (ch *changer) change(ctx context.Context, k *config.Key, text string) (v control.ConfigValue, err error) {
	if k.Placed() {
		return v, queue.Invalid("key", "%s belongs to a single machine, but stored settings apply to the whole queue; set it in the settings file or as QUEUECTL_%s", k.Name, strings.ToUpper(k.Name))
	}
	err = ch.applyOnAllNodes(ctx, func() error {
		if text != "" {
			if err := ch.checkStorable(k, text); err != nil {
				return err
			}
		}
		v, err = ch.put(ctx, k, text)
		return err
	})
	if err != nil {
		return v, err
	}
	access := strings.HasPrefix(k.Name, "access.")
	if access {
		// This is outside applyOnAllNodes, because a slow directory must not delay other changes of
		// settings.
		ch.rights.resolveAccess()
	}
	strongest := ch.settings.config.Load().Strongest(k.Name)
	switch unknown := ch.rights.unknownNames(); {
	case text != "" && strongest != config.FromStored:
		v.Note = "stored, but no effect: overridden by the " + string(strongest)
	case k.AtStart():
		v.Note = "stored; it takes effect after a restart of the service"
	case access && unknown != "":
		v.Note = unknown
	case k.Name == "store_roles":
		v.Note = ch.unknownRoles()
	}
	return v, nil
}

// put stores a setting and puts it into effect. It also removes the setting's value from the running layer,
// where a user may have set the number of workers. The caller holds the settings lock.
func (ch *changer) put(ctx context.Context, k *config.Key, text string) (control.ConfigValue, error) {
	if err := ch.storeSetting(ctx, store.Setting{Key: k.Name, Value: text, UID: control.PeerFrom(ctx).UID, Secret: k.Secret}); err != nil {
		return control.ConfigValue{}, err
	}
	if err := ch.settings.replaceValue(k.Name, text, ""); err != nil {
		return control.ConfigValue{}, err
	}
	v := ch.settings.valueFor(ctx, k)
	if pending := ch.apply(ctx); pending != "" {
		v.Note = "stored, but " + pending
	}
	return v, nil
}

// storeSetting stores a setting. The caller puts it into effect on this node immediately. The caller holds
// lock.
func (ch *changer) storeSetting(ctx context.Context, set store.Setting) error {
	ch.reapplyShared = true // this makes applyShared apply the stored settings again
	return ch.store.SetSetting(ctx, set)
}

// setWorkers changes the number of workers. The function count gets the current number and returns the new
// one. Until the service ends, the new number overrides all other sources of the setting.
func (ch *changer) setWorkers(ctx context.Context, count func(now int) int) (n int, err error) {
	err = ch.applyOnAllNodes(ctx, func() error {
		if ch.pool.Stopping() { // reject the change, since the stop has already removed all workers
			return queue.Errorf(queue.CodeUnavailable, "the service is stopping; change the number of workers after its next start")
		}
		n = count(ch.pool.Workers())
		return ch.putWorkers(ctx, n)
	})
	return n, err
}

func (ch *changer) putWorkers(ctx context.Context, n int) error {
	if n < 0 || n > worker.MaxWorkers {
		return queue.Invalid("count", "must be between 0 and %[2]d, not %[1]d", n, worker.MaxWorkers)
	}
	text := strconv.Itoa(n)
	if err := ch.storeSetting(ctx, store.Setting{Key: "workers", Value: text, UID: control.PeerFrom(ctx).UID}); err != nil {
		return err
	}
	err := ch.settings.replaceValue("workers", text, text)
	if err == nil {
		ch.apply(ctx)
	}
	return err
}
