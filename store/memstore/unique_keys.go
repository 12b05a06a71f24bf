package memstore

import (
	"cmp"

	"github.com/queuectl/queuectl/queue"
)

// newestJobWithUniqueKey returns the newest of a user's jobs with a unique key (see isNewerKeyHolder), or nil if none
// has the key.
func (s *Store) newestJobWithUniqueKey(uid int, uniqueKey string) (newest *job) {
	if uniqueKey == "" {
		return nil
	}
	for _, j := range s.jobs {
		if j.UID == uid && j.Unique == uniqueKey && (newest == nil || isNewerKeyHolder(j, newest)) {
			newest = j
		}
	}
	return newest
}

// isNewerKeyHolder reports whether a is newer than b. An unfinished job is newest, then the job that ended last.
func isNewerKeyHolder(a, b *job) bool {
	if a.State.HasEnded() != b.State.HasEnded() {
		return b.State.HasEnded()
	}
	return cmp.Or(cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.Seq, b.Seq)) > 0
}

// uniqueKeyHolder returns the job that prevents other jobs from using a unique key now, or nil.
func (s *Store) uniqueKeyHolder(uid int, uniqueKey string, now queue.UnixMillis) *job {
	if j := s.newestJobWithUniqueKey(uid, uniqueKey); j != nil &&
		(!j.State.HasEnded() || j.EndedAt.Add(j.UniqueFor) > now) {
		return j
	}
	return nil
}
