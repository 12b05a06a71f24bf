package daemon

import (
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// newRunningTable creates a running table.
func newRunningTable(t *testing.T) *rundir.MappedRunningTable {
	t.Helper()
	table, err := rundir.CreateRunningTable(t.TempDir(), 0o600, 4711, 99)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// When the leases end, the runner removes the waiting attempts, and starts no attempt until the leases are renewed. A
// renewal contains a duration: the time from its arrival to the new end of the leases. If the duration is 0, the leases
// do not end.
func TestExpiredLeasesPreventAttemptStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{
			Options:  Options{Log: slog.New(slog.DiscardHandler)},
			attempts: map[wire.Lease]*attempt{}, leaseExpiry: leaseExpiry{watchdogNeededSignal: make(chan struct{}, 1)},
			runningTable: newRunningTable(
				t),
		}
		s.workers.wakeUp = sync.NewCond(&s.mu)
		withLock := func(f func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			f()
		}
		prolong := func(d time.Duration) { withLock(func() { s.extendLeasesLocked(&wire.ExtendLeases{Duration: d}) }) }
		checkExpired := func(want bool) {
			t.Helper()
			synctest.Wait()
			withLock(func() {
				if s.leaseExpiry.haveLeasesExpiredLocked() != want {
					t.Errorf("the leases have expired: %v, want %v", !want, want)
				}
			})
		}
		checkExpired(false)
		waiting := &attempt{startFrame: &wire.StartAttempt{Lease: wire.Lease{Seq: 1}}, outputLog: output.NewLog(0, nil)}
		s.attempts[wire.Lease{Seq: 1}], s.waitingAttempts = waiting, []*attempt{waiting}
		prolong(3 * time.Second)
		time.Sleep(2 * time.Second)
		s.runningTable.Close() // writing to a closed table would fail, so this renewal does not write
		prolong(3 * time.Second)
		s.runningTable = newRunningTable(t)
		time.Sleep(2 * time.Second)
		checkExpired(false)
		withLock(func() {
			if len(s.waitingAttempts) != 1 {
				t.Error("a waiting attempt was dropped before its lease expired")
			}
		})
		time.Sleep(time.Second)
		checkExpired(true)
		withLock(func() {
			if len(s.waitingAttempts) != 0 || len(s.attempts) != 0 {
				t.Error("a waiting attempt was kept after its lease expired")
			}
			s.addWaitingAttemptLocked(&wire.StartAttempt{Lease: wire.Lease{Seq: 2}, Argv: []string{"x"}, AccountUID: -1})
			if len(s.attempts) != 0 {
				t.Error("an attempt starts after its lease expired")
			}
		})
		prolong(0)
		checkExpired(false)
		time.Sleep(time.Hour)
		checkExpired(false)
		// According to the boot clock, the new end of the leases has already passed when this renewal arrives. This is the
		// case if the machine has slept.
		withLock(func() {
			s.extendLeasesLocked(&wire.ExtendLeases{Duration: time.Hour,
				ExpiryBootMillis: (runner.TimeSinceBoot() - time.Second).Milliseconds()})
		})
		checkExpired(true)
	})
}

// If the leases are limited in time, attempts wait until a watchdog runs or could not be started. If the leases
// do not end, attempts start immediately.
func TestAttemptsWaitForLeaseWatchdog(t *testing.T) {
	for _, c := range []struct {
		leaseDuration time.Duration
		unblock       func(s *server) // lets the attempt start
	}{
		{0, func(*server) {}},
		{time.Hour, func(s *server) { s.setLeaseWatchdog(nil) }},
		{time.Hour, func(s *server) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.extendLeasesLocked(&wire.ExtendLeases{})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{
				Options:  Options{Log: slog.New(slog.DiscardHandler)},
				attempts: map[wire.Lease]*attempt{}, leaseExpiry: leaseExpiry{watchdogNeededSignal: make(chan struct{}, 1)},
				runningTable: newRunningTable(
					t),
				tableSlots: tableSlotUses{reservedSlotCount: 1}, workers: workerGroup{targetWorkerCount: 1, workerCount: 1},
			}
			s.workers.wakeUp = sync.NewCond(&s.mu)
			s.mu.Lock()
			s.extendLeasesLocked(&wire.ExtendLeases{Duration: c.leaseDuration})
			s.addWaitingAttemptLocked(&wire.StartAttempt{Lease: wire.Lease{Seq: 1}, Argv: []string{"x"}, AccountUID: -1})
			s.mu.Unlock()
			begun := false
			go func() {
				s.awaitNextAttempt(nil, &workDir{Dir: privdir.New(t.TempDir())})
				begun = true
			}()
			synctest.Wait()
			if begun != (c.leaseDuration == 0) {
				t.Errorf("leased for %v: started: %v", c.leaseDuration, begun)
			}
			c.unblock(s)
			synctest.Wait()
			if !begun {
				t.Errorf("leased for %v: the attempt does not start", c.leaseDuration)
			}
		})
	}
}
