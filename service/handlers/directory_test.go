//go:build linux || windows

package handlers

import (
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
)

// If the directory of users hangs, only a reload of the settings waits for it. Requests and other changes of
// settings do not wait.
func TestHangingUserDirectoryDelaysNoRequest(t *testing.T) {
	s := newTestAPIWithSettings(t, "access.read", "61300")
	called, answer := make(chan struct{}), make(chan struct{})
	blockUserLookups(&s.UserDirectory.Resolver, func() {
		close(called)
		<-answer
	})
	change := func(readers string) {
		if err := s.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile,
			ValuesBySetting: map[string]string{"access.read": readers}}); err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		change("dora 61301")
		s.Rights.ResolveAccessSettings()
	}()
	<-called
	change("61302")
	s.Rights.ResolveAccessSettings()
	if got := s.Rights.CurrentRight(&control.Peer{UID: 61302}); got != control.RightRead {
		t.Errorf("after another change: %s", got)
	}
	close(answer)
	<-done
	if got := s.Rights.CurrentRight(&control.Peer{UID: 61301}); got != control.RightNone ||
		s.Rights.UnknownAccessNamesMessage() != "" {
		t.Errorf("an outdated result was kept: %s, %s", got, s.Rights.UnknownAccessNamesMessage())
	}
}
