package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/rundir"
)

// spareSlotCount is the number of slots in the running table in addition to one for each worker. If a
// result cannot be written to the journal, its attempt keeps its slot, so the worker needs another slot.
const spareSlotCount = 64

// slotUses says which slots of the running table are taken. The running table is the file that lists the
// running attempts.
type slotUses struct {
	// useCounts counts, for each slot, the reasons why it is taken: its attempt runs, has processes that
	// SIGKILL did not end, or has a result that is not in the journal. A slot with count 0 is free.
	useCounts     [rundir.MaxSlots + 1]int8
	reservedCount int  // number of slots for which the running table has reserved disk space
	hasWaiter     bool // a worker waits for a free slot
}

// firstFreeLocked returns the first free slot, or 0 if no slot is free.
func (l *slotUses) firstFreeLocked() int64 {
	return int64(slices.Index(l.useCounts[1:l.reservedCount+1], 0) + 1)
}

// freeSlotLocked frees the slot of an attempt whose result is in the journal or acknowledged.
func (s *server) freeSlotLocked(a *attempt) {
	s.runningTable.FreeSlot(a.slot)
	s.releaseSlotUseLocked(a)
}

// releaseSlotUseLocked removes one of the reasons why the slot of an attempt is taken, and wakes workers
// that wait for a free slot.
func (s *server) releaseSlotUseLocked(a *attempt) {
	s.slots.useCounts[a.slot]--
	if s.slots.hasWaiter {
		s.slots.hasWaiter = false
		s.workers.cond.Broadcast()
	}
}
