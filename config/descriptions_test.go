package config

import (
	"maps"
	"slices"
	"testing"
)

// Each setting and each table of the settings file has a description. Nothing else has one.
func TestEverySettingHasADescription(t *testing.T) {
	var want []string
	for _, k := range AllSettings() {
		want = append(want, k.Name)
	}
	for _, table := range SettingsTableNames {
		want = append(want, "["+table+"]")
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(descriptionsByName())); !slices.Equal(got, want) {
		t.Errorf("descriptions.txt describes\n%q\nwant\n%q", got, want)
	}
	for name, text := range descriptionsByName() {
		if text == "" {
			t.Errorf("the description of %s is empty", name)
		}
	}
}
