package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
)

// If both the machine and the user have a service, the client prints once which of the two services it uses.
func TestAmbiguousServiceMessageAppearsOnce(t *testing.T) {
	user, system := config.PathsInDir(t.TempDir()), config.PathsInDir(filepath.Join(t.TempDir(), "system"))
	if got := ambiguousServiceMessage(user, system); got != "" {
		t.Errorf("without a service of the machine: %s", got)
	}
	if err := os.Mkdir(system.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := ambiguousServiceMessage(user, system); !strings.Contains(got, user.SocketPath) ||
		!strings.Contains(got, "--socket "+system.SocketPath) {
		t.Errorf("the first time: got %q, want both sockets", got)
	}
	if got := ambiguousServiceMessage(user, system); got != "" {
		t.Errorf("the second time: %s", got)
	}
}
