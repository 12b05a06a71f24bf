package handlers

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// ApplyStoredSettings passes the settings from the store to the parts that use them. drainState gets the drain of all
// nodes, pauseOfAllJobs gets the pause of all jobs, and keeper gets the other settings. The caller must then call
// Rights.ResolveAccessSettings, preferably without a lock, because looking up names may be slow.
func ApplyStoredSettings(stored []store.Setting, drainState *cluster.DrainState,
	pauseOfAllJobs *settings.PauseOfAllJobs,
	keeper *settings.Keeper) error {
	values := map[string]string{}
	drained := false
	var paused *store.Setting
	for i, set := range stored {
		switch set.Key {
		case settings.DrainSettingKey:
			drained = true
		case settings.PauseSettingKey:
			paused = &stored[i]
		default:
			values[set.Key] = set.Value
		}
	}
	drainState.AllNodesDrained.Store(drained)
	pauseOfAllJobs.Store(paused)
	return keeper.ReplaceStoredLayer(values)
}

// ConfigList implements control.API.
func (h *API) ListSettings(ctx context.Context, _ control.NoParams) (control.ConfigList, error) {
	var list control.ConfigList
	for _, k := range config.AllSettings() {
		list.Settings = append(list.Settings, h.Settings.VisibleValue(ctx, &k))
	}
	return list, nil
}

// ConfigGet implements control.API.
func (h *API) ReadSetting(ctx context.Context, p control.SettingNameParams) (control.ConfigValue, error) {
	k, _, err := config.FindSetting(p.SettingName, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.Settings.VisibleValue(ctx, k), nil
}

// ConfigSet implements control.API.
func (h *API) ChangeSetting(ctx context.Context, p control.ConfigSetParams) (control.ConfigValue, error) {
	k, text, err := config.FindSetting(p.SettingName, string(p.Value))
	if err == nil {
		err = k.CheckValue(text)
	}
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.changeSetting(ctx, k, text)
}

// ConfigUnset implements control.API.
func (h *API) UnsetSetting(ctx context.Context, p control.SettingNameParams) (control.ConfigValue, error) {
	k, _, err := config.FindSetting(p.SettingName, "")
	if err != nil {
		return control.ConfigValue{}, err
	}
	return h.changeSetting(ctx, k, "")
}
