package config_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// newLayer returns a layer of settings. namesAndValues contains a name, its value, the next name, its value, and so on.
func newLayer(origin config.Origin, namesAndValues ...string) config.Layer {
	l := config.Layer{Origin: origin, ValuesBySetting: map[string]string{}}
	for i := 0; i < len(namesAndValues); i += 2 {
		l.ValuesBySetting[namesAndValues[i]] = namesAndValues[i+1]
	}
	return l
}

// Every default is a valid value. ValueText returns each default as a text that means the same value.
func TestDefaultsAreValid(t *testing.T) {
	c, err := config.Merge()
	if err != nil {
		t.Fatal(err)
	}
	shown := config.Layer{Origin: config.FromFlag, ValuesBySetting: map[string]string{}}
	for i := range config.AllSettings() {
		k := &config.AllSettings()[i]
		if err := k.CheckValue(k.DefaultText); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if k.Description() == "" || c.OriginInEffect(k.Name) != config.FromDefault {
			t.Errorf("%s: has no text, or comes from %s", k.Name, c.OriginInEffect(k.Name))
		}
		shown.ValuesBySetting[k.Name] = k.ValueText(&c.Settings)
	}
	again, err := config.Merge(shown)
	if err != nil || again.Settings != c.Settings {
		t.Errorf("got %+v, %v, want %+v", again.Settings, err, c.Settings)
	}
}

// The setting web.hosts is a list of host names and IP addresses without ports.
func TestWebHostsAcceptsNamesWithoutPorts(t *testing.T) {
	for text, want := range map[string]string{"none": "", "A.example b": "a.example b",
		"[2001:DB8::1] 192.0.2.1": "2001:db8::1 192.0.2.1", "a:80": "!", "a/b": "!", "": "!", "-a": "!"} {
		k, _, _ := config.FindSetting("web.hosts", "")
		c, err := config.Merge(config.Layer{Origin: config.FromFile, ValuesBySetting: map[string]string{k.Name: text}})
		if got := strings.Join(c.WebHostNames(), " "); (err != nil) != (want == "!") || err == nil && got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// Every setting rejects an invalid value, with an error that names the setting.
func TestSettingErrorsNameTheSetting(t *testing.T) {
	for i := range config.AllSettings() {
		k := &config.AllSettings()[i]
		for _, bad := range []string{"", "-1e9", "\x00", "NaN"} {
			if (k.Name == "shell" || strings.HasPrefix(k.Name, "hooks.") || bad == "NaN" &&
				(k.Name == "socket_group" || k.Name == "hooks_user" || k.Name == "web.hosts" || k.Name == "node" ||
					strings.HasPrefix(k.Name, "access."))) && bad != "" && bad != "\x00" {
				// Any text is valid for these settings, such as programs and names.
				continue
			}
			var e *queue.Error
			if err := k.CheckValue(bad); !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != k.Name {
				t.Errorf("%s = %q: got %v, want invalid %s", k.Name, bad, err, k.Name)
			}
		}
	}
}

// An alias of a setting may have another unit than the setting. For example, job_timeout is in milliseconds.
func TestSettingAliasesConvertUnits(t *testing.T) {
	for _, c := range [][4]string{
		{"max_concurrent_jobs", "3", "workers", "3"}, {"default_max_tries", "4", "max_retries", "3"},
		{"job_timeout", "1500", "timeout", "1.5"},
		{"job-timeout", "90s", "timeout", "90s"}, {"Kill-After", "1s", "kill_after", "1s"},
		{"job_timeout", "", "timeout", ""},
	} {
		k, text, err := config.FindSetting(c[0], c[1])
		if err != nil || k.Name != c[2] || text != c[3] {
			t.Errorf("%s = %s: got %v %q, %v, want %s = %s", c[0], c[1], k, text, err, c[2], c[3])
		}
	}
	if _, _, err := config.FindSetting("default_max_tries", "0"); err == nil {
		t.Error("no run at all was taken")
	}
	if _, _, err := config.FindSetting("max_retrys", ""); err == nil || !strings.Contains(err.Error(), `"max_retries"`) {
		t.Errorf("got %v, want it to name max_retries", err)
	}
}

// If two origins set the same setting, the stronger origin wins. OverriddenSettings then lists that setting for
// the weaker origin.
func TestStrongerSettingOriginWins(t *testing.T) {
	layers := []config.Layer{
		newLayer(config.FromFile, "workers", "1", "max_retries", "1", "priority", "1"),
		newLayer(config.FromQueueStore, "workers", "2", "max_retries", "2"),
		newLayer(config.FromEnv, "workers", "3"), newLayer(config.FromFlag, "workers", "4"),
	}
	c, err := config.Merge(layers...)
	if err != nil || c.Workers != 4 || c.MaxRetries != 2 || c.DefaultPriority != 1 {
		t.Fatalf("got %d, %d, %d, %v", c.Workers, c.MaxRetries, c.DefaultPriority, err)
	}
	if got := []config.Origin{c.OriginInEffect("workers"), c.OriginInEffect("max_retries"), c.OriginInEffect("priority"),
		c.OriginInEffect("jitter")}; !slices.Equal(got, []config.Origin{config.FromFlag, config.FromQueueStore,
		config.FromFile,
		config.FromDefault}) {
		t.Errorf("got origins %v", got)
	}
	if got := c.OverriddenSettings(config.FromFile); !slices.Equal(got, []string{"workers", "max_retries"}) {
		t.Errorf("hidden settings of the file: %v", got)
	}
	if got := c.OverriddenSettings(config.FromFlag); got != nil {
		t.Errorf("hidden settings of the flags: %v", got)
	}
}

// Merge copies the layers, so the caller may change them afterwards.
func TestMergeCopiesItsLayers(t *testing.T) {
	layers := []config.Layer{newLayer(config.FromFile, "workers", "1"), newLayer(config.FromQueueStore)}
	c, err := config.Merge(layers...)
	if err != nil {
		t.Fatal(err)
	}
	layers[1].ValuesBySetting["workers"] = "2"
	layers[0] = newLayer(config.FromFile)
	if got := c.OriginInEffect("workers"); got != config.FromFile {
		t.Errorf("the origin is %s, want %s", got, config.FromFile)
	}
}

// KeepRestartOnlySettings keeps the old values of the settings that take effect only at a restart, and of no other
// settings.
func TestRestartOnlySettingsKeepOldValues(t *testing.T) {
	old, _ := config.Merge()
	c, err := config.Merge(newLayer(config.FromQueueStore, "run_as", "submitter", "socket_mode", "0666",
		"socket_group", "wheel", "priority", "7"))
	if err != nil {
		t.Fatal(err)
	}
	c.KeepRestartOnlySettings(&old)
	want := old.Settings
	want.DefaultPriority = 7
	if c.Settings != want {
		t.Errorf("got %+v, want %+v", c.Settings, want)
	}
	if got, want := c.SettingsPendingRestart(), []config.PendingSetting{{"run_as", "submitter", config.FromDefault},
		{"socket_mode", "0666", config.FromDefault}, {"socket_group", "wheel", config.FromDefault}}; !slices.Equal(got,
		want) {
		t.Errorf("waiting are %v, want %v", got, want)
	}
	if now, then := c.OriginInEffect("run_as"), c.StrongestOrigin("run_as"); now != config.FromDefault ||
		then != config.FromQueueStore {
		t.Errorf("run_as is of %s, from the next start of %s; want default, then stored", now, then)
	}
}

// ReadEnv reads the variables that are named QUEUECTL_ followed by a setting. It ignores all others.
func TestReadEnvReadsSettingVariables(t *testing.T) {
	l, err := config.ReadEnv([]string{"QUEUECTL_WORKERS=7", "QUEUECTL_JOB_TIMEOUT=1500", "QUEUECTL_SOCKET=/x", "WORKERS=9",
		"odd"})
	if want := map[string]string{"workers": "7", "timeout": "1.5"}; err != nil || !maps.Equal(l.ValuesBySetting, want) {
		t.Errorf("got %v, %v, want %v", l.ValuesBySetting, err, want)
	}
	for _, bad := range []string{"QUEUECTL_WORKERS=x", "QUEUECTL_DEFAULT_MAX_TRIES=0", "QUEUECTL_WORKERS="} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := config.ReadEnv([]string{bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want it named", bad, err)
		}
	}
}
