package memstore

import (
	"cmp"

	"github.com/queuectl/queuectl/queue"
)

// newestJobWithKey returns the newest of a user's jobs with a unique key (see isNewer), or nil if none has the key.
func (s *Store) newestJobWithKey(uid int, key string) (newest *job) {
	if key == "" {
		return nil
	}
	for _, j := range s.jobs {
		if j.UID == uid && j.Unique == key && (newest == nil || isNewer(j, newest)) {
			newest = j
		}
	}
	return newest
}

// isNewer reports whether a is newer than b. An unfinished job is newest, then the job that ended last.
func isNewer(a, b *job) bool {
	if a.State.Ended() != b.State.Ended() {
		return b.State.Ended()
	}
	return cmp.Or(cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.Seq, b.Seq)) > 0
}

// keyHolder returns the job that prevents other jobs from using a unique key now, or nil.
func (s *Store) keyHolder(uid int, key string, now queue.Millis) *job {
	if j := s.newestJobWithKey(uid, key); j != nil && (!j.State.Ended() || j.EndedAt.Add(j.UniqueFor) > now) {
		return j
	}
	return nil
}
