package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/test/pgserver"
)

// openNode opens a node with one unit of the resource gpu.
func openNode(t *testing.T, url, name string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, Options{Order: queue.Order{Scheduling: "fifo", AgingUnit: "time",
		AgingInterval: time.Minute}, Node: NodeConfig{Name: name, DirID: name, LeaseDuration: time.Hour}})
	if err == nil {
		err = s.SetNode(t.Context(), store.Node{Name: name, Resources: map[string]int{"gpu": 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// expireLease makes the node lease of the node with the given name expire. It uses a connection of s.
func expireLease(t *testing.T, s *Store, name string) {
	t.Helper()
	err := s.leaseConn.Do(t.Context(), func(c *pgdb.Conn) error {
		return c.Exec(`UPDATE nodes SET until = clock_timestamp() - interval '1 s' WHERE name = ?`, name)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func enqueueOn(t *testing.T, s *Store, drafts ...queue.Job) []int64 {
	t.Helper()
	r, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts, UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	return r.Seqs
}

func claimOn(t *testing.T, s *Store, want int) (jobs []queue.Job) {
	t.Helper()
	g, err := s.Exchange(t.Context(), store.Report{WantedJobs: want})
	if err != nil {
		t.Fatal(err)
	}
	return g.Jobs
}

func seqs(jobs []queue.Job) (list []int64) {
	for _, j := range jobs {
		list = append(list, j.Seq)
	}
	return list
}

func draftWithDemand(d queue.Demand) queue.Job {
	j := draft()
	j.Demands = []queue.Demand{d}
	return j
}

// When several nodes share a queue, each job is claimed once. A job that one node enqueues wakes a waiting
// claim of another node, and a node that watches the job is notified of changes by other nodes.
func TestNodesShareAQueue(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	enqueueOn(t, a, draft(), draft(), draft())
	first, second := claimOn(t, a, 2), claimOn(t, b, 9)
	if !slices.Equal(seqs(first), []int64{1, 2}) || !slices.Equal(seqs(second), []int64{3}) {
		t.Fatalf("node a claims %v, node b %v", seqs(first), seqs(second))
	}
	for of, s := range map[int]*Store{2: a, 1: b} {
		if left, err := s.PreviousSession(t.Context()); err != nil || len(left.LeasedJobs) != of {
			t.Errorf("%d leases are a node's own, %v; want %d", len(left.LeasedJobs), err, of)
		}
	}
	waits := make(chan []queue.Job, 1)
	go func() {
		jobs, _ := b.Await(t.Context(), 1)
		waits <- jobs
	}()
	watching := b.Watch([]int64{1})
	defer watching.Stop()
	<-watching.C
	watching.ChangedJobs()
	enqueueOn(t, a, draft())
	if jobs := <-waits; !slices.Equal(seqs(jobs), []int64{4}) {
		t.Errorf("a waiting claim on another node gets %v, want job 4", seqs(jobs))
	}
	if _, err := a.Exchange(t.Context(), store.Report{Starts: []store.AttemptStart{{Lease: first[0].Lease(),
		StartedAt: a.Now(),
		Worker:    "1/1", PID: 1}}}); err != nil {
		t.Fatal(err)
	}
	for b.Counts().States[queue.Processing] != 1 { // the watch reports the enqueue too
		<-watching.C
	}
	if uid := first[0].UID; a.UserBytes(uid) == 0 || b.UserBytes(uid) != a.UserBytes(uid) {
		t.Errorf("the jobs of a user hold %d bytes on one node and %d on the other", a.UserBytes(uid), b.UserBytes(uid))
	}
	if j, err := b.Get(t.Context(), "1"); err != nil || j.State != queue.Processing || j.Fence != first[0].Fence {
		t.Errorf("another node has %v with fence %d, %v", j.State, j.Fence, err)
	}
	if at, err := b.LeaseHolder(t.Context(), 1); err != nil || at != a.Node() {
		t.Errorf("the started job is leased by node %d, %v; want %d", at, err, a.Node())
	}
	if at, err := b.LeaseHolder(t.Context(), 2); err != nil || at != a.Node() {
		t.Errorf("the job that has not started is leased by node %d, %v; want %d", at, err, a.Node())
	}
}

// The bytes of a batch count on every node, whichever node receives the requests of the batch.
func TestNodesCountBytesOfBatches(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	stage := func(s *Store, most int64) error {
		_, err := s.StageBatch(t.Context(), store.Request{UID: 5, Batch: "x", Drafts: []queue.Job{draft()},
			MaxBytesPerUser: most})
		return err
	}
	if err := stage(a, 0); err != nil {
		t.Fatal(err)
	}
	one := a.UserBytes(5)
	enqueueOn(t, b, draft()) // the transaction of this enqueue applies the changes of node a on node b
	if got := b.UserBytes(5); got != one || one < store.JobBytes {
		t.Errorf("the user's jobs use %d bytes on one node, %d on the other", one, got)
	}
	if err := stage(b, 2*one-1); !errors.Is(err, queue.ErrQueueFull) {
		t.Errorf("a second frame beyond the limit, on the other node: got %v, want %v", err, queue.ErrQueueFull)
	}
	if err := stage(b, 2*one); err != nil {
		t.Errorf("a second frame within the limit, on the other node: %v", err)
	}
	receipt, err := a.Enqueue(t.Context(), store.Request{UID: 5, Batch: "x"})
	for more := receipt.Staged; more && err == nil; {
		more, err = a.ApplyBatch(t.Context(), receipt.Batch)
	}
	if err != nil {
		t.Fatal(err)
	}
	enqueueOn(t, b, draft())
	if at, bt := a.UserBytes(5), b.UserBytes(5); at != 2*one || bt != at {
		t.Errorf("after the commit the user's jobs use %d bytes on one node and %d on the other, want %d", at, bt, 2*one)
	}
}

// After a node lease has expired, another node takes over all jobs of that node with new fences. If the first
// node then reports the end of a job, nothing changes, and its store stops.
func TestNodeIsTakenOver(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	enqueueOn(t, a, draft(), draft(), draft())
	held := claimOn(t, a, 2)
	started := []store.AttemptStart{{Lease: held[0].Lease(), StartedAt: a.Now(), Worker: "1/1", PID: 1}}
	if _, err := a.Exchange(t.Context(), store.Report{Starts: started}); err != nil {
		t.Fatal(err)
	}
	if lost, err := b.TakeOver(t.Context()); err != nil || len(lost) != 0 {
		t.Fatalf("a node that lives loses %v, %v", lost, err)
	}
	expireLease(t, b, "a")
	if m, err := b.RenewNodeLease(t.Context(), store.Load{Workers: 1}); err != nil || !m.HasOrphans {
		t.Errorf("%+v, %v", m, err)
	}
	lost, err := b.TakeOver(t.Context())
	if err != nil || len(lost) != 2 {
		t.Fatalf("%v, %v", lost, err)
	}
	for i := range lost {
		l := &lost[i]
		if l.NodeName != "a" || l.Job.Fence == l.OldFence || l.Running != (l.Job.Seq == held[0].Seq) {
			t.Errorf("%+v", l)
		}
	}
	if again, err := b.TakeOver(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("a second takeover returns %v, %v", again, err)
	}
	_, err = a.Exchange(t.Context(), store.Report{Settlements: []store.Settlement{{Lease: held[0].Lease(),
		Decision: queue.Decision{State: queue.Completed, RecordsAttempt: true},
		Attempt:  queue.Attempt{StartedAt: a.Now(), EndedAt: a.Now()}}}})
	if !errors.Is(err, queue.ErrOutcomeUnknown) || a.Err() == nil {
		t.Errorf("a node that was taken over reports: %v, and its store has %v", err, a.Err())
	}
	if j, err := b.Get(t.Context(), "1"); err != nil || j.State != queue.Processing {
		t.Errorf("its job is %v, %v", j.State, err)
	}
	again, err := Open(t.Context(), url, Options{Order: b.Order(), Node: NodeConfig{Name: "a", DirID: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if left, err := again.PreviousSession(t.Context()); err != nil || len(left.LeasedJobs) != 0 {
		t.Errorf("the returning node has the leases %v, %v", left.LeasedJobs, err)
	}
}

// If the node that waits for the due time of a job stops, another node handles the due job a short time
// later.
func TestNodeHandlesTimersOfAnotherNode(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	claimOn(t, b, 1)
	for drained := false; !drained; {
		select {
		case <-b.PromoteHints():
		default:
			drained = true
		}
	}
	later := draft()
	later.RunAt = a.Now().Add(200 * time.Millisecond)
	enqueueOn(t, a, later)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.PromoteHints():
	case <-time.After(20 * time.Second):
		t.Fatal("no node watches the timer of a stopped node")
	}
	if _, err := b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if jobs := claimOn(t, b, 1); len(jobs) != 1 {
		t.Errorf("%d jobs were claimed once the job was due, want 1", len(jobs))
	}
}

// Each node has its own units of resources, and a job that names a node is claimed only there. Locks and user
// quotas apply to all nodes together.
func TestNodesHaveGates(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	gpu := queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 1}
	enqueueOn(t, a, draftWithDemand(gpu), draftWithDemand(gpu), draftWithDemand(gpu))
	first, second := claimOn(t, a, 9), claimOn(t, b, 9)
	if !slices.Equal(seqs(first), []int64{1}) || !slices.Equal(seqs(second), []int64{2}) {
		t.Errorf("with one unit on each node, node a claims %v, node b %v", seqs(first), seqs(second))
	}
	if more := claimOn(t, a, 9); len(more) != 0 {
		t.Errorf("a unit is assigned twice: %v", seqs(more))
	}
	if _, err := b.Exchange(t.Context(), store.Report{Releases: []queue.Lease{second[0].Lease()}}); err != nil {
		t.Fatal(err)
	}
	if more := claimOn(t, a, 9); len(more) != 0 {
		t.Errorf("a unit of another node is assigned: %v", seqs(more))
	}
	if more := claimOn(t, b, 9); !slices.Equal(seqs(more), []int64{2}) {
		t.Errorf("a unit that is free again is not assigned: %v", seqs(more))
	}
	enqueueOn(t, a, draftWithDemand(queue.Demand{Kind: queue.GateNode, Key: "b", Amount: 1}))
	if more := claimOn(t, a, 9); len(more) != 0 {
		t.Errorf("a node claims a job for another node: %v", seqs(more))
	}
	if more := claimOn(t, b, 9); !slices.Equal(seqs(more), []int64{4}) {
		t.Errorf("a node does not claim the job for it: %v", seqs(more))
	}
	lock := queue.Demand{Kind: queue.GateLock, Key: "k", Amount: 1}
	enqueueOn(t, b, draftWithDemand(lock), draftWithDemand(lock))
	if first, second := claimOn(t, b, 9), claimOn(t, a, 9); len(first) != 1 || len(second) != 0 {
		t.Errorf("both nodes hold the lock: %v and %v", seqs(first), seqs(second))
	}
}

// Several nodes claim, finish and enqueue jobs at the same time. No job is lost, and none starts twice.
func TestNodesRace(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	const nodes, each = 3, 40
	var servers []*Store
	for i := range nodes {
		servers = append(servers, openNode(t, url, string(rune('a'+i))))
	}
	type outcome struct {
		seqs []int64
		err  error
	}
	done := make(chan outcome, nodes)
	for _, s := range servers {
		go func() {
			var o outcome
			for i := 0; i < each && o.err == nil; i++ {
				_, o.err = s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft(), draft()}, UID: 7})
			}
			for o.err == nil {
				within, cancel := context.WithTimeout(t.Context(), time.Second)
				jobs, err := s.Await(within, 8)
				cancel()
				if err != nil {
					break
				}
				r := store.Report{}
				for _, j := range jobs {
					o.seqs = append(o.seqs, j.Seq)
					r.Settlements = append(r.Settlements, store.Settlement{Lease: j.Lease(),
						Decision: queue.Decision{State: queue.Completed, RecordsAttempt: true},
						Attempt:  queue.Attempt{StartedAt: s.Now(), EndedAt: s.Now()}})
				}
				var g store.Grant
				if g, o.err = s.Exchange(t.Context(), r); len(g.StaleLeases) > 0 {
					o.err = errors.New("a lease is stale")
				}
			}
			done <- o
		}()
	}
	var all []int64
	for range nodes {
		o := <-done
		if o.err != nil {
			t.Error(o.err)
		}
		all = append(all, o.seqs...)
	}
	slices.Sort(all)
	if len(all) != 2*nodes*each || len(slices.Compact(all)) != 2*nodes*each {
		t.Errorf("%d claims of %d jobs", len(all), 2*nodes*each)
	}
	if c := servers[0].Counts(); c.States[queue.Completed] != 2*nodes*each {
		err := servers[0].Do(t.Context(), engine.Urgent, func(*engine.Tx) error { return nil })
		if c := servers[0].Counts(); err != nil || c.States[queue.Completed] != 2*nodes*each {
			t.Errorf("%v are counted, %v", c.States, err)
		}
	}
}

// A request to another node returns the answer of that node. A request without an answer is removed when its
// context ends.
func TestNodesExchangeRequests(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	go func() {
		for {
			select {
			case <-b.RequestHints():
			case <-t.Context().Done():
				return
			}
			list, err := b.TakeRequests(t.Context(), false, 9)
			for _, one := range list {
				if err == nil {
					err = b.SendReply(t.Context(), one.Number, []byte(`{"to":`+string(one.Payload)+`}`))
				}
			}
			if err != nil {
				return
			}
		}
	}()
	if answer, err := a.SendRequest(t.Context(), b.Node(), []byte(`1`), false); err != nil ||
		string(answer) != `{"to":1}` {
		t.Errorf("%s, %v", answer, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.SendRequest(ctx, 99, []byte(`1`), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request to a node that does not exist: %v", err)
	}
	err := a.leaseConn.Do(t.Context(), func(c *pgdb.Conn) error {
		n, err := c.QueryNumber(`SELECT count(*) FROM asks`)
		if n != 0 {
			t.Errorf("%d requests remain", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The number of round trips does not depend on the number of jobs. To enqueue jobs, or to settle some and
// claim others, takes three: one for the writer lock, one to read which ids are taken or which jobs can be
// claimed, and one to commit.
func TestRoundTripsOfABlock(t *testing.T) {
	a := openNode(t, pgserver.Shared(t).Create(t), "a")
	const block = 250
	for turn := range 4 {
		before := a.writer.RoundTrips
		enqueueOn(t, a, slices.Repeat([]queue.Job{draft()}, block)...)
		if n := a.writer.RoundTrips - before; n > 3 && turn > 0 {
			t.Errorf("the enqueue took %d round trips", n)
		}
	}
	jobs, minute := claimOn(t, a, block), queue.Millis(0)
	for turn := range 3 {
		var r store.Report
		r.WantedJobs = block
		for _, j := range jobs {
			r.Starts = append(r.Starts, store.AttemptStart{Lease: j.Lease(), StartedAt: a.Now(), Worker: "1/1", PID: 1})
			r.Settlements = append(r.Settlements, store.Settlement{Lease: j.Lease(),
				Decision: queue.Decision{State: queue.Completed, RecordsAttempt: true},
				Attempt:  queue.Attempt{StartedAt: a.Now(), EndedAt: a.Now()}})
		}
		before, began := a.writer.RoundTrips, store.Minute.PeriodStart(a.Now())
		g, err := a.Exchange(t.Context(), r)
		if err != nil || len(g.Jobs) != block {
			t.Fatalf("%d jobs, %v", len(g.Jobs), err)
		}
		most := int64(3)
		// The first transaction of a minute also reads the statistics of that minute.
		if began != minute || store.Minute.PeriodStart(a.Now()) != minute {
			minute, most = began, 4
		}
		if n := a.writer.RoundTrips - before; n > most && turn > 0 { // the first round reads more

			t.Errorf("%d round trips", n)
		}
		jobs = g.Jobs
	}
}

// If the clock of a runner's machine is an hour behind, the times that the runner reports are converted to
// the server's clock.
func TestRunnerTimesAreConvertedToServerTime(t *testing.T) {
	a := openNode(t, pgserver.Shared(t).Create(t), "a")
	enqueueOn(t, a, draft())
	job := claimOn(t, a, 1)[0]
	const hour, at = queue.Millis(3_600_000), queue.Millis(1_800_000_000_000)
	report := store.Report{Starts: []store.AttemptStart{{Lease: job.Lease(), StartedAt: at, Worker: "1/1", PID: 1}}}
	a.clockOffset.Store(int64(hour))
	if _, err := a.Exchange(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	if j, err := a.Get(t.Context(), job.ID); err != nil || j.StartedAt != at+hour || report.Starts[0].StartedAt != at {
		t.Errorf("started at %v, %v; the report has %v now", j.StartedAt, err, report.Starts[0].StartedAt)
	}
}

// A node that hangs in the middle of a transaction blocks other nodes only until the server ends the
// transaction. The node then gets an error.
func TestHangingNodeIsEnded(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := openNode(t, url, "a"), openNode(t, url, "b")
	a.AsWriter(func() {
		err := a.writer.Begin()
		if err == nil {
			err = a.writer.Exec(`SELECT one FROM meta FOR UPDATE`)
		}
		if err == nil {
			_, err = a.writer.QueryNumber(`SELECT commits FROM meta`)
		}
		if err != nil {
			t.Error(err)
		}
		began := time.Now()
		enqueueOn(t, b, draft())
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("another node waited for %v", took)
		}
		if _, err := a.writer.QueryNumber(`SELECT commits FROM meta`); database.ErrorKindOf(err) != database.DatabaseBusy {
			t.Errorf("a transaction that was ended still works: %v", err)
		}
		a.writer.Rollback()
	})
	enqueueOn(t, a, draft())
}

// If a transaction has been open for too long, "queuectl doctor" names its role and process.
func TestOldTransactionIsBlamed(t *testing.T) {
	s := openNode(t, pgserver.Shared(t).Create(t), "a")
	c := adminConn(t, s)
	if err := errors.Join(c.Exec(`BEGIN`), c.Exec(`SELECT one FROM meta`)); err != nil {
		t.Fatal(err)
	}
	blamed := fmt.Sprintf("the role queuectl has had a transaction open for 0s (pid %d)", c.PID())
	for old, want := range map[time.Duration]bool{0: true, time.Hour: false} {
		var list []store.Finding
		err := s.Read(t.Context(), func(r *reads.Reader) (err error) {
			list, err = pgdb.ExamineQueue(r, s.config.Database, old)
			return err
		})
		said := slices.ContainsFunc(list, func(f store.Finding) bool { return strings.HasPrefix(f.Message, blamed) })
		if err != nil || said != want {
			t.Errorf("of those older than %v: %v, %v", old, list, err)
		}
	}
}
