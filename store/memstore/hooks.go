package memstore

import "github.com/queuectl/queuectl/queue"

// hook creates the hooks for the moments that a job has reached.
func (s *Store) hook(j *job, on queue.HookSet, now queue.Millis) {
	if on &= j.Hooks | s.hooks.On; on == 0 || j.Hooks&queue.HookItself != 0 || s.hooks.Make == nil {
		return
	}
	if j.UID < 0 || j.former != 0 {
		s.tell(j, queue.EventNoHook, queue.EventDetail{}, now)
		return
	}
	waits := func() (n int) {
		for _, other := range s.jobs {
			if other.HookUID == j.UID && other.Hooks&queue.HookItself != 0 && other.State.Waiting() {
				n++
			}
		}
		return n
	}
	if waits() >= queue.MaxHooks {
		s.tell(j, queue.EventNoHook, queue.EventDetail{}, now)
		return
	}
	for _, draft := range s.hooks.Make(new(copyJob(j.Job)), on) {
		if waits() >= queue.MaxHooks || !s.makeRoom(draft.UID, stored(&draft), s.hooks.MaxBytesUser) {
			s.tell(j, queue.EventNoHook, queue.EventDetail{}, now)
			continue
		}
		named, err := s.name([]queue.Job{draft})
		if err != nil {
			panic("memstore: a hook has no id of its own: " + err.Error())
		}
		draft.ID, draft.Seq, draft.Hooks, draft.HookUID = named.IDs[0], named.Seqs[0], draft.Hooks|queue.HookItself, j.UID
		if _, known := s.owners[draft.UID]; !known && s.hooks.Owner != "" && draft.UID == s.hooks.UID {
			s.owners[draft.UID] = s.hooks.Owner
		}
		s.add(draft, draft.UID, now)
	}
}
