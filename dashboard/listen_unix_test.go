//go:build unix

package dashboard

import (
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// All sockets that systemd passes to the service are checked against the configuration, not only the first one.
func TestEverySystemdSocketMustMatchConfiguration(t *testing.T) {
	var handed []net.Listener
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		handed = append(handed, l)
	}
	s := New(Options{Listeners: handed, Log: slog.New(slog.DiscardHandler)})
	defer s.Close()
	if err := s.ApplyConfig(Config{}); !errors.Is(err, queue.ErrInvalid) || s.Address() != "" {
		t.Errorf("without TLS and with a socket beyond loopback: the page listens on %q, %v", s.Address(), err)
	}
	s = New(Options{Listeners: handed[:1], Log: slog.New(slog.DiscardHandler)})
	defer s.Close()
	if err := s.ApplyConfig(Config{}); err != nil || s.Address() != handed[0].Addr().String() {
		t.Errorf("with sockets on loopback only: the page listens on %q, %v", s.Address(), err)
	}
}
