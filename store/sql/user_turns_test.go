package sql

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// openPriorityNode returns a node of the database at url. It claims jobs by priority.
func openPriorityNode(t *testing.T, url, name string) *Server {
	t.Helper()
	s, err := OpenServer(t.Context(), url, Options{
		Order: queue.Order{Scheduling: queue.ByPriority, Aging: "time", Interval: time.Minute},
		Node:  NodeConfig{Name: name, DirID: name, Lease: time.Hour},
	})
	if err == nil {
		err = s.SetNode(t.Context(), store.Node{Name: name, Resources: map[string]int{"gpu": 10000}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueueForUsers enqueues jobs for each of the users 1 to users. For each list of demands, a user gets as
// many jobs as times says.
func enqueueForUsers(t *testing.T, s *Server, users, times int, demands ...[]queue.Demand) {
	t.Helper()
	for uid := 1; uid <= users; uid++ {
		var list []queue.Job
		for range times {
			for _, d := range demands {
				list = append(list, draft(func(j *queue.Job) { j.UID, j.Demands = uid, d }))
			}
		}
		if _, err := s.Enqueue(t.Context(), store.Request{Drafts: list, UID: uid}); err != nil {
			t.Fatal(err)
		}
	}
}

func lock(key string, n int) []queue.Demand {
	return []queue.Demand{{Kind: queue.GateLock, Key: key, N: n}}
}

// cost is how many statements a node sends to its server, and how many round trips it makes.
type cost struct{ statements, trips int64 }

// costOf returns what a call costs.
func costOf(s *Server, call func()) cost {
	before := cost{s.writer.StatementsSent, s.writer.RoundTrips}
	call()
	return cost{s.writer.StatementsSent - before.statements, s.writer.RoundTrips - before.trips}
}

// Users take turns job by job, but a claim queries the server by lanes. So its cost does not grow with the
// number of jobs.
func TestTurnsOfManyJobsTakeFewQueries(t *testing.T) {
	pgserver.Shared(t) // called here because it skips the test if there is no server
	const users, few, many = 8, 48, 128
	for name, demands := range map[string][][]queue.Demand{
		"no demands":          {nil},
		"a lock":              {lock("l", 10000)},
		"a rate":              {{{Kind: queue.GateRate, Key: "r", N: 10000, Period: time.Hour}}},
		"a resource":          {{{Kind: queue.GateResource, Key: "gpu", N: 1}}},
		"lanes by turns":      {nil, lock("l", 10000), lock("m", 10000)},
		"a lock that is full": {nil, lock("l", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := openPriorityNode(t, pgserver.Shared(t).Create(t), "a")
			enqueueForUsers(t, s, users, 60/len(demands), demands...)
			take := func(want int) cost {
				of := map[int]int{}
				c := costOf(s, func() {
					for _, j := range claimOn(t, s, want) {
						of[j.UID]++
					}
				})
				if len(of) != users {
					t.Errorf("a claim of %d jobs got these: %v", want, of)
				}
				return c
			}
			take(2 * users) // finds the lanes' first jobs
			short, long := take(few), take(many)
			t.Logf("%d jobs cost %+v, %d cost %+v", few, short, many, long)
			const rare = 2 // extra statements, because a node sometimes reads the size of the database
			if long.statements > short.statements+rare || long.trips > short.trips+rare {
				t.Errorf("%d jobs cost %+v, %d cost %+v; want no more", few, short, many, long)
			}
		})
	}
}

// After another node has made a change, a node reads only the lanes of the affected users again. One query is
// enough for several users, or for all.
func TestChangedLanesTakeOneQuery(t *testing.T) {
	var changed, all []cost
	for _, users := range []int{4, 40} {
		url := pgserver.Shared(t).Create(t)
		a, b := openPriorityNode(t, url, "a"), openPriorityNode(t, url, "b")
		enqueueForUsers(t, a, users, 3, lock("l", 10000))
		claimOn(t, a, users)
		enqueueForUsers(t, b, 1, 1, lock("l", 10000))
		claimOn(t, a, 0)
		refresh := func(stale func(q *queueState)) (c cost) {
			err := a.Do(t.Context(), Urgent, func(tx *Tx) error {
				q := a.mem.lanes.state("default")
				stale(q)
				c = costOf(a, func() {
					if err := tx.refresh(); err != nil {
						t.Error(err)
					}
				})
				if len(q.users) != users {
					t.Errorf("%d of %d users have open lanes", len(q.users), users)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		changed = append(changed, refresh(func(q *queueState) {
			if q.stale || len(q.staleUsers) != 1 {
				t.Errorf("of %d users, a node reads the lanes of %v, of all: %v; want user 1", users, q.staleUsers, q.stale)
			}
		}))
		all = append(all, refresh(a.mem.lanes.markStale))
	}
	t.Logf("after a change: %+v, of all: %+v", changed, all)
	for _, c := range append(changed, all...) {
		if c.trips != 1 {
			t.Errorf("the query for the lanes of users took %+v, want one round trip", c)
		}
	}
}

// A claim reads complete rows only of the jobs that it takes. For the next job of a lane it reads only the
// columns that decide the lane's rank.
func TestClaimReadsOfTheNextJobOnlyItsRank(t *testing.T) {
	s := openPriorityNode(t, pgserver.Shared(t).Create(t), "a")
	enqueueForUsers(t, s, 2, 3, nil)
	claimOn(t, s, 2) // finds the lanes' first jobs
	err := s.Do(t.Context(), Urgent, func(tx *Tx) error {
		jobs, _, err := tx.rules.Claim(2)
		for id, l := range tx.readAhead.lanes {
			if len(l.Rows) != 1 || l.Next == nil {
				t.Errorf("lane %d: %d jobs were read, and the position %v of the next one; want 1 and a position",
					id, len(l.Rows), l.Next)
			}
		}
		if len(jobs) != 2 || len(tx.readAhead.lanes) != 2 {
			t.Errorf("claimed %v of %d lanes", jobs, len(tx.readAhead.lanes))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
