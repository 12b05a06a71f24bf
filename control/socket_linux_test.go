package control

import (
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/control/socket"
)

func tempSocketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "s") }

// ownerOnlySocketPerms returns permissions that admit only the owner of the socket and root.
func ownerOnlySocketPerms() socket.Perms { return socket.Perms{Mode: 0o600, GID: -1} }
