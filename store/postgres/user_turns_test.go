package postgres

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// openPriorityNode opens a node on the database at url. The node claims jobs in the order of their priority.
func openPriorityNode(t *testing.T, url, name string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, Options{
		RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingUnit: "time", AgingInterval: time.Minute},
		Node:      NodeConfig{NodeName: name, StateDirID: name, LeaseDuration: time.Hour},
	})
	if err == nil {
		err = s.SetThisNodeProperties(t.Context(), store.Node{Name: name, ResourceUnits: map[string]int{"gpu": 10000}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueueForUsers enqueues jobs of the users 1 to userCount. Each user gets jobsPerDemandList jobs for each list of
// demands (locks and other limits).
func enqueueForUsers(t *testing.T, s *Store, userCount, jobsPerDemandList int, demands ...[]queue.Demand) {
	t.Helper()
	for uid := 1; uid <= userCount; uid++ {
		var list []queue.Job
		for range jobsPerDemandList {
			for _, d := range demands {
				list = append(list, newDraft(func(j *queue.Job) { j.UID, j.Demands = uid, d }))
			}
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: list, UID: uid}); err != nil {
			t.Fatal(err)
		}
	}
}

// lockDemands returns the demand for a lock that maxHolders jobs may hold at the same time.
func lockDemands(key string, maxHolders int) []queue.Demand {
	return []queue.Demand{{Kind: queue.GateLock, GateKey: key, Amount: maxHolders}}
}

// serverCallCost is how many statements a node sends to the server, and for how many replies it waits.
type serverCallCost struct{ statements, roundTrips int64 }

// measureServerCallCost returns how many statements and round trips a call takes.
func measureServerCallCost(s *Store, call func()) serverCallCost {
	before := serverCallCost{s.writer.StatementsSent, s.writer.RoundTrips}
	call()
	return serverCallCost{s.writer.StatementsSent - before.statements, s.writer.RoundTrips - before.roundTrips}
}

// Although users take turns with each job, a claim reads many jobs of several users in each query. So the
// number of queries does not grow with the number of jobs.
func TestUserTurnsOfManyJobsTakeFewQueries(t *testing.T) {
	pgserver.SharedServer(t) // called here because it skips the test if there is no server
	const users, few, many = 8, 48, 128
	for name, demands := range map[string][][]queue.Demand{
		"no demands":          {nil},
		"a lock":              {lockDemands("l", 10000)},
		"a rate":              {{{Kind: queue.GateRate, GateKey: "r", Amount: 10000, RatePeriod: time.Hour}}},
		"a resource":          {{{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}}},
		"lanes by turns":      {nil, lockDemands("l", 10000), lockDemands("m", 10000)},
		"a lock that is full": {nil, lockDemands("l", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := openPriorityNode(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
			enqueueForUsers(t, s, users, 60/len(demands), demands...)
			take := func(want int) serverCallCost {
				of := map[int]int{}
				c := measureServerCallCost(s, func() {
					for _, j := range claimOnNode(t, s, want) {
						of[j.UID]++
					}
				})
				if len(of) != users {
					t.Errorf("a claim of %d jobs got these: %v", want, of)
				}
				return c
			}
			take(2 * users) // this claim finds the first jobs of all users
			short, long := take(few), take(many)
			t.Logf("%d jobs cost %+v, %d cost %+v", few, short, many, long)
			const rare = 2 // allowed additional statements, because a node sometimes reads the size of the database
			if long.statements > short.statements+rare || long.roundTrips > short.roundTrips+rare {
				t.Errorf("%d jobs cost %+v, %d cost %+v; want no more", few, short, many, long)
			}
		})
	}
}
