package config

import "testing"

func TestPlacesNameTheKindOfService(t *testing.T) {
	user, err := User()
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[Kind]Places{SystemService: System(), OwnService: user, DirectoryService: In(t.TempDir())} {
		if got := p.Kind(); got != want {
			t.Errorf("%s: got %s, want %s", p.State, got, want)
		}
	}
}
