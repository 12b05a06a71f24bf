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

// Changer stores changed settings and puts them into effect.
type Changer struct {
	*parts
	settingsChanged chan struct{} // wake-up: settings have changed

	// reapplyShared makes the next applyShared apply even unchanged stored settings; guarded by Lock.
	reapplyShared  bool
	sharedSettings []store.Setting // the settings as last read from the store; guarded by Lock
}

// Changed returns a channel that gets a value after settings have changed.
func (ch *Changer) Changed() <-chan struct{} { return ch.settingsChanged }

// ApplyUserLimit passes the limit of running jobs per user to the store.
func ApplyUserLimit(ctx context.Context, s store.Store, settings *settings.Keeper) error {
	return s.SetMaxRunningUser(ctx, settings.Current().MaxRunningUser)
}

// apply puts changed settings into effect. It returns a message that says which changes are not in effect yet
// and why, or "".
func (ch *Changer) apply(ctx context.Context) (pending string) {
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
func (ch *Changer) applyLocally() (pending string) {
	ch.Endpoint.UpdateAccess()
	pending = cmp.Or(ch.Page.SetWeb(), ch.SetTraces())
	select {
	case ch.settingsChanged <- struct{}{}:
	default: // a wake-up is already pending; upkeep will then see this change too
	}
	if n := ch.Settings.Current().WorkerCount(); n != ch.Pool.Workers() {
		ch.Pool.Scale(n)
		ch.Lease.AnnounceWorkers()
		return pending
	}
	ch.Pool.Refresh()
	return pending
}

// applyToStore passes the settings to the store.
func (ch *Changer) applyToStore(ctx context.Context) error {
	return errors.Join(ch.Store.SetOrder(ctx, ch.Settings.Current().Order()), ApplyUserLimit(ctx, ch.Store, ch.Settings),
		ch.Self.ApplyNode(ctx), ch.Hooks.ApplyHooks(ctx))
}

// Reload reads the settings file again. If the file is invalid, the old settings stay in effect. Reload returns
// a message that says which changes are not in effect yet, or "".
func (ch *Changer) Reload(ctx context.Context) (pending string, err error) {
	ch.BeforeReload()
	defer ch.AfterReload()
	defer ch.Owners.RequestCheck()
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
	if unknown := ch.Rights.UnknownNames(); unknown != "" {
		ch.Log.Warn(unknown)
	}
	return pending, nil
}

// reopenLogs opens a new log file if the old one was moved, and makes the runners do the same.
func (ch *Changer) reopenLogs() {
	if ch.LogFile == nil {
		return // the log is standard error, which belongs to the caller
	}
	if err := logs.Reopen(ch.LogFile, ch.LogFile.Name()); err != nil {
		ch.Log.Error("the log file was moved, and a new one cannot be opened", "error", err)
	}
	ch.Home.ReopenLogs()
}

func (ch *Changer) rereadSettings(ctx context.Context) (pending string, err error) {
	file, err := ch.Settings.ReadFile()
	if err != nil {
		return "", err
	}
	stored, err := ch.Store.Settings(ctx)
	if err != nil {
		return "", err
	}
	if err := ch.checkStart(ch.Settings.WithFile(file)); err != nil {
		return "", err
	}
	if err := ch.Settings.ReplaceFile(file); err != nil {
		return "", err
	}
	if err := ch.StoredSettings.mergeStored(stored); err != nil {
		return "", err
	}
	ch.Owners.Users.Clear()
	pending = ch.apply(ctx)
	if hidden := ch.Settings.Current().Overridden(config.FromFile); len(hidden) > 0 {
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

// unknownRoles returns a message that lists the users in store_roles that do not exist on this machine, or
// "".
func (ch *Changer) unknownRoles() string {
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

// change stores a setting, or removes it if text is empty, and puts it into effect.
func (ch *Changer) change(ctx context.Context, k *config.Key, text string) (v control.ConfigValue, err error) {
	if k.PerNode() {
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
	switch unknown := ch.Rights.UnknownNames(); {
	case text != "" && strongest != config.FromStored:
		v.Note = "stored, but no effect: overridden by the " + string(strongest) + " with which the service was started"
	case k.AtStart():
		v.Note = "stored; until the service restarts, the old value applies"
	case access && unknown != "":
		v.Note = unknown
	case k.Name == "store_roles":
		v.Note = ch.unknownRoles()
	}
	return v, nil
}

// put stores a setting as the peer's and puts it into effect. It also sets or removes the setting's value in the
// running layer, where a user may have set the number of workers. It returns a message that says which changes are
// not in effect yet, or "". The caller holds the settings lock.
func (ch *Changer) put(ctx context.Context, set store.Setting, running string) (pending string, err error) {
	set.UID = control.PeerFrom(ctx).UID
	if err := ch.storeSetting(ctx, set); err != nil {
		return "", err
	}
	if err := ch.Settings.ReplaceValue(set.Key, set.Value, running); err != nil {
		return "", err
	}
	return ch.apply(ctx), nil
}

// storeSetting stores a setting. The caller puts it into effect on this node immediately. The caller holds
// lock.
func (ch *Changer) storeSetting(ctx context.Context, set store.Setting) error {
	ch.reapplyShared = true // this makes applyShared apply the stored settings again
	return ch.Store.SetSetting(ctx, set)
}

// setWorkers changes the number of workers. The function count gets the current number and returns the new
// one. Until the service ends, the new number overrides all other sources of the setting.
func (ch *Changer) setWorkers(ctx context.Context, count func(now int) int) error {
	return ch.applyOnAllNodes(ctx, func() error {
		if ch.Pool.Stopping() { // reject the change, since the stop has already removed all workers
			return queue.Errorf(queue.CodeUnavailable,
				"the service is stopping; change the number of workers after its next start")
		}
		n := count(ch.Pool.Workers())
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
func (ch *Changer) applyOnAllNodes(ctx context.Context, f func() error) error {
	err := ch.Lock.With(ctx, f)
	if err == nil {
		ch.reloadOtherNodes(ctx)
	}
	return err
}

// reloadRequest makes another node apply the settings and drains that are stored for it.
var reloadRequest = cluster.Request{Method: "reload"}

// asService returns a context for a request that the service itself makes. It is used when the peer of ctx had
// the right to make a change, and the change concerns other nodes too.
func asService(ctx context.Context) context.Context {
	peer := control.PeerFrom(ctx)
	peer.Right = control.Admin
	return control.WithPeer(ctx, peer)
}

// reloadOtherNodes makes the other nodes apply the settings and drains that are stored for them.
func (ch *Changer) reloadOtherNodes(ctx context.Context) {
	notifyNodes[control.Nothing](asService(ctx), ch, reloadRequest)
}

// notifyNodes sends a request to the other nodes and logs which nodes did not answer.
func notifyNodes[R any](ctx context.Context, ch *Changer, req cluster.Request) []cluster.NodeResult[R] {
	list, err := cluster.Broadcast[R](ctx, ch.Router, req)
	warnUnconfirmed(ch, list)
	if err != nil {
		ch.Log.Warn("cannot notify the other nodes of a settings change; they apply it when they next read the database",
			"error", err)
	}
	return list
}

// warnUnconfirmed logs which nodes have not confirmed a change.
func warnUnconfirmed[R any](ch *Changer, list []cluster.NodeResult[R]) {
	for i := range list {
		if list[i].Err != nil {
			ch.Log.Warn("a node has not confirmed a settings change; it applies the change when it next reads the database",
				"node", list[i].Node.Name, "error", list[i].Err)
		}
	}
}

// ReloadShared reads the settings and drains stored for all nodes and for this node, and applies them.
func (ch *Changer) ReloadShared(ctx context.Context) error {
	return errors.Join(ch.Drains.ReadDrained(ctx), ch.applyShared(ctx))
}

// applyShared applies the settings and rules that are in the store now.
func (ch *Changer) applyShared(ctx context.Context) error {
	return ch.Lock.With(ctx, func() error {
		stored, err := ch.Store.Settings(ctx)
		if err != nil {
			return err
		}
		var bound error
		if ch.reapplyShared || !slices.Equal(stored, ch.sharedSettings) {
			if err := ch.StoredSettings.SetStored(stored); err != nil {
				return err
			}
			ch.sharedSettings = stored
			bound = ch.applyToStore(ctx)
			// If applyToStore failed, the next check calls it again.
			ch.reapplyShared = bound != nil && !errors.Is(bound, queue.ErrInvalid)
			ch.applyLocally()
			ch.Drains.ApplyDrain()
			if paused := ch.Pauses.Current() != nil; paused != ch.Pool.AllPaused() {
				ch.Pool.PauseAll(paused)
			}
		}
		return errors.Join(bound, ch.QueueRules.LoadRules(ctx), ch.GateRules.LoadGates(ctx))
	})
}

// checkStorable returns an error if storing the setting would keep the service from starting again. A
// stored setting overrides the settings file, and only a running service can change it. checkStorable also
// checks the setting of the web page's address.
func (ch *Changer) checkStorable(k *config.Key, text string) error {
	isWebListen := k.Name == webListen
	if !k.AtStart() && !isWebListen {
		return nil
	}
	layers := ch.Settings.WithStored(k.Name, text)
	if !isWebListen {
		return ch.checkStart(layers)
	}
	c, err := config.Merge(layers...)
	if err != nil {
		return err
	}
	page := dashboardConfig(&c.Settings)
	return page.Check()
}

// checkStart returns an error if the service would not start with these layers of settings. It does not check
// values that are already in effect.
func (ch *Changer) checkStart(layers []config.Layer) error {
	c, waiting, err := ch.Settings.MergeWaiting(layers)
	if err != nil || !waiting {
		return err
	}
	if _, err = ch.AccountBy(&c.Settings); err != nil || ch.Endpoint.Inherited() {
		return err
	}
	return ch.Endpoint.CheckSettings(&c.Settings)
}
