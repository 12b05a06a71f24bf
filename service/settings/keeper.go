// Package settings keeps the settings of the service. It also caches the settings of queues and of locks and
// rates that jobs share, so that requests need not read them from the store.
//
// Start with Keeper, which computes the settings in effect from the file, the environment, the flags and the
// store.
package settings

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// These are the layers of settings, weakest first. A value in a later layer overrides the same setting in an
// earlier layer.
const (
	layerDefault = iota
	layerFile
	layerStored
	layerEnv
	layerFlag
	layerRunning
)

// Keeper keeps the settings in layers, and computes from them the settings in effect. Its methods are safe for
// concurrent use.
type Keeper struct {
	filePath      string                        // path of the settings file
	requiresFile  bool                          // a missing settings file is an error
	LogLevel      slog.LevelVar                 // the level of the log, as the settings define it
	RolesChanged  chan struct{}                 // gets a value when the setting store_roles may have changed
	currentConfig atomic.Pointer[config.Config] // the settings in effect

	mu     sync.Mutex
	layers []config.Layer // in the order of the layer constants; guarded by mu
	// startConfig holds the settings with which the service started. It is needed for the settings that take
	// effect only at a start. It is nil before RecordStartConfig; guarded by mu.
	startConfig *config.Config
}

// Options say where a Keeper finds settings.
type Options struct {
	File     string            // path of the settings file
	NeedFile bool              // a missing settings file is an error
	Defaults map[string]string // defaults that depend on how the service was started
	Flags    map[string]string // settings from the command line, by key
}

// New reads the settings that are available before the store is open.
func New(o Options) (*Keeper, error) {
	s := &Keeper{filePath: o.File, requiresFile: o.NeedFile, RolesChanged: make(chan struct{}, 1)}
	file, err := s.ReadFile()
	if err != nil {
		return nil, err
	}
	env, err := config.ReadEnv(os.Environ())
	if err != nil {
		return nil, err
	}
	s.layers = []config.Layer{
		layerDefault: {Origin: config.FromDefault, Values: o.Defaults},
		layerFile:    file,
		layerStored:  {Origin: config.FromStored, Values: map[string]string{}},
		layerEnv:     env,
		layerFlag:    {Origin: config.FromFlag, Values: o.Flags},
		layerRunning: {Origin: config.FromRunning, Values: map[string]string{}},
	}
	return s, s.update(func([]config.Layer) {})
}

// changedCopyLocked calls change with a copy of the layers, and returns the copy. The caller holds mu.
func (k *Keeper) changedCopyLocked(change func(layers []config.Layer)) []config.Layer {
	layers := slices.Clone(k.layers)
	for i := range layers {
		layers[i].Values = maps.Clone(layers[i].Values)
	}
	change(layers)
	return layers
}

// update changes the layers and computes the settings from them. If they are invalid, the old layers stay in effect.
func (k *Keeper) update(change func(layers []config.Layer)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	layers := k.changedCopyLocked(change)
	c, err := config.Merge(layers...)
	if err != nil {
		return err
	}
	if k.startConfig != nil {
		c.KeepUntilRestart(k.startConfig)
	}
	k.LogLevel.Set(map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}[c.LogLevel])
	k.layers = layers
	k.currentConfig.Store(&c)
	queue.TrySend(k.RolesChanged, struct{}{})
	return nil
}

// Current returns the settings in effect.
func (k *Keeper) Current() *config.Config { return k.currentConfig.Load() }

// RecordStartConfig records the current settings as those with which the service has started. From then on,
// settings that take effect only at a start keep their recorded values.
func (k *Keeper) RecordStartConfig() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.startConfig = k.currentConfig.Load()
}

// ReadFile reads the settings file and returns its content as a layer.
func (k *Keeper) ReadFile() (config.Layer, error) {
	return tomlfile.Read(k.filePath, k.requiresFile)
}

// LayersWithFile returns a copy of the layers in which file replaces the content of the settings file.
func (k *Keeper) LayersWithFile(file config.Layer) []config.Layer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changedCopyLocked(func(layers []config.Layer) { layers[layerFile] = file })
}

// LayersWithStored returns a copy of the layers as they would be after a setting is stored.
func (k *Keeper) LayersWithStored(name, text string) []config.Layer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changedCopyLocked(func(layers []config.Layer) {
		layers[layerStored].Values[name] = text
		delete(layers[layerRunning].Values, name) // ReplaceValue also removes this value
	})
}

// MergeLayers returns the settings that the layers define. needsRestart reports whether settings that take
// effect only at a start differ from the values in use.
func (k *Keeper) MergeLayers(layers []config.Layer) (c config.Config, needsRestart bool, err error) {
	c, err = config.Merge(layers...)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil || k.startConfig == nil {
		return c, false, err
	}
	held := c
	held.KeepUntilRestart(k.startConfig)
	return c, len(held.PendingRestart()) > 0, nil
}

// ReplaceFile replaces the layer of the settings file. If the new content is invalid, the old content stays in
// effect.
func (k *Keeper) ReplaceFile(file config.Layer) error {
	return k.update(func(layers []config.Layer) { layers[layerFile] = file })
}

// ReplaceStored replaces the layer of the settings in the store.
func (k *Keeper) ReplaceStored(values map[string]string) error {
	return k.update(func(layers []config.Layer) { layers[layerStored].Values = values })
}

// ReplaceValue replaces the value of a setting in the stored layer and in the running layer, which holds values
// that last until the service ends. An empty value removes the setting from the layer.
func (k *Keeper) ReplaceValue(name, storedValue, runningValue string) error {
	return k.update(func(layers []config.Layer) {
		for layer, text := range map[int]string{layerStored: storedValue, layerRunning: runningValue} {
			if layers[layer].Values[name] = text; text == "" {
				delete(layers[layer].Values, name)
			}
		}
	})
}

// SetRunning sets a setting in the running layer, whose values last until the service ends. If hasValue is
// false, it removes the setting from that layer. It returns the previous value in the layer; existed is false
// if there was none. The caller has checked the new value.
func (k *Keeper) SetRunning(name, value string, hasValue bool) (previous string, existed bool) {
	err := k.update(func(layers []config.Layer) {
		values := layers[layerRunning].Values
		previous, existed = values[name]
		if values[name] = value; !hasValue {
			delete(values, name)
		}
	})
	if err != nil {
		panic("service: settings that passed the check cannot be used: " + err.Error())
	}
	return previous, existed
}

// ValueFor returns the value of a setting as the caller may see it. Passwords are hidden from all callers.
func (k *Keeper) ValueFor(ctx context.Context, key *config.Key) control.ConfigValue {
	shown := func(text string) string {
		switch {
		case !key.Secret || text == key.Default:
			return text
		case !control.PeerFrom(ctx).Right.Covers(control.RightAdmin):
			return "***"
		}
		return withoutPassword(text)
	}
	c := k.currentConfig.Load()
	v := control.ConfigValue{
		Key: key.Name, Value: shown(key.ValueText(&c.Settings)), Origin: string(c.Origin(key.Name)),
	}
	for _, w := range c.PendingRestart() {
		if w.Name == key.Name {
			v.Note = fmt.Sprintf("changes to %s when the service restarts; until then, the shown value stays in effect",
				shown(w.Value))
		}
	}
	return v
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
			// The key is, for example, "password" or "sslpassword".
			fields[i] = key + "=xxxxx"
		}
	}
	u.RawQuery = strings.Join(fields, "&")
	return u.Redacted()
}
