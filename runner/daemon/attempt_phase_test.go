package daemon

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// attemptPhaseTransitions decides which phase an attempt can enter. Any other move leaves the phase unchanged.
func TestAttemptPhaseTransitionsAreChecked(t *testing.T) {
	allowed := map[[2]attemptPhase]bool{
		{attemptWaiting, attemptStarting}:          true,
		{attemptStarting, attemptRunning}:          true,
		{attemptStarting, attemptUnjournaled}:      true,
		{attemptStarting, attemptJournaled}:        true,
		{attemptRunning, attemptUnjournaled}:       true,
		{attemptRunning, attemptJournaled}:         true,
		{attemptUnjournaled, attemptJournaled}:     true,
		{attemptUnjournaled, attemptAcknowledged}:  true,
		{attemptJournaled, attemptAcknowledged}:    true,
		{attemptAcknowledged, attemptAcknowledged}: false,
	}
	for from := attemptWaiting; from <= attemptAcknowledged; from++ {
		for to := attemptWaiting; to <= attemptAcknowledged; to++ {
			a, want := attempt{phase: from}, from
			if allowed[[2]attemptPhase{from, to}] {
				want = to
			}
			if ok := a.enterPhaseLocked(to); ok != (want == to && from != to) || a.phase != want {
				t.Errorf("from phase %d to %d: got %t and phase %d, want phase %d", from, to, ok, a.phase, want)
			}
		}
	}
}

// newTestServer returns a server with one worker, one slot, a journal and a running table.
func newTestServer(t *testing.T) *server {
	t.Helper()
	s := &server{
		Options:            Options{Log: slog.New(slog.DiscardHandler)},
		orphanReapRequests: make(chan struct{}, 1),
		lifetime:           runnerLifetime{ended: make(chan struct{})},
		serviceLink:        serviceLink{runnerLastBusyAt: time.Now()},
		attempts:           map[wire.Lease]*attempt{},
		tableSlots:         tableSlotUses{reservedSlotCount: 1},
		workers:            workerGroup{targetWorkerCount: 1, workerCount: 1},
		leaseExpiry:        leaseExpiry{watchdogNeededSignal: make(chan struct{}, 1)},
		runningTable:       newRunningTable(t),
	}
	s.workers.wakeUp = sync.NewCond(&s.mu)
	s.diskQueue.wake = make(chan struct{}, 1)
	var err error
	if s.journal, err = rundir.OpenJournal(t.TempDir(), 0o600, s.runningTable.SetJournalSize); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.journal.Close() })
	return s
}

// addRunningAttempt adds an attempt that runs in slot 1.
func addRunningAttempt(s *server, l wire.Lease) *attempt {
	a := &attempt{startFrame: &wire.StartAttempt{Lease: l}, outputLog: output.NewLog(1<<20, nil), phase: attemptRunning,
		tableSlot: 1, pid: 7}
	s.attempts[l] = a
	s.tableSlots.useCountBySlot[1]++
	s.workers.busyWorkerCount++
	return a
}

// An attempt keeps its slot in the running table until its result is written to the journal or acknowledged by the
// service. The first of these two events frees the slot. The second event must not free the slot again.
func TestUnjournaledAttemptKeepsTableSlot(t *testing.T) {
	for _, first := range []string{"journal", "acknowledgement"} {
		s, l := newTestServer(t), wire.Lease{Seq: 1, Fence: 2}
		a := addRunningAttempt(s, l)
		s.mu.Lock()
		a.recordResultLocked([]byte("result"), 0)
		s.unjournaledAttemptCount++
		s.workers.busyWorkerCount--
		if s.tableSlots.firstFreeSlotLocked() != 0 || !a.hasEnded() || a.isExecuting() {
			t.Errorf("%s: the slot is free although the result is not in the journal", first)
		}
		s.mu.Unlock()
		if first == "journal" {
			s.retryJournalWrites()
			if a.phase != attemptJournaled || a.resultJournalSegment != 1 {
				t.Errorf("got phase %d, segment %d, want the result in segment 1", a.phase, a.resultJournalSegment)
			}
		}
		s.mu.Lock()
		s.forgetAcknowledgedResultsLocked(&wire.AckResults{Leases: []wire.Lease{l, l, {Seq: 9}}})
		if s.tableSlots.firstFreeSlotLocked() != 1 || s.tableSlots.useCountBySlot[1] != 0 || s.unjournaledAttemptCount != 0 ||
			len(s.attempts) != 0 {
			t.Errorf("%s: got %d reasons, %d unjournaled, %d attempts, want none", first, s.tableSlots.useCountBySlot[1],
				s.unjournaledAttemptCount, len(s.attempts))
		}
		s.mu.Unlock()
		s.retryJournalWrites()
		if s.tableSlots.useCountBySlot[1] != 0 {
			t.Errorf("%s: the slot was freed twice", first)
		}
	}
}

// A closing runner ends when the result of its last attempt has been stored. journalAndSendResult stores the result and
// frees the attempt's slot in the running table.
func TestLastResultEndsClosingRunner(t *testing.T) {
	s, l := newTestServer(t), wire.Lease{Seq: 1, Fence: 2}
	a := addRunningAttempt(s, l)
	s.mu.Lock()
	s.startClosingLocked()
	if s.lifetime.phase != runnerClosing {
		t.Errorf("got phase %d while an attempt runs, want closing", s.lifetime.phase)
	}
	s.mu.Unlock()
	s.journalAndSendResult(a, &process.Result{EndedAt: time.Now()}, &workspace{server: s, attempt: a})
	select {
	case <-s.lifetime.ended:
	default:
		t.Error("the runner has not ended after its last attempt")
	}
	if s.lifetime.phase != runnerEnded || a.phase != attemptJournaled || s.tableSlots.useCountBySlot[1] != 0 ||
		s.workers.busyWorkerCount != 0 {
		t.Errorf("got phase %d, attempt phase %d, %d reasons, %d busy", s.lifetime.phase, a.phase,
			s.tableSlots.useCountBySlot[1], s.workers.busyWorkerCount)
	}
	s.mu.Lock()
	s.startClosingLocked() // closing a second time must not close the channel again
	s.mu.Unlock()
}
