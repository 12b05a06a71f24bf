package memstore

import "github.com/queuectl/queuectl/queue"

// createHooks creates the hook jobs for some events of a job, such as its completion.
func (s *Store) createHooks(j *job, events queue.HookEvents, now queue.Millis) {
	if events &= j.HookEvents | s.hooks.Triggers; events == 0 || j.HookEvents&queue.IsHook != 0 ||
		s.hooks.MakeHooks == nil {
		return
	}
	if j.UID < 0 || j.disownToUID != 0 {
		s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
		return
	}
	waitingHooks := func() (n int) {
		for _, other := range s.jobs {
			if other.HookUID == j.UID && other.HookEvents&queue.IsHook != 0 && other.State.Waiting() {
				n++
			}
		}
		return n
	}
	if waitingHooks() >= queue.MaxWaitingHookJobs {
		s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
		return
	}
	for _, draft := range s.hooks.MakeHooks(new(copyJob(j.Job)), events) {
		if waitingHooks() >= queue.MaxWaitingHookJobs ||
			!s.makeRoom(draft.UID, storedBytes(&draft), s.hooks.MaxBytesPerUser) {
			s.addEvent(j, queue.EventHookDropped, queue.EventDetail{}, now)
			continue
		}
		receipt, err := s.assignIDs([]queue.Job{draft})
		if err != nil {
			panic("memstore: cannot assign an id to a hook: " + err.Error())
		}
		draft.ID, draft.Seq = receipt.IDs[0], receipt.Seqs[0]
		draft.HookEvents, draft.HookUID = draft.HookEvents|queue.IsHook, j.UID
		if _, known := s.owners[draft.UID]; !known && s.hooks.Owner != "" && draft.UID == s.hooks.UID {
			s.owners[draft.UID] = s.hooks.Owner
		}
		s.insert(draft, draft.UID, now)
	}
}
