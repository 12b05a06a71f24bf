package memstore

import "github.com/queuectl/queuectl/queue"

// createHookJobs creates the hook jobs for some events of a job, such as its completion.
func (s *Store) createHookJobs(j *job, events queue.HookEvents, now queue.UnixMillis) {
	if events &= j.HookEvents | s.hookSettings.TriggerEvents; events == 0 || j.HookEvents&queue.HookJobFlag != 0 ||
		s.hookSettings.MakeHookDrafts == nil {
		return
	}
	if j.UID < 0 || j.uidAfterLease != 0 {
		s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
		return
	}
	waitingHooks := func() (n int) {
		for _, other := range s.jobs {
			if other.HookUID == j.UID && other.HookEvents&queue.HookJobFlag != 0 && other.State.IsWaiting() {
				n++
			}
		}
		return n
	}
	if waitingHooks() >= queue.MaxWaitingHookJobs {
		s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
		return
	}
	for _, draft := range s.hookSettings.MakeHookDrafts(new(copyJob(j.Job)), events) {
		if waitingHooks() >= queue.MaxWaitingHookJobs ||
			!s.makeRoomForBytes(draft.UID, estimateJobBytes(&draft), s.hookSettings.MaxBytesPerUser) {
			s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
			continue
		}
		receipt, err := s.assignIDs([]queue.Job{draft}, nil)
		if err != nil {
			panic("memstore: cannot assign an id to a hook: " + err.Error())
		}
		draft.ID, draft.Seq = receipt.IDs[0], receipt.Seqs[0]
		draft.HookEvents, draft.HookUID = draft.HookEvents|queue.HookJobFlag, j.UID
		if _, known := s.ownerNames[draft.UID]; !known && s.hookSettings.OwnerName != "" &&
			draft.UID == s.hookSettings.OwnerUID {
			s.ownerNames[draft.UID] = s.hookSettings.OwnerName
		}
		s.insertJob(draft, draft.UID, now)
	}
}
