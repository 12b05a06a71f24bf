// Package settings keeps the settings of the service. It also caches the settings of queues, and the rules of locks and
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

// The layers of settings, weakest first. A value in a later layer overrides the value of the same setting in an earlier
// layer.
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
	filePath          string                        // path of the settings file
	requiresFile      bool                          // a missing settings file is an error
	LogLevel          slog.LevelVar                 // the level of the log, as the settings define it
	StoreRolesChanged chan struct{}                 // gets a value when the setting store_roles may have changed
	currentConfig     atomic.Pointer[config.Config] // the settings in effect

	mu     sync.Mutex
	layers []config.Layer // in the order of the layer constants; guarded by mu
	// configAtStart holds the settings with which the service started. It is needed for the settings that take
	// effect only at a start. It is nil before RecordConfigAtStart; guarded by mu.
	configAtStart *config.Config
}

// Options say where a Keeper finds settings.
type Options struct {
	SettingsFile        string            // path of the settings file
	RequireSettingsFile bool              // a missing settings file is an error
	DefaultValues       map[string]string // defaults that depend on how the service was started
	FlagValues          map[string]string // settings from the command line, by key
}

// New reads the settings that are available before the store is open.
func New(o Options) (*Keeper, error) {
	s := &Keeper{filePath: o.SettingsFile, requiresFile: o.RequireSettingsFile, StoreRolesChanged: make(chan struct{}, 1)}
	file, err := s.ReadFileLayer()
	if err != nil {
		return nil, err
	}
	env, err := config.ReadEnv(os.Environ())
	if err != nil {
		return nil, err
	}
	s.layers = []config.Layer{
		layerDefault: {Origin: config.FromDefault, ValuesBySetting: o.DefaultValues},
		layerFile:    file,
		layerStored:  {Origin: config.FromQueueStore, ValuesBySetting: map[string]string{}},
		layerEnv:     env,
		layerFlag:    {Origin: config.FromFlag, ValuesBySetting: o.FlagValues},
		layerRunning: {Origin: config.FromRunningService, ValuesBySetting: map[string]string{}},
	}
	return s, s.updateLayers(func([]config.Layer) {})
}

// changedLayersLocked calls change with a copy of the layers, and returns the copy. The caller holds mu.
func (k *Keeper) changedLayersLocked(change func(layers []config.Layer)) []config.Layer {
	layers := slices.Clone(k.layers)
	for i := range layers {
		layers[i].ValuesBySetting = maps.Clone(layers[i].ValuesBySetting)
	}
	change(layers)
	return layers
}

// updateLayers changes the layers and computes the settings from them. If they are invalid, the old layers stay in
// effect.
func (k *Keeper) updateLayers(change func(layers []config.Layer)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	layers := k.changedLayersLocked(change)
	c, err := config.Merge(layers...)
	if err != nil {
		return err
	}
	if k.configAtStart != nil {
		c.KeepRestartOnlySettings(k.configAtStart)
	}
	k.LogLevel.Set(map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}[c.LogLevel])
	k.layers = layers
	k.currentConfig.Store(&c)
	queue.TrySend(k.StoreRolesChanged, struct{}{})
	return nil
}

// CurrentConfig returns the settings in effect.
func (k *Keeper) CurrentConfig() *config.Config { return k.currentConfig.Load() }

// RecordConfigAtStart records the current settings as the settings with which the service has started. From then on,
// settings that take effect only at a start keep their recorded values.
func (k *Keeper) RecordConfigAtStart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.configAtStart = k.currentConfig.Load()
}

// ReadFileLayer reads the settings file and returns its content as a layer.
func (k *Keeper) ReadFileLayer() (config.Layer, error) {
	return tomlfile.Read(k.filePath, k.requiresFile)
}

// PreviewFile returns the settings as they would be with this content of the settings file. needsRestart reports
// whether settings that take effect only at a start would differ from the values in use.
func (k *Keeper) PreviewFile(file config.Layer) (c config.Config, needsRestart bool, err error) {
	return k.preview(func(layers []config.Layer) { layers[layerFile] = file })
}

// PreviewStoredValue returns the settings as they would be after a setting is stored. See PreviewFile.
func (k *Keeper) PreviewStoredValue(name, value string) (c config.Config, needsRestart bool, err error) {
	return k.preview(func(layers []config.Layer) {
		layers[layerStored].ValuesBySetting[name] = value
		delete(layers[layerRunning].ValuesBySetting, name) // ReplaceSettingValue also removes this value
	})
}

// preview returns the settings as they would be after a change of the layers. See PreviewFile.
func (k *Keeper) preview(change func(layers []config.Layer)) (c config.Config, needsRestart bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err = config.Merge(k.changedLayersLocked(change)...)
	if err != nil || k.configAtStart == nil {
		return c, false, err
	}
	held := c
	held.KeepRestartOnlySettings(k.configAtStart)
	return c, len(held.SettingsPendingRestart()) > 0, nil
}

// ReplaceFileLayer replaces the layer of the settings file. If the new content is invalid, the old content stays in
// effect.
func (k *Keeper) ReplaceFileLayer(file config.Layer) error {
	return k.updateLayers(func(layers []config.Layer) { layers[layerFile] = file })
}

// ReplaceStoredLayer replaces the layer of the settings in the store.
func (k *Keeper) ReplaceStoredLayer(values map[string]string) error {
	return k.updateLayers(func(layers []config.Layer) { layers[layerStored].ValuesBySetting = values })
}

// ReplaceSettingValue replaces the value of a setting in two layers: the stored layer, and the running layer, whose
// values last until the service ends. An empty value removes the setting from the layer.
func (k *Keeper) ReplaceSettingValue(name, storedValue, runningValue string) error {
	return k.updateLayers(func(layers []config.Layer) {
		for layer, text := range map[int]string{layerStored: storedValue, layerRunning: runningValue} {
			if layers[layer].ValuesBySetting[name] = text; text == "" {
				delete(layers[layer].ValuesBySetting, name)
			}
		}
	})
}

// SetRunningValue sets a setting in the running layer, whose values last until the service ends. If hasValue is false,
// it removes the setting from that layer. previous is the previous value in the running layer. existed is false if the
// layer had no value. The caller has checked the new value.
func (k *Keeper) SetRunningValue(name, value string, hasValue bool) (previous string, existed bool) {
	err := k.updateLayers(func(layers []config.Layer) {
		values := layers[layerRunning].ValuesBySetting
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

// VisibleValue returns the value of a setting as the caller may see it. Passwords are hidden from all callers.
func (k *Keeper) VisibleValue(ctx context.Context, setting *config.Setting) control.ConfigValue {
	shown := func(text string) string {
		switch {
		case !setting.AdminOnly || text == setting.DefaultText:
			return text
		case !control.PeerFrom(ctx).Right.Covers(control.RightAdmin):
			return "***"
		}
		return maskURLPasswords(text)
	}
	c := k.currentConfig.Load()
	v := control.ConfigValue{
		SettingName: setting.Name, Value: shown(setting.ValueText(&c.Settings)),
		Origin: string(c.OriginInEffect(setting.Name)),
	}
	for _, w := range c.SettingsPendingRestart() {
		if w.Name == setting.Name {
			v.Hint = fmt.Sprintf("changes to %s when the service restarts; until then, the shown value stays in effect",
				shown(w.NewValue))
		}
	}
	return v
}

// maskURLPasswords replaces the passwords in a URL by xxxxx. It returns other texts unchanged.
func maskURLPasswords(text string) string {
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
