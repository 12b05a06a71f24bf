package control

import "context"

// ConfigAPI reads and changes the settings.
type ConfigAPI interface {
	// ConfigList lists every setting.
	ConfigList(ctx context.Context, p NoParams) (ConfigList, error)
	// ConfigGet returns one setting.
	ConfigGet(ctx context.Context, p ConfigKey) (ConfigValue, error)
	// ConfigSet stores the value of a setting. The value has no effect while the environment or a
	// flag of the service overrides it.
	ConfigSet(ctx context.Context, p ConfigSet) (ConfigValue, error)
	// ConfigUnset removes the stored value of a setting. It returns the value that now applies.
	ConfigUnset(ctx context.Context, p ConfigKey) (ConfigValue, error)
	// Reload reads the settings file again.
	Reload(ctx context.Context, p NoParams) (ReloadResult, error)
}

// ConfigKey is the name of a setting.
type ConfigKey struct {
	Key string `json:"key" rule:"nonEmpty,required"`
}

// ConfigSet stores a setting.
type ConfigSet struct {
	Key   string       `json:"key" rule:"nonEmpty,required"`
	Value SettingValue `json:"value" rule:"setting,required"`
}

// ConfigValue is a setting and the origin of its value.
type ConfigValue struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // default, file, stored, environment, flag or running
	// Note is a hint for the user: for example, another origin overrides the stored value, or the
	// value takes effect when the service restarts.
	Note string `json:"note,omitempty"`
}

// ConfigList lists every setting.
type ConfigList struct {
	Settings []ConfigValue `json:"settings"`
}

// ReloadResult is the response to Reload. Hidden lists the keys of the settings file whose values
// other origins override. Note lists for the user which changes have no effect yet.
type ReloadResult struct {
	Hidden []string `json:"hidden"`
	Note   string   `json:"note,omitempty"`
}
