package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/test/pgserver"
)

// If another node makes a job ready, a claim that waits on this node gets the job. This holds even if the
// transaction in which this node has learned of the change is rolled back.
func TestRollbackKeepsAppliedCacheDeltas(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openClusterNode(t, url, "a"), openClusterNode(t, url, "b")
	b.StopListening() // from here on, b gets the other node's changes only when it begins a transaction
	waits := make(chan []queue.Job, 1)
	go func() {
		jobs, _ := b.AwaitJobs(t.Context(), 1)
		waits <- jobs
	}()
	for waiting := false; !waiting; {
		waiting = b.HasClaimWaiter()
	}
	enqueueOnNode(t, a, engine.NewDraft())
	b.RunAndCommit(t.Context(), engine.UrgentClass,
		func(*engine.Tx) error { return errors.New("a statement that the database refuses") })
	if err := b.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	select {
	case jobs := <-waits:
		if len(jobs) != 1 {
			t.Errorf("the waiting claim gets %v, want one job", seqsOfJobs(jobs))
		}
	case <-time.After(20 * time.Second):
		t.Error("a waiting claim got no job, though one is ready")
	}
}

// On node a, a job waits for a resource behind a better-ranked job, which waits for more units of this resource. When
// another node cancels or claims the better-ranked job, the first job starts on node a.
func TestChangeByOtherNodeRechecksClosedLanes(t *testing.T) {
	gpu := func(n int) queue.Job {
		return draftWithDemand(queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: n})
	}
	for name, gone := range map[string]func(b *postgres.Store) error{
		"cancelled": func(b *postgres.Store) error {
			return b.ChangeJob(t.Context(), 2, store.JobChange{Verb: queue.VerbCancel, UID: 7})
		},
		"claimed": func(b *postgres.Store) error {
			err := b.SetThisNodeProperties(t.Context(), store.Node{Name: "b", ResourceUnits: map[string]int{"gpu": 2}})
			if jobs := claimOnNode(t, b, 1); len(jobs) != 1 || jobs[0].Seq != 2 {
				t.Errorf("the other node has %v", seqsOfJobs(jobs))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgserver.SharedServer(t).CreateDatabase(t)
			a, b := openClusterNode(t, url, "a"), openClusterNode(t, url, "b")
			for name, s := range map[string]*postgres.Store{"a": a, "b": b} {
				if err := s.SetThisNodeProperties(t.Context(), store.Node{Name: name,
					ResourceUnits: map[string]int{"gpu": 2 * int(records.BoolToInt(s == a))}}); err != nil {
					t.Fatal(err)
				}
			}
			enqueueOnNode(t, a, gpu(1), gpu(2), gpu(1))
			if jobs := claimOnNode(t, a, 9); len(jobs) != 1 {
				t.Fatalf("node a claims %v, want one job", seqsOfJobs(jobs))
			}
			if err := gone(b); err != nil {
				t.Fatal(err)
			}
			claimOnNode(t, a, 1) // with this claim, the node learns of the other node's change
			for soon := time.Now().Add(20 * time.Second); a.HasStaleClosedLanes() && time.Now().Before(soon); {
				<-a.DueChangeHints()
				if _, err := a.ApplyDueChanges(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if jobs := claimOnNode(t, a, 9); len(jobs) != 1 || jobs[0].Seq != 3 {
				t.Errorf("after the change, node a claims %v, want job 3", seqsOfJobs(jobs))
			}
		})
	}
}

// If the server rejects a row, only the request that wrote this row fails. Other requests in the same
// transaction succeed.
func TestRejectedRowFailsOnlyItsOperation(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openClusterNode(t, url, "a")
	enqueueOnNode(t, a, engine.NewDraft())
	if err := a.NodeMessenger.Conn.UseConn(t.Context(), func(c *pgdb.Conn) error {
		return c.ExecScript(t.Context(), `ALTER TABLE queuectl.jobs ADD CHECK (queue <> 'refused')`)
	}); err != nil {
		t.Fatal(err)
	}
	bad := engine.NewDraft()
	bad.Queue = "refused"
	release := a.BlockCommits() // prevent commits, so that all requests get into one transaction
	done := make(chan error, 3)
	for _, j := range []queue.Job{engine.NewDraft(), bad, engine.NewDraft()} {
		go func() {
			_, err := a.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{j}, UID: 7})
			done <- err
		}()
	}
	for a.CountWaitingOperations() < 3 {
		time.Sleep(time.Millisecond)
	}
	release()
	refused := 0
	for range 3 {
		if err := <-done; errors.Is(err, queue.ErrInternal) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if jobs := claimOnNode(t, a, 9); refused != 1 || len(jobs) != 3 || a.Err() != nil {
		t.Errorf("%d requests are refused, %d jobs are stored, store error %v; want 1, 3 and none",
			refused, len(jobs), a.Err())
	}
}

// When the rule of a queue is changed, the queue forgets which user has the next turn. If a node reloads its
// caches, they do not contain forgotten turns or removed queues.
func TestReloadKeepsUserTurnsForgotten(t *testing.T) {
	s := openClusterNode(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	if err := s.SetQueue(t.Context(), "q", store.QueueRule{Weight: 2}); err != nil {
		t.Fatal(err)
	}
	s.CheckReloadKeepsTurnsForgotten(t)
}
