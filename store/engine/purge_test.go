package engine

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A purge by age removes an ended job although the count of ended jobs is too low, as after damage to the job's row.
func TestPurgeByAgeIgnoresJobCounts(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Close()
	enqueueForUser(t, s, 1001, 1)
	damageRow(t, s, `UPDATE jobs SET state = 6, ended_at = 5 WHERE seq = ?`, int64(1))
	filter := store.EndedJobFilter{States: []queue.State{queue.Completed}, EndedBefore: 1 << 60}
	if n, err := s.PurgeEndedJobs(t.Context(), filter, 10, nil); n != 1 || err != nil {
		t.Errorf("the purge removed %d jobs, %v; want 1", n, err)
	}
}
