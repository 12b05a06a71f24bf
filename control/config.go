package control

import "context"

// ConfigAPI reads and changes the settings.
type ConfigAPI interface {
	// ListSettings lists every setting.
	ListSettings(ctx context.Context, p NoParams) (ConfigList, error)
	// ReadSetting returns one setting.
	ReadSetting(ctx context.Context, p SettingNameParams) (ConfigValue, error)
	// ChangeSetting stores the value of a setting. An environment variable or a command-line flag of the service
	// overrides the stored value.
	ChangeSetting(ctx context.Context, p ConfigSetParams) (ConfigValue, error)
	// UnsetSetting removes the stored value of a setting. It returns the value that is now in effect.
	UnsetSetting(ctx context.Context, p SettingNameParams) (ConfigValue, error)
	// ReloadSettingsFile reads the settings file again.
	ReloadSettingsFile(ctx context.Context, p NoParams) (ReloadResult, error)
}

// SettingNameParams holds the parameters of the methods config.get and config.unset: the name of a setting.
type SettingNameParams struct {
	SettingName string `json:"key" rule:"nonEmpty,required"`
}

// ConfigSetParams holds the parameters of the method config.set.
type ConfigSetParams struct {
	SettingName string       `json:"key" rule:"nonEmpty,required"`
	Value       SettingValue `json:"value" rule:"setting,required"`
}

// ConfigValue is the value of a setting, and where the value comes from.
type ConfigValue struct {
	SettingName string `json:"key"`
	Value       string `json:"value"`
	Origin      string `json:"origin"` // default, file, stored, environment, flag or running
	// Hint is a hint for the user, for example that another origin overrides the stored value.
	Hint string `json:"note,omitempty"`
}

// ConfigList lists every setting.
type ConfigList struct {
	Settings []ConfigValue `json:"settings"`
}

// ReloadResult is the response to ReloadSettingsFile. OverriddenSettings lists the keys in the settings file that have
// no effect, because another origin overrides them. PendingChangesNote is a text for the user about changes that take
// effect later.
type ReloadResult struct {
	OverriddenSettings []string `json:"hidden"`
	PendingChangesNote string   `json:"note,omitempty"`
}
