package sql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/noderequests"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/test/pgserver"
)

// reportStarted reports a job as started.
func reportStarted(t *testing.T, s *Server, j *queue.Job) {
	t.Helper()
	if _, err := s.Exchange(t.Context(), store.Report{Started: []store.Started{{Lease: j.Lease(), At: s.Now(),
		Worker: "1/1", PID: 1}}}); err != nil {
		t.Fatal(err)
	}
}

// completedOn returns the report that a job has completed.
func completedOn(s *Server, j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.Decision{State: queue.Completed, Started: true},
		Attempt: queue.Attempt{StartedAt: s.Now(), EndedAt: s.Now()}}
}

// rejoin opens a node with an existing name, but another state directory.
func rejoin(t *testing.T, url, name string) *Server {
	t.Helper()
	s, err := OpenServer(t.Context(), url, Options{Order: queue.Order{Scheduling: "fifo", Aging: "time",
		Interval: time.Minute}, Node: NodeConfig{Name: name, DirID: "another", Lease: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// If the server rejects a statement because its disk is full, the store does not break. Once there is space,
// the same report succeeds: statements that the rejected transaction did not prepare are prepared again.
func TestRefusedRowsAreWrittenLater(t *testing.T) {
	a := openNode(t, pgserver.Shared(t).Create(t), "a")
	enqueueOn(t, a, draft(), draft())
	jobs := claimOn(t, a, 2)
	end := func(j *queue.Job) error {
		_, err := a.Exchange(t.Context(), store.Report{
			Started: []store.Started{{Lease: j.Lease(), At: a.Now(), Worker: "1/1", PID: 1}},
			Ended:   []store.Settlement{completedOn(a, j)}})
		return err
	}
	if err := end(&jobs[0]); err != nil {
		t.Fatal(err)
	}
	sql := func(text string) {
		if err := a.Requests.Conn.Do(t.Context(), func(c *pgdb.Conn) error {
			return c.ExecScript(t.Context(), text)
		}); err != nil {
			t.Fatal(err)
		}
	}
	sql(`CREATE FUNCTION queuectl.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$; CREATE TRIGGER full_disk BEFORE UPDATE ON queuectl.jobs FOR EACH ROW EXECUTE FUNCTION queuectl.full()`)
	if err := end(&jobs[1]); !errors.Is(err, queue.ErrNoSpace) {
		t.Errorf("without space: %v", err)
	}
	sql(`DROP TRIGGER full_disk ON queuectl.jobs`)
	if err := end(&jobs[1]); err != nil || a.Err() != nil {
		t.Errorf("with space: %v, and the store has %v", err, a.Err())
	}
}

// A node signals changes of other nodes through Changes even if it applies them in its own transactions. An
// idle node signals them too.
func TestBusyNodeAppliesChanges(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	for range 5 {
		for len(b.changes) > 0 {
			<-b.changes
		}
		enqueueOn(t, a, draft())
		if err := b.Do(t.Context(), Urgent, func(*Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Changes():
		case <-time.After(20 * time.Second):
			t.Fatal("no notification of a change within 20 s")
		}
	}
}

// After another node has changed a lease, watchers on this node see the change. A node that takes over the
// job sees it too.
func TestWatchersSeeLeaseChangesOfAnotherNode(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a := openNode(t, url, "a")
	enqueueOn(t, a, draft())
	held := claimOn(t, a, 1)
	reportStarted(t, a, &held[0])
	b := openNode(t, url, "b") // b opens after the claim, so it reads the complete lease
	watching := b.Watch([]int64{1})
	defer watching.Stop()
	if err := a.Pause(t.Context(), store.Pause{Lease: held[0].Lease(), On: true, UID: 7}); err != nil {
		t.Fatal(err)
	}
	for paused := false; !paused; {
		select {
		case <-watching.C:
			j, err := b.Get(t.Context(), "1")
			if err != nil {
				t.Fatal(err)
			}
			paused = j.PausedAt != 0
			watching.ChangedJobs()
		case <-time.After(20 * time.Second):
			t.Fatal("a watcher on another node does not see that the job was paused")
		}
	}
	expireLease(t, b, "a")
	lost, err := b.TakeOver(t.Context())
	if err != nil || len(lost) != 1 || lost[0].Job.PausedAt == 0 {
		t.Errorf("the paused job is taken over as %+v, %v", lost, err)
	}
	if j, err := b.Get(t.Context(), "1"); err != nil || j.PausedAt == 0 || j.PausedBy != 7 {
		t.Errorf("after the takeover, the job is paused at %v by %d, %v", j.PausedAt, j.PausedBy, err)
	}
}

// The leases of a node that returns with another state directory are taken over. The node itself may take
// them over. Jobs that other nodes have reserved in the meantime stay with those nodes.
func TestNodeComesBackEmpty(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	enqueueOn(t, a, draft(), draft(), draft())
	held := claimOn(t, a, 2)
	reportStarted(t, a, &held[0])
	theirs := claimOn(t, b, 1)
	expireLease(t, b, "a")
	again := rejoin(t, url, "a")
	if m, err := again.ExtendLease(t.Context(), store.Load{Workers: 1}); err != nil || !m.HasOrphans {
		t.Errorf("membership %+v, %v; want HasOrphans, because leases without a node exist", m, err)
	}
	lost, err := again.TakeOver(t.Context())
	if err != nil || len(lost) != 2 {
		t.Errorf("%d leases are taken over, %v", len(lost), err)
	}
	if _, err := b.Exchange(t.Context(), store.Report{Ended: []store.Settlement{completedOn(b, &theirs[0])}}); err != nil {
		t.Fatal(err)
	}
	var ends []store.Settlement
	for i := range lost {
		ends = append(ends, completedOn(again, &lost[i].Job))
	}
	if _, err := again.Exchange(t.Context(), store.Report{Ended: ends}); err != nil {
		t.Fatal(err)
	}
	if third := openNode(t, url, "c"); len(third.mem.leases) != 0 {
		t.Errorf("all jobs have ended, but %d are leased", len(third.mem.leases))
	}
	if m, err := again.ExtendLease(t.Context(), store.Load{Workers: 1}); err != nil || m.HasOrphans {
		t.Errorf("membership %+v, %v; want no orphans, because no lease remains", m, err)
	}
}

// A waiting claim gets a job that another node made ready, even if the transaction that applied this change
// was undone.
func TestRollbackKeepsAppliedDeltas(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	b.StopListening() // b now applies changes only in its own transactions
	waits := make(chan []queue.Job, 1)
	go func() {
		jobs, _ := b.Await(t.Context(), 1)
		waits <- jobs
	}()
	for waiting := false; !waiting; {
		b.mu.Lock()
		waiting = b.waiter != nil
		b.mu.Unlock()
	}
	enqueueOn(t, a, draft())
	b.Do(t.Context(), Urgent, func(*Tx) error { return errors.New("a statement that the database refuses") })
	if err := b.Do(t.Context(), Urgent, func(*Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	select {
	case jobs := <-waits:
		if len(jobs) != 1 {
			t.Errorf("the waiting claim gets %v, want one job", seqs(jobs))
		}
	case <-time.After(20 * time.Second):
		t.Error("a waiting claim got no job, though one is ready")
	}
}

// A node receives notifications of requests promptly, even while it reads the changes of another node.
func TestHintsAreReceived(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	late := 0
	for i := range 60 {
		for len(b.Hints()) > 0 {
			<-b.Hints()
		}
		began := time.Now()
		err := a.Requests.Conn.Do(t.Context(), func(c *pgdb.Conn) error {
			_, err := c.Number(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, commitsChannel, a.node)
			for until := began.Add(time.Duration(i*8) * time.Microsecond); time.Now().Before(until); {
			}
			_, err2 := c.Number(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, noderequests.Channel, b.node)
			return errors.Join(err, err2)
		})
		if err != nil {
			t.Fatal(err)
		}
		<-b.Hints()
		if time.Since(began) > pollInterval*3/4 { // late: a poll found the request, not a notification
			late++
		}
	}
	if late > 2 { // on a busy machine, some hints are late
		t.Errorf("%d of 60 hints were missed", late)
	}
}

// A job that waits behind another one for a resource of this node starts after a user cancels the other job
// on another node. It also starts after another node runs the other job.
func TestClosedLanesAreRechecked(t *testing.T) {
	gpu := func(n int) queue.Job {
		return draftWithDemand(queue.Demand{Kind: queue.GateResource, Key: "gpu", N: n})
	}
	for name, gone := range map[string]func(b *Server) error{
		"cancelled": func(b *Server) error {
			return b.Change(t.Context(), 2, store.Change{Verb: queue.VerbCancel, UID: 7})
		},
		"claimed": func(b *Server) error {
			err := b.SetNode(t.Context(), store.Node{Name: "b", Resources: map[string]int{"gpu": 2}})
			if jobs := claimOn(t, b, 1); len(jobs) != 1 || jobs[0].Seq != 2 {
				t.Errorf("the other node has %v", seqs(jobs))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgserver.Shared(t).Create(t)
			a, b := openNode(t, url, "a"), openNode(t, url, "b")
			for _, s := range []*Server{a, b} {
				if err := s.SetNode(t.Context(), store.Node{Name: s.mem.lanes.node.Name,
					Resources: map[string]int{"gpu": 2 * int(records.Bit(s == a))}}); err != nil {
					t.Fatal(err)
				}
			}
			enqueueOn(t, a, gpu(1), gpu(2), gpu(1))
			if jobs := claimOn(t, a, 9); len(jobs) != 1 {
				t.Fatalf("node a claims %v, want one job", seqs(jobs))
			}
			if err := gone(b); err != nil {
				t.Fatal(err)
			}
			claimOn(t, a, 1) // applies the change of the other node
			for soon := time.Now().Add(20 * time.Second); a.closedHereStale && time.Now().Before(soon); {
				<-a.DueSooner()
				if _, err := a.Promote(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if jobs := claimOn(t, a, 9); len(jobs) != 1 || jobs[0].Seq != 3 {
				t.Errorf("after the change, node a claims %v, want job 3", seqs(jobs))
			}
		})
	}
}

// If the server rejects a row, only the request with this row fails. Requests in the same transaction
// succeed.
func TestRefusedRowFailsOnlyItsOperation(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a := openNode(t, url, "a")
	enqueueOn(t, a, draft())
	if err := a.Requests.Conn.Do(t.Context(), func(c *pgdb.Conn) error {
		return c.ExecScript(t.Context(), `ALTER TABLE queuectl.jobs ADD CHECK (queue <> 'refused')`)
	}); err != nil {
		t.Fatal(err)
	}
	bad := draft()
	bad.Queue = "refused"
	<-a.writerToken // block commits, so that all requests are in one transaction
	done := make(chan error, 3)
	for _, j := range []queue.Job{draft(), bad, draft()} {
		go func() {
			_, err := a.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{j}, UID: 7})
			done <- err
		}()
	}
	for waiting := 0; waiting < 3; {
		a.mu.Lock()
		waiting = 0
		for _, class := range a.waiting {
			waiting += len(class)
		}
		a.mu.Unlock()
	}
	a.writerToken <- struct{}{}
	refused := 0
	for range 3 {
		if err := <-done; errors.Is(err, queue.ErrInternal) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if jobs := claimOn(t, a, 9); refused != 1 || len(jobs) != 3 || a.Err() != nil {
		t.Errorf("%d requests are refused, %d jobs are stored, store error %v; want 1, 3 and none",
			refused, len(jobs), a.Err())
	}
}

// Each request to a node is returned by Asked once, and again after the node's service has restarted. Wanted
// lists the requests whose callers still wait.
func TestNodeRequestsAreTakenOnce(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	for range 70 {
		go a.Ask(t.Context(), b.node, []byte(`{}`), false)
	}
	seen := map[int64]bool{}
	for len(seen) < 70 {
		list, err := b.Asked(t.Context(), false, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if seen[one.N] {
				t.Errorf("request %d was returned twice", one.N)
			}
			seen[one.N] = true
		}
	}
	if wanted, err := b.Wanted(t.Context()); err != nil || len(wanted) != 70 {
		t.Errorf("%d requests are wanted, %v; want 70", len(wanted), err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if list, err := openNode(t, url, "b").Asked(t.Context(), false, 99); err != nil || len(list) != 70 {
		t.Errorf("after a restart, the node gets %d requests, %v; want 70", len(list), err)
	}
}

// A database whose encoding cannot store every text is rejected when it is opened, and not only when the
// server gets a text that it cannot store.
func TestDatabaseWithAnotherEncodingIsRefused(t *testing.T) {
	p := pgserver.Shared(t)
	pgserver.Query(t, p.URL(
		"postgres"), `CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	if _, err := OpenServer(t.Context(), p.URL("latin"), Options{Node: NodeConfig{Name: "a", DirID: "a"}}); !errors.Is(err,
		queue.ErrInvalid) || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("%v", err)
	}
}
