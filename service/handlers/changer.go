package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// SettingsChanger stores changed settings and puts them into effect.
type SettingsChanger struct {
	*parts
	settingsChanged chan struct{} // wake-up: settings have changed

	// mustReapplyShared makes the next applyShared apply even unchanged stored settings; guarded by Lock.
	mustReapplyShared bool
	sharedSettings    []store.Setting // the settings as last read from the store; guarded by Lock
}

// ChangeSignal returns a channel that gets a value after settings have changed.
func (ch *SettingsChanger) ChangeSignal() <-chan struct{} { return ch.settingsChanged }

// ApplyMaxRunningPerUser passes the limit of running jobs per user to the store.
func ApplyMaxRunningPerUser(ctx context.Context, s store.Store, settings *settings.Keeper) error {
	return s.SetMaxRunningPerUser(ctx, settings.Current().MaxRunningPerUser)
}

// applySettings puts changed settings into effect. It returns a message that says which changes are not in effect yet
// and why, or "".
func (ch *SettingsChanger) applySettings(ctx context.Context) (pending string) {
	ctx = context.WithoutCancel(ctx) // the settings are already stored
	if err := ch.applyToStore(ctx); err != nil {
		pending = fmt.Sprintf("the settings for job order, user limits, resources and hooks could not all be applied (%v); "+
			"to apply them, run: queuectl reload", err)
		ch.Log.Error("the settings for job order, user limits, resources and hooks could not all be applied; to apply "+
			"them, run: queuectl reload", "error", err)
	}
	return cmp.Or(pending, ch.applyLocally())
}

// applyLocally puts the settings into effect everywhere except in the store. It returns a message
// that says which changes are not in effect yet, or "".
func (ch *SettingsChanger) applyLocally() (pending string) {
	ch.Endpoint.UpdateAccess()
	pending = cmp.Or(ch.Page.ApplySettings(), ch.ApplyTraceSettings())
	queue.TrySend(ch.settingsChanged, struct{}{})
	if n := ch.Settings.Current().WorkerCount(); n != ch.Pool.WantedWorkers() {
		ch.Pool.SetWantedWorkers(n)
		ch.LeaseKeeper.AnnounceWorkers()
		return pending
	}
	ch.Pool.ResendSetup()
	return pending
}

// applyToStore passes the settings to the store.
func (ch *SettingsChanger) applyToStore(ctx context.Context) error {
	return errors.Join(ch.Store.SetOrder(ctx, ch.Settings.Current().Order()), ApplyMaxRunningPerUser(ctx, ch.Store,
		ch.Settings),
		ch.Self.StoreNodeRecord(ctx), ch.Hooks.ApplyHooks(ctx))
}

// Reload reads the settings file again. If the file is invalid, the old settings stay in effect. Reload returns
// a message that says which changes are not in effect yet, or "".
func (ch *SettingsChanger) Reload(ctx context.Context) (pending string, err error) {
	ch.BeforeReload()
	defer ch.AfterReload()
	defer ch.Owners.RequestOwnerCheck()
	err = ch.Lock.With(ctx, func() (err error) {
		pending, err = ch.rereadSettings(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	ch.reopenLogs()
	// This is outside the lock, because a slow directory must not delay other changes of settings.
	ch.Rights.ResolveAccess()
	if unknown := ch.Rights.UnknownNamesMessage(); unknown != "" {
		ch.Log.Warn(unknown)
	}
	return pending, nil
}

// reopenLogs opens a new log file if the old one was moved, and makes the runners do the same.
func (ch *SettingsChanger) reopenLogs() {
	if ch.LogFile == nil {
		return // the log is standard error, which belongs to the caller
	}
	if err := logs.Reopen(ch.LogFile, ch.LogFile.Name()); err != nil {
		ch.Log.Error("the log file was moved, and a new one cannot be opened", "error", err)
	}
	ch.RunnerLocation.ReopenLogs()
}

func (ch *SettingsChanger) rereadSettings(ctx context.Context) (pending string, err error) {
	file, err := ch.Settings.ReadFile()
	if err != nil {
		return "", err
	}
	stored, err := ch.Store.Settings(ctx)
	if err != nil {
		return "", err
	}
	if err := ch.checkCanStart(ch.Settings.LayersWithFile(file)); err != nil {
		return "", err
	}
	if err := ch.Settings.ReplaceFile(file); err != nil {
		return "", err
	}
	if err := ch.StoredSettings.mergeStored(stored); err != nil {
		return "", err
	}
	ch.Owners.NameCache.Clear()
	pending = ch.applySettings(ctx)
	if hidden := ch.Settings.Current().OverriddenSettings(config.FromFile); len(hidden) > 0 {
		ch.Log.Warn("settings in the file have no effect, because the environment, a flag of the service or a stored "+
			"setting (queuectl config set) overrides them", "keys", strings.Join(hidden, " "))
	}
	ch.Log.Info("settings reloaded")
	var waits []string
	for _, w := range ch.Settings.Current().PendingRestart() {
		waits = append(waits, w.Name)
	}
	if len(waits) > 0 {
		pending = strings.TrimPrefix(pending+"; a restart of the service is needed for: "+strings.Join(waits, ", "), "; ")
	}
	return pending, nil
}

// unknownRolesMessage returns a message that lists the users in store_roles that do not exist on this machine, or
// "".
func (ch *SettingsChanger) unknownRolesMessage() string {
	var list []string
	for role, name := range ch.Settings.Current().RoleUsers() {
		if _, err := ch.Directory.PeerNamed(name); err != nil {
			list = append(list, fmt.Sprintf("%s (%v)", queue.Clip(role), err))
		}
	}
	if list == nil {
		return ""
	}
	slices.Sort(list)
	return "stored, but the users of these database roles do not exist on this machine; until they do, jobs of the " +
		"roles are refused, or wait if the queue has several nodes: " +
		strings.Join(list, ", ")
}

// changeSetting stores a setting, or removes it if text is empty, and puts it into effect.
func (ch *SettingsChanger) changeSetting(ctx context.Context, k *config.Key, text string) (v control.ConfigValue,
	err error) {
	if k.IsPerNode() {
		return v, queue.Invalid("key", "%s belongs to a single machine, but stored settings apply to the whole queue; set "+
			"it in the settings file or as QUEUECTL_%s", k.Name, strings.ToUpper(k.Name))
	}
	err = ch.applyOnAllNodes(ctx, func() error {
		if text != "" {
			if err := ch.checkStorable(k, text); err != nil {
				return err
			}
		}
		pending, err := ch.put(ctx, store.Setting{Key: k.Name, Value: text, Secret: k.Secret}, "")
		if v = ch.Settings.ValueFor(ctx, k); pending != "" {
			v.Note = "stored, but " + pending
		}
		return err
	})
	if err != nil {
		return v, err
	}
	access := strings.HasPrefix(k.Name, "access.")
	if access {
		// This is outside applyOnAllNodes, because a slow directory must not delay other changes of
		// settings.
		ch.Rights.ResolveAccess()
	}
	strongest := ch.Settings.Current().StrongestOrigin(k.Name)
	switch unknown := ch.Rights.UnknownNamesMessage(); {
	case text != "" && strongest != config.FromStored:
		v.Note = "stored, but no effect: overridden by the " + string(strongest) + " with which the service was started"
	case k.NeedsRestart():
		v.Note = "stored; until the service restarts, the old value applies"
	case access && unknown != "":
		v.Note = unknown
	case k.Name == "store_roles":
		v.Note = ch.unknownRolesMessage()
	}
	return v, nil
}

// put stores a setting as the peer's and puts it into effect. It also sets or removes the
// setting's value in the running layer, where a user may have set the number of workers. It returns a
// message that says which changes are not in effect yet, or "". The caller holds the settings lock.
func (ch *SettingsChanger) put(ctx context.Context, set store.Setting, running string) (pending string, err error) {
	set.UID = control.PeerFrom(ctx).UID
	if err := ch.storeSetting(ctx, set); err != nil {
		return "", err
	}
	if err := ch.Settings.ReplaceValue(set.Key, set.Value, running); err != nil {
		return "", err
	}
	return ch.applySettings(ctx), nil
}

// storeSetting stores a setting. The caller puts it into effect on this node immediately. The caller holds
// lock.
func (ch *SettingsChanger) storeSetting(ctx context.Context, set store.Setting) error {
	ch.mustReapplyShared = true // this makes applyShared apply the stored settings again
	return ch.Store.SetSetting(ctx, set)
}

// changeWorkerCount changes the number of workers. The function count gets the current number and returns the new
// one. Until the service ends, the new number overrides all other sources of the setting.
func (ch *SettingsChanger) changeWorkerCount(ctx context.Context, count func(now int) int) error {
	return ch.applyOnAllNodes(ctx, func() error {
		if ch.Pool.IsStopping() { // reject the change, since the stop has already removed all workers
			return queue.Errorf(queue.CodeUnavailable,
				"the service is stopping; change the number of workers after its next start")
		}
		n := count(ch.Pool.WantedWorkers())
		if n < 0 || n > worker.MaxWorkers {
			return queue.Invalid("count", "the total number of workers would be %d, but must be between 0 and %d", n,
				worker.MaxWorkers)
		}
		text := strconv.Itoa(n)
		_, err := ch.put(ctx, store.Setting{Key: "workers", Value: text}, text)
		return err
	})
}

// applyOnAllNodes calls f while it holds the lock, then asks the other nodes to apply the changed
// settings. A node that does not answer applies the changes when it next reads the database.
func (ch *SettingsChanger) applyOnAllNodes(ctx context.Context, f func() error) error {
	err := ch.Lock.With(ctx, f)
	if err == nil {
		ch.reloadOtherNodes(ctx)
	}
	return err
}

// reloadRequest makes another node apply the settings and drains that are stored for it.
var reloadRequest = cluster.Request{Method: "reload"}

// withServiceRights returns a context for a request that the service itself makes. It is used when the peer of ctx had
// the right to make a change, and the change concerns other nodes too.
func withServiceRights(ctx context.Context) context.Context {
	peer := control.PeerFrom(ctx)
	peer.Right = control.RightAdmin
	return control.WithPeer(ctx, peer)
}

// reloadOtherNodes makes the other nodes apply the settings and drains that are stored for them.
func (ch *SettingsChanger) reloadOtherNodes(ctx context.Context) {
	notifyNodes[control.NoParams](withServiceRights(ctx), ch, reloadRequest)
}

// notifyNodes sends a request to the other nodes and logs which nodes did not answer.
func notifyNodes[R any](ctx context.Context, ch *SettingsChanger, req cluster.Request) []cluster.NodeResult[R] {
	list, err := cluster.Broadcast[R](ctx, ch.Router, req)
	warnUnconfirmed(ch, list)
	if err != nil {
		ch.Log.Warn("cannot notify the other nodes of a settings change; they apply it when they next read the database",
			"error", err)
	}
	return list
}

// warnUnconfirmed logs which nodes have not confirmed a change.
func warnUnconfirmed[R any](ch *SettingsChanger, list []cluster.NodeResult[R]) {
	for i := range list {
		if list[i].Err != nil {
			ch.Log.Warn("a node has not confirmed a settings change; it applies the change when it next reads the database",
				"node", list[i].Node.Name, "error", list[i].Err)
		}
	}
}

// ReloadShared reads the settings and drains stored for all nodes and for this node, and applies them.
func (ch *SettingsChanger) ReloadShared(ctx context.Context) error {
	return errors.Join(ch.Drainer.ReloadNodeDrain(ctx), ch.applyShared(ctx))
}

// applyShared applies the settings and rules that are in the store now.
func (ch *SettingsChanger) applyShared(ctx context.Context) error {
	return ch.Lock.With(ctx, func() error {
		stored, err := ch.Store.Settings(ctx)
		if err != nil {
			return err
		}
		var bound error
		if ch.mustReapplyShared || !slices.Equal(stored, ch.sharedSettings) {
			if err := ch.StoredSettings.ApplyStored(stored); err != nil {
				return err
			}
			ch.sharedSettings = stored
			bound = ch.applyToStore(ctx)
			// If applyToStore failed, the next check calls it again.
			ch.mustReapplyShared = bound != nil && !errors.Is(bound, queue.ErrInvalid)
			ch.applyLocally()
			ch.Drainer.ApplyDrain()
			if paused := ch.Pauses.Current() != nil; paused != ch.Pool.IsAllPaused() {
				ch.Pool.SetAllPaused(paused)
			}
		}
		return errors.Join(bound, ch.QueueRules.LoadRules(ctx), ch.GateRules.LoadGates(ctx))
	})
}

// checkStorable returns an error if storing the setting would keep the service from starting again. A
// stored setting overrides the settings file, and only a running service can change it. checkStorable also
// checks the setting of the web page's address.
func (ch *SettingsChanger) checkStorable(k *config.Key, text string) error {
	isWebListen := k.Name == webListen
	if !k.NeedsRestart() && !isWebListen {
		return nil
	}
	layers := ch.Settings.LayersWithStored(k.Name, text)
	if !isWebListen {
		return ch.checkCanStart(layers)
	}
	c, err := config.Merge(layers...)
	if err != nil {
		return err
	}
	page := dashboardConfig(&c.Settings)
	return page.Check()
}

// checkCanStart returns an error if the service would not start with these layers of settings. It does not check
// values that are already in effect.
func (ch *SettingsChanger) checkCanStart(layers []config.Layer) error {
	c, waiting, err := ch.Settings.MergeLayers(layers)
	if err != nil || !waiting {
		return err
	}
	if _, err = ch.JobAccountFor(&c.Settings); err != nil || ch.Endpoint.SocketInherited() {
		return err
	}
	return ch.Endpoint.CheckSettings(&c.Settings)
}
