//go:build linux || windows

package service

import (
	"testing"

	"github.com/queuectl/queuectl/control"
)

// While a directory hangs, only the reload that reads the settings waits. Requests and other changes of
// settings do not wait.
func TestHangingDirectoryDelaysNoRequest(t *testing.T) {
	s := newSettingsRig(t, "access.read", "61300")
	called, answer := make(chan struct{}), make(chan struct{})
	blockDirectory(&s.directory.Directory, func() {
		close(called)
		<-answer
	})
	change := func(readers string) {
		s.settings.mu.Lock()
		defer s.settings.mu.Unlock()
		s.settings.layers[layerFile].Values["access.read"] = readers
		if err := s.settings.mergeLocked(); err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		change("dora 61301")
		s.rights.resolveAccess()
	}()
	<-called
	change("61302")
	s.rights.resolveAccess()
	if got := s.rights.Right(&control.Peer{UID: 61302}); got != control.Read {
		t.Errorf("after another change: %s", got)
	}
	close(answer)
	<-done
	if got := s.rights.Right(&control.Peer{UID: 61301}); got != control.None || s.rights.unknownNames() != "" {
		t.Errorf("what was overtaken holds: %s, %s", got, s.rights.unknownNames())
	}
}
