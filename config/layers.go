package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Origin says where the value of a setting comes from.
type Origin string

// These are the origins, from the weakest to the strongest. A stronger origin overrides a weaker one.
const (
	FromDefault        Origin = "default"
	FromFile           Origin = "file"
	FromQueueStore     Origin = "stored" // set by `queuectl config set`, and stored in the queue
	FromEnv            Origin = "environment"
	FromFlag           Origin = "flag"
	FromRunningService Origin = "running" // set by a user until the service restarts; used only for the setting workers
)

// Layer holds the settings that come from one origin. Values maps the name of a setting to its value as text.
type Layer struct {
	Origin          Origin
	ValuesBySetting map[string]string
}

// Config holds the checked settings and the origin of each setting.
type Config struct {
	Settings
	layers []Layer // from weakest to strongest
	// pendingSettings lists the new values that take effect only at a restart. KeepRestartOnlySettings fills the list.
	pendingSettings []PendingSetting
}

// PendingSetting is a setting whose new value takes effect when the service restarts.
type PendingSetting struct {
	Name, NewValue string
	CurrentOrigin  Origin // origin of the old value, which is in effect until the restart
}

// SettingsPendingRestart returns the settings that get a new value when the service restarts.
func (c *Config) SettingsPendingRestart() []PendingSetting { return c.pendingSettings }

// Merge applies layers to the defaults, in the given order, and checks the values. If several layers set the same
// setting, the last of them counts. Merge copies the layers, so the caller may change them later.
func Merge(layers ...Layer) (Config, error) {
	c := Config{layers: slices.Clone(layers)}
	for i := range c.layers {
		c.layers[i].ValuesBySetting = maps.Clone(layers[i].ValuesBySetting)
	}
	var errs []error
	for _, k := range settingsBoundTo(&c.Settings) {
		text, origin := c.strongestValue(k.Name, k.DefaultText)
		if err := k.setFromText(text); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", k.Name, origin, err))
		}
	}
	if len(errs) > 0 {
		return c, &queue.Error{Code: queue.CodeInvalid, Message: errors.Join(errs...).Error()}
	}
	return c, nil
}

// OriginInEffect returns the origin of the value that is in effect for a setting.
func (c *Config) OriginInEffect(settingName string) Origin {
	for _, w := range c.pendingSettings {
		if w.Name == settingName {
			return w.CurrentOrigin
		}
	}
	return c.StrongestOrigin(settingName)
}

// StrongestOrigin returns the strongest origin that sets a setting. Unlike Origin, it ignores whether the value from
// this origin takes effect only at the next restart of the service.
func (c *Config) StrongestOrigin(settingName string) Origin {
	_, origin := c.strongestValue(settingName, "")
	return origin
}

// strongestValue returns the value of a setting in the last layer that contains the setting, and the origin of
// that layer. If no layer contains the setting, it returns defaultText and FromDefault.
func (c *Config) strongestValue(settingName, defaultText string) (text string, origin Origin) {
	text, origin = defaultText, FromDefault
	for _, l := range c.layers {
		if v, ok := l.ValuesBySetting[settingName]; ok {
			text, origin = v, l.Origin
		}
	}
	return text, origin
}

// OverriddenSettings returns the names of the settings that the given origin sets without effect, because a stronger
// origin also sets them.
func (c *Config) OverriddenSettings(origin Origin) (names []string) {
	for _, l := range c.layers {
		if l.Origin != origin {
			continue
		}
		for _, name := range SettingNames() {
			if _, ok := l.ValuesBySetting[name]; ok && c.StrongestOrigin(name) != origin {
				names = append(names, name)
			}
		}
	}
	return names
}

// Set sets a setting to a value from a TOML file: text, a number, true, false or, for some settings, a list of
// names. Errors contain the name of the setting.
func (l *Layer) Set(settingName string, value any) error {
	switch v := value.(type) {
	case string, int64, float64, bool:
	default:
		if _, _, err := FindSetting(settingName, ""); err != nil {
			return err
		}
		list, ok := v.([]any)
		if !ok || !isListSetting(settingName) {
			return queue.InvalidFieldError(settingName, "the value must be text, a number, true or false")
		}
		text, err := formatNameList(list)
		if err != nil {
			return queue.InvalidFieldError(settingName, "%s", err)
		}
		value = text
	}
	k, text, err := FindSetting(settingName, fmt.Sprint(value))
	if err != nil {
		return err
	}
	if _, isDuplicate := l.ValuesBySetting[k.Name]; isDuplicate {
		names := append([]string{k.Name}, k.Aliases()...)
		if len(names) == 1 {
			names = append(names, strings.ReplaceAll(k.Name, "_", "-"))
		}
		return queue.InvalidFieldError(settingName, "given twice, under two names; keep only one of: %s",
			strings.Join(names, ", "))
	}
	l.ValuesBySetting[k.Name] = text
	return k.CheckValue(text)
}

// formatNameList converts a list of names to the text of a setting.
func formatNameList(names []any) (string, error) {
	if len(names) == 0 {
		return noneWord, nil
	}
	var words []string
	for _, v := range names {
		word := fmt.Sprint(v)
		switch v.(type) {
		case string, int64:
		default:
			return "", fmt.Errorf("must be a list of names, like [\"alice\", \"@staff\"]")
		}
		if len(strings.Fields(word)) != 1 {
			return "", fmt.Errorf("%q is not a valid name; write a user as NAME and a group as @NAME, without spaces",
				word)
		}
		words = append(words, word)
	}
	return strings.Join(words, " "), nil
}

// ReadEnv returns the settings in an environment. For example, QUEUECTL_WORKERS=7 sets the setting workers to
// 7.
func ReadEnv(environ []string) (Layer, error) {
	l := Layer{Origin: FromEnv, ValuesBySetting: map[string]string{}}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		bare, ours := strings.CutPrefix(name, "QUEUECTL_")
		if !ours {
			continue
		}
		k, text, err := FindSetting(bare, value)
		if k == nil && err != nil && findAlias(strings.ToLower(bare)) == nil {
			continue // other variables, such as QUEUECTL_SOCKET, are not settings
		}
		if err == nil {
			err = k.CheckValue(text)
		}
		if fault, wrong := errors.AsType[*queue.Error](err); wrong {
			// Use only the message of the error, without the name of the setting, because the text already names the variable.
			return l, queue.Errorf(queue.CodeInvalid, "environment variable %s: %s", name, fault.Message)
		}
		l.ValuesBySetting[k.Name] = text
	}
	return l, nil
}
