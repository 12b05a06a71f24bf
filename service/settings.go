package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Layers of settings, weakest first.
const (
	layerDefault = iota
	layerFile
	layerStored
	layerEnv
	layerFlag
	layerRunning
)

// readSettings reads the settings that are available before the store is open.
func (s *Service) readSettings() error {
	file, err := tomlfile.Read(s.opt.Places.File, s.opt.NeedFile)
	if err != nil {
		return err
	}
	env, err := config.ReadEnv(os.Environ())
	if err != nil {
		return err
	}
	s.layers = []config.Layer{
		layerDefault: {Origin: config.FromDefault, Values: s.ownDefaults()},
		layerFile:    file,
		layerStored:  {Origin: config.FromStored, Values: map[string]string{}},
		layerEnv:     env,
		layerFlag:    {Origin: config.FromFlag, Values: s.opt.Flags},
		layerRunning: {Origin: config.FromRunning, Values: map[string]string{}},
	}
	return s.merge()
}

// ownDefaults returns default settings that depend on how the service was started. A service that a Manager
// has started runs all jobs as its own account by default.
func (s *Service) ownDefaults() map[string]string {
	if s.opt.Manager == nil {
		return nil
	}
	return map[string]string{"run_as": config.Fixed(s.accountOf(accounts.Self()).User)}
}

// merge computes the settings from the layers. The caller holds mu, or no other goroutine runs yet.
func (s *Service) merge() error {
	c, err := config.Merge(s.layers...)
	if err != nil {
		return err
	}
	if s.atStart != nil {
		c.Hold(s.atStart)
	}
	s.level.Set(map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}[c.LogLevel])
	s.config.Store(&c)
	select {
	case s.rolesChanged <- struct{}{}:
	default:
	}
	return nil
}

// recordStartConfig keeps the current values of the settings that take effect only at a start. The service
// uses these values until it ends.
func (s *Service) recordStartConfig() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atStart = s.config.Load()
}

func (s *Service) setStored(stored []store.Setting) error {
	err := s.mergeStored(stored)
	if err == nil {
		s.resolveAccess()
	}
	return err
}

func (s *Service) mergeStored(stored []store.Setting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := map[string]string{}
	s.allDrained = false
	var paused *store.Setting
	for i, set := range stored {
		switch set.Key {
		case drainKey:
			s.allDrained = true
		case pauseKey:
			paused = &stored[i]
		default:
			values[set.Key] = set.Value
		}
	}
	s.paused.Store(paused)
	s.layers[layerStored].Values = values
	return s.merge()
}

// applyUserLimit passes the limit of running jobs per user to the store.
func (s *Service) applyUserLimit(ctx context.Context) error {
	return s.store.SetMaxRunningUser(ctx, s.config.Load().MaxRunningUser)
}

// applyNode sets in the store which jobs this node may claim.
func (s *Service) applyNode(ctx context.Context) error {
	return s.store.SetNode(ctx, s.nodeRecord())
}

// apply puts changed settings into effect. It returns a message that says which changes are not in effect yet
// and why, or "".
func (s *Service) apply(ctx context.Context) (pending string) {
	ctx = context.WithoutCancel(ctx) // the settings are already stored
	if err := s.applyToStore(ctx); err != nil {
		pending = fmt.Sprintf("the change could not be applied to the queue (%v); it takes effect when a setting is changed again or the service restarts", err)
		s.log.Error("cannot apply the changed settings for job order, user limits, resources or hooks; they take effect when a setting is changed again or the service restarts", "error", err)
	}
	return cmp.Or(pending, s.applyHere())
}

// applyHere puts the settings into effect everywhere except in the store. Like apply, it returns a message
// that says which changes are not in effect yet, or "".
func (s *Service) applyHere() (pending string) {
	s.updateSocketAccess()
	pending = cmp.Or(s.setWeb(), s.setTraces())
	select {
	case s.settingsChanged <- struct{}{}:
	default: // a wake-up is already pending; upkeep will then see this change too
	}
	if n := s.config.Load().WorkerCount(); n != s.pool.Workers() {
		s.pool.Scale(n)
		select {
		case s.workersChanged <- struct{}{}:
		default: // a wake-up is already pending; the next lease renewal will send this number too
		}
		return pending
	}
	s.pool.Refresh()
	return pending
}

// applyToStore passes the settings to the store.
func (s *Service) applyToStore(ctx context.Context) error {
	return errors.Join(s.store.SetOrder(ctx, s.config.Load().Order()), s.applyUserLimit(ctx), s.applyNode(ctx), s.applyHooks(ctx))
}

// withSettingsLock calls f while it holds the token s.settingsToken, so that no other caller changes
// settings.
func (s *Service) withSettingsLock(ctx context.Context, f func() error) error {
	select {
	case s.settingsToken <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.settingsToken }()
	return f()
}

// reload reads the settings file again. If the file is invalid, the old settings stay in effect. It returns a
// message that says which changes are not in effect yet, or "".
func (s *Service) reload(ctx context.Context) (pending string, err error) {
	err = s.withSettingsLock(ctx, func() (err error) {
		pending, err = s.rereadSettings(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	s.reopenLog()
	// This is outside withSettingsLock, because a slow directory must not delay other changes of settings.
	s.resolveAccess()
	if unknown := s.unknownNames(); unknown != "" {
		s.log.Warn(unknown)
	}
	return pending, nil
}

// reopenLog opens a new log file if the old one was moved, and makes the runners do the same.
func (s *Service) reopenLog() {
	if !s.opt.Background && s.opt.Manager == nil {
		return // the log is standard error, which belongs to the caller
	}
	if err := logs.Reopen(s.opt.Log, s.opt.Log.Name()); err != nil {
		s.log.Error("the log file was moved, and a new one cannot be opened", "error", err)
	}
	s.home.ReopenLogs()
}

func (s *Service) rereadSettings(ctx context.Context) (pending string, err error) {
	file, err := tomlfile.Read(s.opt.Places.File, s.opt.NeedFile)
	if err != nil {
		return "", err
	}
	stored, err := s.store.Settings(ctx)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	layers := slices.Clone(s.layers)
	s.mu.Unlock()
	layers[layerFile] = file
	if err := s.checkStart(layers); err != nil {
		return "", err
	}
	s.mu.Lock()
	old := s.layers[layerFile]
	s.layers[layerFile] = file
	if err := s.merge(); err != nil {
		s.layers[layerFile] = old
		s.mu.Unlock()
		return "", err
	}
	s.mu.Unlock()
	if err := s.mergeStored(stored); err != nil {
		return "", err
	}
	s.users.Clear()
	pending = s.apply(ctx)
	if hidden := s.config.Load().Hides(config.FromFile); len(hidden) > 0 {
		s.log.Warn("settings in the file have no effect, because the environment, a flag of the service or a stored setting (queuectl config set) overrides them", "keys", strings.Join(hidden, " "))
	}
	s.log.Info("settings reloaded")
	var waits []string
	for _, w := range s.config.Load().Waiting() {
		waits = append(waits, w.Name)
	}
	if len(waits) > 0 {
		pending = strings.TrimPrefix(pending+"; these take effect after a restart of the service: "+strings.Join(waits, ", "), "; ")
	}
	return pending, nil
}

// ConfigList implements control.API.
func (s *Service) ConfigList(ctx context.Context, _ control.Nothing) (control.ConfigList, error) {
	var list control.ConfigList
	for i := range config.Keys() {
		list.Settings = append(list.Settings, s.valueFor(ctx, &config.Keys()[i]))
	}
	return list, nil
}

// value returns the value of a setting. The function shown converts each text before the client sees it.
func (s *Service) value(k *config.Key, shown func(text string) string) control.ConfigValue {
	c := s.config.Load()
	v := control.ConfigValue{Key: k.Name, Value: shown(k.Show(&c.Settings)), Origin: string(c.Origin(k.Name))}
	for _, w := range c.Waiting() {
		if w.Name == k.Name {
			v.Note = fmt.Sprintf("changed to %s, which takes effect after a restart of the service", shown(w.Value))
		}
	}
	return v
}

// ConfigGet implements control.API.
func (s *Service) ConfigGet(ctx context.Context, p control.ConfigKey) (control.ConfigValue, error) {
	k, _, err := config.Find(p.Key, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return s.valueFor(ctx, k), nil
}

// valueFor returns the value of a setting as the caller may see it. No caller sees passwords.
func (s *Service) valueFor(ctx context.Context, k *config.Key) control.ConfigValue {
	return s.value(k, func(text string) string {
		switch {
		case !k.Secret || text == k.Default:
			return text
		case !control.PeerFrom(ctx).Right.Covers(control.Admin):
			return "***"
		}
		return withoutPassword(text)
	})
}

// withoutPassword replaces the passwords in a URL by xxxxx. It returns other texts unchanged.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		return text
	}
	fields := strings.Split(u.RawQuery, "&")
	for i, field := range fields {
		key, _, _ := strings.Cut(field, "=")
		if name, err := url.QueryUnescape(key); err != nil || strings.Contains(name, "password") {
			// The key is, for example, password or sslpassword.
			fields[i] = key + "=xxxxx"
		}
	}
	u.RawQuery = strings.Join(fields, "&")
	return u.Redacted()
}

// ConfigSet implements control.API.
func (s *Service) ConfigSet(ctx context.Context, p control.ConfigSet) (control.ConfigValue, error) {
	k, text, err := config.Find(p.Key, string(p.Value))
	if err == nil {
		err = k.Check(text)
	}
	if err != nil {
		return control.ConfigValue{}, err
	}
	return s.change(ctx, k, text)
}

// unknownRoles returns a message that lists the users in store_roles that do not exist on this machine, or
// "".
func (s *Service) unknownRoles() string {
	var list []string
	for role, name := range s.config.Load().RoleUsers() {
		if _, err := s.peerNamed(name); err != nil {
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
func (s *Service) ConfigUnset(ctx context.Context, p control.ConfigKey) (control.ConfigValue, error) {
	k, _, err := config.Find(p.Key, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return s.change(ctx, k, "")
}

// change stores a setting, or removes it if text is empty, and puts it into effect.
func (s *Service) change(ctx context.Context, k *config.Key, text string) (v control.ConfigValue, err error) {
	if k.Placed() {
		return v, queue.Invalid("key", "%s belongs to a single machine, but stored settings apply to the whole queue; set it in the settings file or as QUEUECTL_%s", k.Name, strings.ToUpper(k.Name))
	}
	err = s.applyOnAllNodes(ctx, func() error {
		if text != "" {
			if err := s.checkStorable(k, text); err != nil {
				return err
			}
		}
		v, err = s.put(ctx, k, text)
		return err
	})
	if err != nil {
		return v, err
	}
	access := strings.HasPrefix(k.Name, "access.")
	if access {
		// This is outside applyOnAllNodes, because a slow directory must not delay other changes of
		// settings.
		s.resolveAccess()
	}
	strongest := s.config.Load().Strongest(k.Name)
	switch unknown := s.unknownNames(); {
	case text != "" && strongest != config.FromStored:
		v.Note = "stored, but no effect: overridden by the " + string(strongest)
	case k.AtStart():
		v.Note = "stored; it takes effect after a restart of the service"
	case access && unknown != "":
		v.Note = unknown
	case k.Name == "store_roles":
		v.Note = s.unknownRoles()
	}
	return v, nil
}

// put stores a setting and puts it into effect. It also removes the setting's value from the running layer,
// where a user may have set the number of workers. The caller holds s.settingsToken.
func (s *Service) put(ctx context.Context, k *config.Key, text string) (control.ConfigValue, error) {
	if err := s.storeSetting(ctx, store.Setting{Key: k.Name, Value: text, UID: control.PeerFrom(ctx).UID, Secret: k.Secret}); err != nil {
		return control.ConfigValue{}, err
	}
	s.mu.Lock()
	if text == "" {
		delete(s.layers[layerStored].Values, k.Name)
	} else {
		s.layers[layerStored].Values[k.Name] = text
	}
	delete(s.layers[layerRunning].Values, k.Name)
	err := s.merge()
	s.mu.Unlock()
	if err != nil {
		return control.ConfigValue{}, err
	}
	v := s.valueFor(ctx, k)
	if pending := s.apply(ctx); pending != "" {
		v.Note = "stored, but " + pending
	}
	return v, nil
}

// storeSetting stores a setting. The caller puts it into effect on this node immediately. The caller holds
// s.settingsToken.
func (s *Service) storeSetting(ctx context.Context, set store.Setting) error {
	s.reapplyShared = true // this makes applyShared apply the stored settings again
	return s.store.SetSetting(ctx, set)
}

// setWorkers changes the number of workers. The function count gets the current number and returns the new
// one. Until the service ends, the new number overrides all other sources of the setting.
func (s *Service) setWorkers(ctx context.Context, count func(now int) int) (n int, err error) {
	err = s.applyOnAllNodes(ctx, func() error {
		if s.pool.Stopping() { // reject the change, since the stop has already removed all workers
			return queue.Errorf(queue.CodeUnavailable, "the service is stopping; change the number of workers after its next start")
		}
		n = count(s.pool.Workers())
		return s.putWorkers(ctx, n)
	})
	return n, err
}

func (s *Service) putWorkers(ctx context.Context, n int) error {
	if n < 0 || n > worker.MaxWorkers {
		return queue.Invalid("count", "must be between 0 and %[2]d, not %[1]d", n, worker.MaxWorkers)
	}
	text := strconv.Itoa(n)
	if err := s.storeSetting(ctx, store.Setting{Key: "workers", Value: text, UID: control.PeerFrom(ctx).UID}); err != nil {
		return err
	}
	s.mu.Lock()
	s.layers[layerStored].Values["workers"] = text
	s.layers[layerRunning].Values["workers"] = text
	err := s.merge()
	s.mu.Unlock()
	if err == nil {
		s.apply(ctx)
	}
	return err
}
