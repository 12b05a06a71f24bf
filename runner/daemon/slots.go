package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/rundir"
)

// spareTableSlotCount is the number of slots in the running table in addition to one for each worker. If the result of
// an attempt cannot be written to the journal, the attempt keeps its slot. Its worker then needs a spare slot for the
// next attempt.
const spareTableSlotCount = 64

// tableSlotUses records which slots of the running table are in use. The running table is the file that lists the
// running attempts.
type tableSlotUses struct {
	// useCountBySlot counts, for each slot, the reasons for which it is in use. Possible reasons are: the attempt runs,
	// its result is not in the journal yet, or it has processes that survived SIGKILL. A slot with count 0 is free.
	useCountBySlot    [rundir.MaxTableSlots + 1]int8
	reservedSlotCount int  // number of slots for which the running table has reserved disk space
	hasWaitingWorker  bool // a worker waits for a free slot
}

// firstFreeSlotLocked returns the first free slot, or 0 if no slot is free.
func (l *tableSlotUses) firstFreeSlotLocked() int64 {
	return int64(slices.Index(l.useCountBySlot[1:l.reservedSlotCount+1], 0) + 1)
}

// freeSlotLocked frees the slot of an attempt whose result is in the journal or was acknowledged by the
// service.
func (s *server) freeSlotLocked(a *attempt) {
	s.runningTable.FreeSlot(a.tableSlot)
	s.releaseSlotUseLocked(a)
}

// releaseSlotUseLocked removes one of the reasons for which the slot of an attempt is in use (see useCountBySlot). It
// then wakes workers that wait for a free slot.
func (s *server) releaseSlotUseLocked(a *attempt) {
	s.tableSlots.useCountBySlot[a.tableSlot]--
	if s.tableSlots.hasWaitingWorker {
		s.tableSlots.hasWaitingWorker = false
		s.workers.wakeUp.Broadcast()
	}
}
