package config

import "testing"

func TestServiceKindFollowsPaths(t *testing.T) {
	user, err := UserPaths()
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[ServiceKind]Paths{SystemService: SystemPaths(), UserService: user,
		DirectoryService: PathsInDir(t.TempDir())} {
		if got := p.ServiceKind(); got != want {
			t.Errorf("%s: got %s, want %s", p.StateDir, got, want)
		}
	}
}
