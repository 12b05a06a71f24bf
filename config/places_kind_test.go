package config

import "testing"

func TestPlacesNameTheKindOfService(t *testing.T) {
	user, err := UserPlaces()
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[Kind]Places{SystemService: SystemPlaces(), OwnService: user,
		DirectoryService: PlacesIn(t.TempDir())} {
		if got := p.Kind(); got != want {
			t.Errorf("%s: got %s, want %s", p.State, got, want)
		}
	}
}
