package settings

import (
	"testing"

	"github.com/queuectl/queuectl/config"
)

// newKeeper returns a Keeper with the given content of the settings file. A flag sets the number of workers to
// 3.
func newKeeper(t *testing.T, fileSettings map[string]string) *Keeper {
	t.Helper()
	k, err := New(Options{FlagValues: map[string]string{"workers": "3"}})
	if err == nil {
		err = k.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: fileSettings})
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// If the new content of the settings file is invalid, the old content stays in effect, even after later changes
// of other settings.
func TestInvalidSettingsFileChangesNothing(t *testing.T) {
	k := newKeeper(t, map[string]string{"priority": "7"})
	if err := k.ReplaceFileLayer(config.Layer{Origin: config.FromFile,
		ValuesBySetting: map[string]string{"priority": "high"}}); err == nil {
		t.Fatal("an invalid file was accepted")
	}
	if err := k.ReplaceSettingValue("max_pending", "9", ""); err != nil {
		t.Fatal(err)
	}
	if c := k.CurrentConfig(); c.DefaultPriority != 7 || c.MaxPending != 9 {
		t.Errorf("priority is %d and max_pending %d, want 7 and 9", c.DefaultPriority, c.MaxPending)
	}
}

// A value in the running layer overrides flags. When the value is removed, the flags are in effect again.
func TestRunningValueOverridesFlags(t *testing.T) {
	k := newKeeper(t, nil)
	for _, c := range []struct {
		stored, running string
		want            int
	}{{"5", "5", 5}, {"5", "", 3}, {"", "6", 6}, {"", "", 3}} {
		if err := k.ReplaceSettingValue("workers", c.stored, c.running); err != nil {
			t.Fatal(err)
		}
		if got := k.CurrentConfig().WorkerCount(); got != c.want {
			t.Errorf("stored %q, running %q: %d workers, want %d", c.stored, c.running, got, c.want)
		}
	}
}

// PreviewStoredValue and PreviewFile return the settings as they would be after a change, but do not make the change.
func TestPreviewsChangeNothing(t *testing.T) {
	k := newKeeper(t, map[string]string{"priority": "1"})
	k.RecordConfigAtStart()
	if c, waiting, err := k.PreviewStoredValue("priority", "2"); err != nil || waiting ||
		c.DefaultPriority != 2 {
		t.Errorf("with a stored priority: %d, waiting %v, %v", c.DefaultPriority, waiting, err)
	}
	if _, waiting, err := k.PreviewStoredValue("run_as", "submitter"); err != nil || !waiting {
		t.Errorf("with another run_as: waiting %v, %v; want that it waits for a restart", waiting, err)
	}
	if got := k.CurrentConfig().DefaultPriority; got != 1 {
		t.Errorf("priority is %d, want the one of the file", got)
	}
}
