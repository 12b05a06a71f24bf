package sqlite

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/store"
)

// While a commit takes longer than slowCommitTime, SlowCommitError and Examine report it. Examine does not
// wait for the commit to end.
func TestSlowCommitIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, t.TempDir())
		if err := s.SlowCommitError(); err != nil {
			t.Errorf("without a commit: %v", err)
		}
		release := blockWriter(t, s)
		time.Sleep(slowCommitTime - time.Second)
		if err := s.SlowCommitError(); err != nil {
			t.Errorf("before slowCommitTime: %v", err)
		}
		time.Sleep(2500 * time.Millisecond)
		if err := s.SlowCommitError(); err == nil ||
			!strings.Contains(err.Error(), "waiting for the disk of "+s.stateDir+" for 11s") {
			t.Errorf("after slowCommitTime: %v", err)
		}
		if list := s.Examine(t.Context()); !slices.ContainsFunc(list, func(f store.Finding) bool {
			return f.Level == store.LevelFailure && strings.Contains(f.Message, "waiting for the disk")
		}) {
			t.Errorf("doctor reports %+v, want a failure of the disk", list)
		}
		release()
		if err := s.SlowCommitError(); err != nil {
			t.Errorf("after the commit: %v", err)
		}
		s.Close()
	})
}
