//go:build linux || windows

package service

import (
	"testing"

	"github.com/queuectl/queuectl/control"
)

// While a directory hangs, only the reload that reads the settings waits. Requests and other changes of
// settings do not wait.
func TestHangingDirectoryDelaysNoRequest(t *testing.T) {
	s := newService(t, "access.read", "61300")
	called, answer := make(chan struct{}), make(chan struct{})
	blockDirectory(&s.directory, func() {
		close(called)
		<-answer
	})
	change := func(readers string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.layers[0].Values["access.read"] = readers
		if err := s.merge(); err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		change("dora 61301")
		s.resolveAccess()
	}()
	<-called
	change("61302")
	s.resolveAccess()
	if got := s.Right(&control.Peer{UID: 61302}); got != control.Read {
		t.Errorf("after another change: %s", got)
	}
	close(answer)
	<-done
	if got := s.Right(&control.Peer{UID: 61301}); got != control.None || s.unknownNames() != "" {
		t.Errorf("what was overtaken holds: %s, %s", got, s.unknownNames())
	}
}
