package daemon

import "github.com/queuectl/queuectl/runner/rundir"

// spareSlots is the number of slots with disk space that the table has in addition to one for each
// worker. A result that could not be written to the journal keeps its slot, so its worker needs
// another slot.
const spareSlots = 64

// slots says which slots of the running table are taken.
type slots struct {
	// useCounts counts, for each slot, the reasons why it is taken: its attempt runs, has processes that
	// outlive SIGKILL, or has a result that is not in the journal. A slot with count 0 is free.
	useCounts     [rundir.MaxSlots + 1]int8
	reservedCount int  // slots that have disk space reserved in the running table
	hasWaiter     bool // a worker waits for a free slot
}

// emptyLocked returns the first free slot, or 0 if no slot is free.
func (l *slots) emptyLocked() int64 {
	for slot := 1; slot <= l.reservedCount; slot++ {
		if l.useCounts[slot] == 0 {
			return int64(slot)
		}
	}
	return 0
}

// freeSlotLocked frees the slot of an attempt whose result is in the journal or acknowledged.
func (s *server) freeSlotLocked(a *attempt) {
	s.table.Free(a.slot)
	s.releaseSlotLocked(a)
}

// releaseSlotLocked removes one reason why the slot of an attempt is taken, and wakes the workers that
// wait for a free slot.
func (s *server) releaseSlotLocked(a *attempt) {
	s.slots.useCounts[a.slot]--
	if s.slots.hasWaiter {
		s.slots.hasWaiter = false
		s.workers.cond.Broadcast()
	}
}
