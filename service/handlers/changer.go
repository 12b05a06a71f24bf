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
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// SettingsChangedSignal returns a channel that gets a value after settings have changed.
func (h *API) SettingsChangedSignal() <-chan struct{} { return h.settingsChanged }

// applySettings applies changed settings to all parts of the service and to the store. pendingMessage says which
// changes are not in effect yet and why. It is "" if all are in effect.
func (h *API) applySettings(ctx context.Context) (pendingMessage string) {
	ctx = context.WithoutCancel(ctx) // the settings are already stored
	if err := h.applySettingsToStore(ctx); err != nil {
		pendingMessage = fmt.Sprintf("the settings for job order, user limits, resources and hooks "+
			"could not all be applied (%v); to apply them, run: queuectl reload", err)
		h.Log.Error("the settings for job order, user limits, resources and hooks could not all be applied; to apply "+
			"them, run: queuectl reload", "error", err)
	}
	return cmp.Or(pendingMessage, h.applySettingsLocally())
}

// applySettingsLocally applies the settings to all parts of the service except the store. pendingMessage says which
// changes are not in effect yet.
func (h *API) applySettingsLocally() (pendingMessage string) {
	h.UpdateSocketAccess()
	pendingMessage = cmp.Or(h.ApplyWebSettings(), h.ApplyTraceSettings())
	queue.TrySend(h.settingsChanged, struct{}{})
	if n := h.Settings.CurrentConfig().WorkerCount(); n != h.Pool.WantedWorkerCount() {
		h.Pool.SetWantedWorkerCount(n)
		h.NodeLeaseKeeper.AnnounceWorkerCount()
		return pendingMessage
	}
	h.Pool.ResendRunnerSetup()
	return pendingMessage
}

// applySettingsToStore passes the settings to the store.
func (h *API) applySettingsToStore(ctx context.Context) error {
	c := h.Settings.CurrentConfig()
	return errors.Join(h.Store.SetRankOrder(ctx, c.JobOrder()), h.Store.SetMaxRunningPerUser(ctx, c.MaxRunningPerUser),
		h.NodeRegistry.StoreNodeRecord(ctx), h.Hooks.ApplyHookSettings(ctx))
}

// ReloadSettings reads the settings file again and applies it. If the file is invalid, the old settings stay in effect.
// pendingMessage says which changes are not in effect yet.
func (h *API) ReloadSettings(ctx context.Context) (pendingMessage string, err error) {
	h.BeforeSettingsReload()
	defer h.AfterSettingsReload()
	defer h.Owners.RequestOwnerNameCheck()
	err = h.SettingsLock.RunLocked(ctx, func() (err error) {
		pendingMessage, err = h.reloadAllSettings(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	h.reopenLogs()
	// Hold no lock here, because a slow directory of users must not delay other changes of settings.
	h.Rights.ResolveAccessSettings()
	if unknown := h.Rights.UnknownAccessNamesMessage(); unknown != "" {
		h.Log.Warn(unknown)
	}
	return pendingMessage, nil
}

// reopenLogs opens a new log file if the old one was moved, for example by logrotate. It makes the runners do the same
// with their log files.
func (h *API) reopenLogs() {
	if h.LogFile == nil {
		return // the log is standard error, so there is no file
	}
	if err := logs.ReopenIfMoved(h.LogFile, h.LogFile.Name()); err != nil {
		h.Log.Error("the log file was moved, and a new one cannot be opened", "error", err)
	}
	h.RunnerLocation.ReopenRunnerLogs()
}

// reloadAllSettings reads the settings file and the stored settings, and applies them. pendingMessage says which
// changes are not in effect yet. The caller holds the settings lock.
func (h *API) reloadAllSettings(ctx context.Context) (pendingMessage string, err error) {
	file, err := h.Settings.ReadFileLayer()
	if err != nil {
		return "", err
	}
	stored, err := h.Store.Settings(ctx)
	if err != nil {
		return "", err
	}
	if err := h.checkServiceCanStart(h.Settings.PreviewFile(file)); err != nil {
		return "", err
	}
	if err := h.Settings.ReplaceFileLayer(file); err != nil {
		return "", err
	}
	if err := ApplyStoredSettings(stored, h.DrainState, h.PauseOfAllJobs, h.Settings); err != nil {
		return "", err
	}
	h.Owners.AdmittedPeerNameByUID.Clear()
	pendingMessage = h.applySettings(ctx)
	if hidden := h.Settings.CurrentConfig().OverriddenSettings(config.FromFile); len(hidden) > 0 {
		h.Log.Warn("settings in the file have no effect, because the environment, a flag of the service or a stored "+
			"setting (queuectl config set) overrides them", "keys", strings.Join(hidden, " "))
	}
	h.Log.Info("settings reloaded")
	var restartKeys []string
	for _, w := range h.Settings.CurrentConfig().SettingsPendingRestart() {
		restartKeys = append(restartKeys, w.Name)
	}
	if len(restartKeys) > 0 {
		pendingMessage = strings.TrimPrefix(pendingMessage+"; a restart of the service is needed for: "+
			strings.Join(restartKeys, ", "), "; ")
	}
	return pendingMessage, nil
}

// unknownRoleUsersMessage returns a message that lists the users in the setting store_roles that do not exist on this
// machine. It returns "" if all of these users exist.
func (h *API) unknownRoleUsersMessage() string {
	var unknownRoles []string
	for role, name := range h.Settings.CurrentConfig().UsersByStoreRole() {
		if _, err := h.UserDirectory.PeerByName(name); err != nil {
			unknownRoles = append(unknownRoles, fmt.Sprintf("%s (%v)", queue.ClipForMessage(role), err))
		}
	}
	if unknownRoles == nil {
		return ""
	}
	slices.Sort(unknownRoles)
	return "stored, but the users of these database roles do not exist on this machine; until they do, jobs of the " +
		"roles are refused, or wait if the queue has several nodes: " + strings.Join(unknownRoles, ", ")
}

// changeSetting stores a setting and applies it. An empty newValue removes the stored setting.
func (h *API) changeSetting(
	ctx context.Context, setting *config.Setting, newValue string,
) (v control.ConfigValue, err error) {
	if setting.IsPerNode() {
		return v,
			queue.InvalidFieldError("key", "%s belongs to a single machine, but stored settings apply to the whole queue; set "+
				"it in the settings file or as QUEUECTL_%s", setting.Name, strings.ToUpper(setting.Name))
	}
	err = h.applyOnAllNodes(ctx, func() error {
		if newValue != "" {
			if err := h.checkSettingStorable(setting, newValue); err != nil {
				return err
			}
		}
		pending, err := h.storeAndApplySetting(ctx, store.Setting{Key: setting.Name, Value: newValue,
			IsSecret: setting.AdminOnly}, "")
		if v = h.Settings.VisibleValue(ctx, setting); pending != "" {
			v.Hint = "stored, but " + pending
		}
		return err
	})
	if err != nil {
		return v, err
	}
	access := strings.HasPrefix(setting.Name, "access.")
	if access {
		// Hold no lock here, because a slow directory of users must not delay other changes of settings.
		h.Rights.ResolveAccessSettings()
	}
	strongest := h.Settings.CurrentConfig().StrongestOrigin(setting.Name)
	switch unknown := h.Rights.UnknownAccessNamesMessage(); {
	case newValue != "" && strongest != config.FromQueueStore:
		v.Hint = "stored, but no effect: overridden by the " + string(strongest) + " with which the service was started"
	case setting.NeedsRestart():
		v.Hint = "stored; until the service restarts, the old value applies"
	case access && unknown != "":
		v.Hint = unknown
	case setting.Name == "store_roles":
		v.Hint = h.unknownRoleUsersMessage()
	}
	return v, nil
}

// storeAndApplySetting stores a setting on behalf of the peer and applies it. It also gives the setting the temporary
// value runningValue, which lasts until the service ends. If runningValue is "", it removes the temporary value.
// pendingMessage says which changes are not in effect yet. The caller holds the settings lock.
func (h *API) storeAndApplySetting(
	ctx context.Context, setting store.Setting, runningValue string,
) (pendingMessage string, err error) {
	setting.SetByUID = control.PeerFrom(ctx).UID
	if err := h.storeSetting(ctx, setting); err != nil {
		return "", err
	}
	if err := h.Settings.ReplaceSettingValue(setting.Key, setting.Value, runningValue); err != nil {
		return "", err
	}
	return h.applySettings(ctx), nil
}

// storeSetting stores a setting, but does not apply it. The caller must apply the setting on this node afterwards. The
// caller holds the settings lock.
func (h *API) storeSetting(ctx context.Context, setting store.Setting) error {
	h.mustReapplySharedSettings = true // if the caller fails to apply the setting, applySharedSettings does it
	return h.Store.SetSetting(ctx, setting)
}

// changeWorkerCount sets the number of workers and returns it. The callback newCount computes the new number from the
// current one. The new number lasts until the service ends, and overrides every other value of the setting "workers".
func (h *API) changeWorkerCount(ctx context.Context, newCount func(current int) int) (control.WorkerCount, error) {
	err := h.applyOnAllNodes(ctx, func() error {
		if h.Pool.IsStopping() { // the pool has already removed all workers because it stops
			return queue.Errorf(queue.CodeUnavailable,
				"the service is stopping; change the number of workers after its next start")
		}
		n := newCount(h.Pool.WantedWorkerCount())
		if n < 0 || n > worker.MaxWorkers {
			return queue.InvalidFieldError("count", "the total number of workers would be %d, but must be between 0 and %d", n,
				worker.MaxWorkers)
		}
		text := strconv.Itoa(n)
		_, err := h.storeAndApplySetting(ctx, store.Setting{Key: "workers", Value: text}, text)
		return err
	})
	return control.WorkerCount{Workers: h.Pool.WantedWorkerCount()}, err
}

// applyOnAllNodes calls applyLocally while it holds the settings lock, then asks the other nodes to apply the changed
// settings. A node that does not answer applies the changes when it next reads the database.
func (h *API) applyOnAllNodes(ctx context.Context, applyLocally func() error) error {
	err := h.SettingsLock.RunLocked(ctx, applyLocally)
	if err == nil {
		h.reloadOtherNodesSettings(ctx)
	}
	return err
}

// reloadSettingsRequest asks another node to read and apply its stored settings and drains.
var reloadSettingsRequest = cluster.Request{APIMethod: "reload"}

// withServiceRights returns a context with the rights of the service. A handler uses it for further requests that a
// change needs, after it has checked the peer's right for the change.
func withServiceRights(ctx context.Context) context.Context {
	peer := control.PeerFrom(ctx)
	peer.Right = control.RightAdmin
	return control.WithPeer(ctx, peer)
}

// reloadOtherNodesSettings asks the other nodes to read and apply their stored settings and drains.
func (h *API) reloadOtherNodesSettings(ctx context.Context) {
	notifyNodes[control.NoParams](withServiceRights(ctx), h, reloadSettingsRequest)
}

// notifyNodes sends a request to the other nodes and returns their answers. It logs which nodes did not confirm the
// request.
func notifyNodes[R any](ctx context.Context, h *API, req cluster.Request) []cluster.NodeResult[R] {
	list, err := cluster.Broadcast[R](ctx, h.JobRouter, req)
	warnUnconfirmedNodes(h, list)
	if err != nil {
		h.Log.Warn("cannot notify the other nodes of a settings change; they apply it when they next read the database",
			"error", err)
	}
	return list
}

// warnUnconfirmedNodes logs the nodes that did not confirm a change or refused it.
func warnUnconfirmedNodes[R any](h *API, results []cluster.NodeResult[R]) {
	for i := range results {
		if results[i].Err != nil {
			h.Log.Warn("a node has not confirmed a settings change; it applies the change when it next reads the database",
				"node", results[i].Node.Name, "error", results[i].Err)
		}
	}
}

// ReloadSharedSettings reads the shared settings, the drain of all nodes and the drain of this node, and applies them.
func (h *API) ReloadSharedSettings(ctx context.Context) error {
	return errors.Join(h.Drainer.ReloadNodeDrain(ctx), h.applySharedSettings(ctx))
}

// applySharedSettings reads the settings and rules from the store and applies those that have changed.
func (h *API) applySharedSettings(ctx context.Context) error {
	return h.SettingsLock.RunLocked(ctx, func() error {
		stored, err := h.Store.Settings(ctx)
		if err != nil {
			return err
		}
		var storeErr error
		if h.mustReapplySharedSettings || !slices.Equal(stored, h.sharedSettings) {
			if err := ApplyStoredSettings(stored, h.DrainState, h.PauseOfAllJobs, h.Settings); err != nil {
				return err
			}
			h.Rights.ResolveAccessSettings()
			h.sharedSettings = stored
			storeErr = h.applySettingsToStore(ctx)
			// If applySettingsToStore failed, make the next applySharedSettings call it again.
			h.mustReapplySharedSettings = storeErr != nil && !errors.Is(storeErr, queue.ErrInvalid)
			h.applySettingsLocally()
			h.Drainer.ApplyDrainToPool()
			if paused := h.PauseOfAllJobs.Load() != nil; paused != h.Pool.AreAllJobsPaused() {
				h.Pool.SetAllJobsPaused(paused)
			}
		}
		return errors.Join(storeErr, h.QueueRules.LoadQueueRules(ctx), h.GateRules.LoadGateRules(ctx))
	})
}

// checkSettingStorable returns an error if the service could not start again with this value of the setting. Such a
// value must not be stored: it would override the settings file, and only a running service could change it again. For
// the setting web.listen, checkSettingStorable checks the address of the web page.
func (h *API) checkSettingStorable(setting *config.Setting, newValue string) error {
	isWebListen := setting.Name == webListenKey
	if !setting.NeedsRestart() && !isWebListen {
		return nil
	}
	c, needsRestart, err := h.Settings.PreviewStoredValue(setting.Name, newValue)
	if !isWebListen {
		return h.checkServiceCanStart(c, needsRestart, err)
	}
	if err != nil {
		return err
	}
	page := dashboardConfig(&c.Settings)
	return page.Check()
}

// checkServiceCanStart returns an error if the service would not start with the settings c. It checks only the values
// that are not yet in effect. Its parameters are the results of settings.Keeper.PreviewFile.
func (h *API) checkServiceCanStart(c config.Config, needsRestart bool, err error) error {
	if err != nil || !needsRestart {
		return err
	}
	if _, err = h.JobAccountFor(&c.Settings); err != nil || h.SocketInherited {
		return err
	}
	return h.CheckSocketSettings(&c.Settings)
}
