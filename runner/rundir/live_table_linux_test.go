package rundir

import (
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// If a living runner changes its table, another process sees the change immediately.
func TestLiveRunningTableShowsChanges(t *testing.T) {
	dir := t.TempDir()
	table := newRunningTable(t, dir)
	live, err := MapLiveRunningTable(dir)
	if err != nil {
		t.Fatal(err)
	}
	if live.RunnerPID() != 4711 || live.LeasesExpire() {
		t.Errorf("got pid %d, leases expire %t, want 4711 and false", live.RunnerPID(), live.LeasesExpire())
	}
	want := wire.Lease{Seq: 5, Fence: 6}
	check := func(when string, want wire.Lease, wantForked bool) {
		t.Helper()
		if l, forked := live.AttemptInSlot(MaxTableSlots); l.Seq != want.Seq || want.Seq != 0 && l != want ||
			forked != wantForked {
			t.Errorf("%s: got %v, forked %t, want %v, %t", when, l, forked, want, wantForked)
		}
	}
	check("free", wire.Lease{}, false)
	table.SetStartingAttempt(MaxTableSlots, want, 7)
	check("starting", want, false)
	table.SetAttemptProcess(MaxTableSlots, 8, 9)
	table.SetLeasesExpire(true)
	check("forked", want, true)
	if !live.LeasesExpire() {
		t.Error("the leases do not expire")
	}
	table.FreeSlot(MaxTableSlots)
	check("freed", wire.Lease{}, true) // the pid stays until the next SetStartingAttempt
}
