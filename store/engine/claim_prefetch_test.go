package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/test/pgserver"
)

// The query for a claim is sent early, before the first operation of the transaction. Its rows are discarded
// if a write of the transaction may have changed them. The end of a leased job does not discard the rows, but
// the ended job is not claimed again.
func TestTransactionWritesDiscardClaimPrefetch(t *testing.T) {
	server := pgserver.SharedServer(t)
	important := engine.NewDraft(func(j *queue.Job) { j.Priority = 9 })
	cases := map[string]struct {
		ended []int // indexes into the first three jobs, of which the third is leased
		do    func(t *engine.Tx) error
		want  []int64
		taken bool // whether the rows of the early query are used
	}{
		"nothing":   {want: []int64{1, 4}, taken: true},
		"an end":    {ended: []int{2}, want: []int64{1, 4}, taken: true},
		"a new job": {want: []int64{1, 7}, do: func(t *engine.Tx) error { return engine.EnqueueInTx(t, important) }},
		"a cancellation": {want: []int64{1, 5}, do: func(t *engine.Tx) error {
			return t.Rules().ChangeJob(4, store.JobChange{Verb: queue.VerbCancel})
		}},
		"a statement": {want: []int64{1, 5}, do: func(t *engine.Tx) error {
			return t.Exec(`UPDATE jobs SET rank = rank + 1 WHERE seq = 4`)
		}},
	}
	for n := range 2 * len(cases) {
		name := slices.Sorted(maps.Keys(cases))[n/2]
		c, early := cases[name], n%2 == 0
		t.Run(fmt.Sprintf("%s, read early: %v", name, early), func(t *testing.T) {
			s, err := postgres.Open(t.Context(), server.CreateDatabase(t),
				postgres.Options{RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingInterval: time.Minute},
					Node: postgres.NodeConfig{NodeName: "a", StateDirID: "a", LeaseDuration: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			enqueueOnNode(t, s, important, engine.NewDraft(), engine.NewDraft(), engine.NewDraft(), engine.NewDraft(),
				engine.NewDraft())
			jobs := claimOnNode(t, s, 3)
			if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{ReleasedLeases: []queue.Lease{jobs[0].Lease()},
				Settlements: []store.Settlement{completedSettlementOnNode(s, &jobs[1])}}); err != nil {
				t.Fatal(err)
			}
			s.SetPrefetchThreshold(1)
			var got []queue.Job
			expected, taken := false, false
			// The ends of these attempts are written before the writer lock is held. The rows of the early
			// query are then not read immediately.
			var ends []store.Settlement
			if early {
				ends = []store.Settlement{completedSettlementOnNode(s, &jobs[2])}
			}
			err = s.DoWithForecast(t.Context(), ends, 2, func(t *engine.Tx) (err error) {
				expected = t.HasClaimPrefetch()
				for _, i := range c.ended {
					if _, err := t.Rules().ReportAndClaim(&store.LeaseReport{
						Settlements: []store.Settlement{completedSettlementOnNode(s, &jobs[i])}}); err != nil {
						return err
					}
				}
				if c.do != nil {
					if err := c.do(t); err != nil {
						return err
					}
				}
				taken = t.HasClaimPrefetch()
				got, _, err = t.Rules().Claim(2)
				return err
			})
			if err != nil || !slices.Equal(seqsOfJobs(got), c.want) {
				t.Errorf("got %v, %v; want %v", seqsOfJobs(got), err, c.want)
			}
			if !expected || taken != c.taken {
				t.Errorf("prefetch sent: %v, want true; its result was used: %v, want %v", expected, taken, c.taken)
			}
		})
	}
}
