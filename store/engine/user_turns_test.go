package engine_test

import (
	"testing"

	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/test/pgserver"
)

// If another node has changed jobs of some users, a node reads only the lanes of these users again. One query is enough
// to read the lanes of several users, or of all users.
func TestLaneChangesByOtherNodesNeedOneQuery(t *testing.T) {
	var changed, all []int
	for _, users := range []int{4, 40} {
		url := pgserver.SharedServer(t).CreateDatabase(t)
		a, b := openPriorityNode(t, url, "a"), openPriorityNode(t, url, "b")
		enqueueForUsers(t, a, users, 3, lockDemands("l", 10000))
		claimOnNode(t, a, users)
		enqueueForUsers(t, b, 1, 1, lockDemands("l", 10000))
		claimOnNode(t, a, 0)
		one, every := a.CountRefreshRoundTrips(t, users)
		changed, all = append(changed, one), append(all, every)
	}
	t.Logf("round trips after a change: %v, of all: %v", changed, all)
	for _, n := range append(changed, all...) {
		if n != 1 {
			t.Errorf("the query for the lanes of users took %d round trips, want one", n)
		}
	}
}

// A claim reads the complete rows only of the jobs that it takes. Of the job that follows them in the user's
// list, it reads only the columns that decide the rank.
func TestClaimReadsOnlyRankOfNextJob(t *testing.T) {
	s := openPriorityNode(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	enqueueForUsers(t, s, 2, 3, nil)
	claimOnNode(t, s, 2) // this claim finds the first waiting jobs of the users
	err := s.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		jobs, _, err := tx.Rules().Claim(2)
		for id, l := range tx.ReadAheadJobsByLane() {
			if len(l.JobRows) != 1 || l.NextHead == nil {
				t.Errorf("lane %d: %d jobs were read, and the position %v of the next one; want 1 and a position",
					id, len(l.JobRows), l.NextHead)
			}
		}
		if len(jobs) != 2 || len(tx.ReadAheadJobsByLane()) != 2 {
			t.Errorf("claimed %v of %d lanes", jobs, len(tx.ReadAheadJobsByLane()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
