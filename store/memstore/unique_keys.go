package memstore

import (
	"cmp"

	"github.com/queuectl/queuectl/queue"
)

// newestWithKey returns the newest of a user's jobs with a unique key (see newer), or nil if none has the key.
func (s *Store) newestWithKey(uid int, key string) (found *job) {
	if key == "" {
		return nil
	}
	for _, j := range s.jobs {
		if j.UID == uid && j.Unique == key && (found == nil || newer(j, found)) {
			found = j
		}
	}
	return found
}

// newer reports whether a is newer than b. An unfinished job is newest, then the job that ended last.
func newer(a, b *job) bool {
	if a.State.Ended() != b.State.Ended() {
		return b.State.Ended()
	}
	return cmp.Or(cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.Seq, b.Seq)) > 0
}

// keyHolder returns the job that prevents other jobs from using a unique key now, or nil.
func (s *Store) keyHolder(uid int, key string, now queue.Millis) *job {
	if j := s.newestWithKey(uid, key); j != nil && (!j.State.Ended() || j.EndedAt.Add(j.UniqueFor) > now) {
		return j
	}
	return nil
}
