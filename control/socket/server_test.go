//go:build linux || windows

package socket

import (
	"net"
	"testing"
)

// The client does not trust a server if it cannot find out which user runs it.
func TestClientSendsNothingToUnknownServer(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	if err := CheckServerTrusted(here, "s"); err == nil {
		t.Error("a connection without a peer user is trusted")
	}
}
