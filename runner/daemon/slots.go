package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/rundir"
)

// spareSlotCount is the number of slots with disk space that the table has in addition to one for each
// worker. A result that could not be written to the journal keeps its slot, so its worker needs
// another slot.
const spareSlotCount = 64

// slotUses says which slots of the running table are taken.
type slotUses struct {
	// useCounts counts, for each slot, the reasons why it is taken: its attempt runs, has processes that
	// outlive SIGKILL, or has a result that is not in the journal. A slot with count 0 is free.
	useCounts     [rundir.MaxSlots + 1]int8
	reservedCount int  // slots that have disk space reserved in the running table
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

// releaseSlotUseLocked removes one reason why the slot of an attempt is taken, and wakes the workers that
// wait for a free slot.
func (s *server) releaseSlotUseLocked(a *attempt) {
	s.slots.useCounts[a.slot]--
	if s.slots.hasWaiter {
		s.slots.hasWaiter = false
		s.workers.cond.Broadcast()
	}
}
