package testrig

import (
	"net"
	"testing"
)

// FreeAddress returns a loopback address with a free port.
func FreeAddress(t testing.TB) string {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().String()
}
