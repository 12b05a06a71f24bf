package memstore

import (
	"cmp"

	"github.com/queuectl/queuectl/queue"
)

// newestWithKey returns the job that has a unique key and has not ended or, if all have ended, the one that
// ended last.
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

// newer reports whether the job a, or else b, holds a unique key that both have: the one that has not ended,
// or else the one that ended last.
func newer(a, b *job) bool {
	if a.State.Ended() != b.State.Ended() {
		return b.State.Ended()
	}
	return cmp.Or(cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.Seq, b.Seq)) > 0
}

// keyHolder returns the job that prevents others from using a unique key at this time.
func (s *Store) keyHolder(uid int, key string, now queue.Millis) *job {
	if j := s.newestWithKey(uid, key); j != nil && (!j.State.Ended() || j.EndedAt.Add(j.UniqueFor) > now) {
		return j
	}
	return nil
}
