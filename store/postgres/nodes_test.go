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

// openNodeWithGPU opens a node with one unit of the resource gpu.
func openNodeWithGPU(t *testing.T, url, name string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, Options{RankOrder: queue.RankPolicy{Scheduling: "fifo", AgingUnit: "time",
		AgingInterval: time.Minute}, Node: NodeConfig{NodeName: name, StateDirID: name, LeaseDuration: time.Hour}})
	if err == nil {
		err = s.SetThisNodeProperties(t.Context(), store.Node{Name: name, ResourceUnits: map[string]int{"gpu": 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// expireNodeLease makes the node lease of the node with the given name expire. It uses a connection of s.
func expireNodeLease(t *testing.T, s *Store, nodeName string) {
	t.Helper()
	err := s.leaseConn.UseConn(t.Context(), func(c *pgdb.Conn) error {
		return c.Exec(`UPDATE nodes SET until = clock_timestamp() - interval '1 s' WHERE name = ?`, nodeName)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func enqueueOnNode(t *testing.T, s *Store, drafts ...queue.Job) []int64 {
	t.Helper()
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	return r.Seqs
}

func claimOnNode(t *testing.T, s *Store, maxJobs int) (jobs []queue.Job) {
	t.Helper()
	g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: maxJobs})
	if err != nil {
		t.Fatal(err)
	}
	return g.ClaimedJobs
}

func seqsOfJobs(jobs []queue.Job) (jobSeqs []int64) {
	for _, j := range jobs {
		jobSeqs = append(jobSeqs, j.Seq)
	}
	return jobSeqs
}

func draftWithDemand(d queue.Demand) queue.Job {
	j := newDraft()
	j.Demands = []queue.Demand{d}
	return j
}

// When several nodes share a queue, each job is claimed once. A job that one node enqueues wakes a waiting
// claim of another node, and a node that watches the job is notified of changes by other nodes.
func TestNodesClaimEachSharedJobOnce(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft(), newDraft(), newDraft())
	first, second := claimOnNode(t, a, 2), claimOnNode(t, b, 9)
	if !slices.Equal(seqsOfJobs(first), []int64{1, 2}) || !slices.Equal(seqsOfJobs(second), []int64{3}) {
		t.Fatalf("node a claims %v, node b %v", seqsOfJobs(first), seqsOfJobs(second))
	}
	for of, s := range map[int]*Store{2: a, 1: b} {
		if left, err := s.PreviousSession(t.Context()); err != nil || len(left.LeasedJobs) != of {
			t.Errorf("%d leases are a node's own, %v; want %d", len(left.LeasedJobs), err, of)
		}
	}
	waits := make(chan []queue.Job, 1)
	go func() {
		jobs, _ := b.AwaitJobs(t.Context(), 1)
		waits <- jobs
	}()
	watching := b.WatchJobs([]int64{1})
	defer watching.Stop()
	<-watching.C
	watching.ChangedJobs()
	enqueueOnNode(t, a, newDraft())
	if jobs := <-waits; !slices.Equal(seqsOfJobs(jobs), []int64{4}) {
		t.Errorf("a waiting claim on another node gets %v, want job 4", seqsOfJobs(jobs))
	}
	if _, err := a.ReportAndClaim(t.Context(),
		store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: first[0].Lease(), StartedAt: a.Now(),
			WorkerID: "1/1", PID: 1}}}); err != nil {
		t.Fatal(err)
	}
	for b.Counts().JobsByState[queue.Processing] != 1 { // the watch reports the enqueue too
		<-watching.C
	}
	if uid := first[0].UID; a.StoredBytesOfUser(uid) == 0 || b.StoredBytesOfUser(uid) != a.StoredBytesOfUser(uid) {
		t.Errorf("the jobs of a user hold %d bytes on one node and %d on the other", a.StoredBytesOfUser(uid),
			b.StoredBytesOfUser(uid))
	}
	if j, err := b.GetJob(t.Context(), "1"); err != nil || j.State != queue.Processing || j.Fence != first[0].Fence {
		t.Errorf("another node has %v with fence %d, %v", j.State, j.Fence, err)
	}
	if at, err := b.LeaseHolderNodeID(t.Context(), 1); err != nil || at != a.NodeNumber() {
		t.Errorf("the started job is leased by node %d, %v; want %d", at, err, a.NodeNumber())
	}
	if at, err := b.LeaseHolderNodeID(t.Context(), 2); err != nil || at != a.NodeNumber() {
		t.Errorf("the job that has not started is leased by node %d, %v; want %d", at, err, a.NodeNumber())
	}
}

// The bytes of a batch count on every node, whichever node receives the requests of the batch.
func TestAllNodesCountBytesOfBatches(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	stage := func(s *Store, most int64) error {
		_, err := s.StageBatch(t.Context(), store.EnqueueRequest{UID: 5, BatchName: "x", Drafts: []queue.Job{newDraft()},
			MaxBytesPerUser: most})
		return err
	}
	if err := stage(a, 0); err != nil {
		t.Fatal(err)
	}
	one := a.StoredBytesOfUser(5)
	enqueueOnNode(t, b, newDraft()) // the transaction of this enqueue applies the changes of node a on node b
	if got := b.StoredBytesOfUser(5); got != one || one < store.QuotaBytesPerJob {
		t.Errorf("the user's jobs use %d bytes on one node, %d on the other", one, got)
	}
	if err := stage(b, 2*one-1); !errors.Is(err, queue.ErrQueueFull) {
		t.Errorf("a second frame beyond the limit, on the other node: got %v, want %v", err, queue.ErrQueueFull)
	}
	if err := stage(b, 2*one); err != nil {
		t.Errorf("a second frame within the limit, on the other node: %v", err)
	}
	receipt, err := a.Enqueue(t.Context(), store.EnqueueRequest{UID: 5, BatchName: "x"})
	for more := receipt.Staged; more && err == nil; {
		more, err = a.ApplyBatch(t.Context(), receipt.Batch)
	}
	if err != nil {
		t.Fatal(err)
	}
	enqueueOnNode(t, b, newDraft())
	if at, bt := a.StoredBytesOfUser(5), b.StoredBytesOfUser(5); at != 2*one || bt != at {
		t.Errorf("after the commit the user's jobs use %d bytes on one node and %d on the other, want %d", at, bt, 2*one)
	}
}

// After a node lease has expired, another node takes over all jobs of that node with new fences. If the first
// node then reports the end of a job, nothing changes, and its store stops.
func TestJobsOfExpiredNodeAreTakenOver(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft(), newDraft(), newDraft())
	held := claimOnNode(t, a, 2)
	started := []store.AttemptStart{{Lease: held[0].Lease(), StartedAt: a.Now(), WorkerID: "1/1", PID: 1}}
	if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: started}); err != nil {
		t.Fatal(err)
	}
	if lost, err := b.TakeOverLeases(t.Context()); err != nil || len(lost) != 0 {
		t.Fatalf("a node that lives loses %v, %v", lost, err)
	}
	expireNodeLease(t, b, "a")
	if m, err := b.RenewNodeLease(t.Context(), store.NodeLoad{WorkerCount: 1}); err != nil || !m.HasLeasesToTakeOver {
		t.Errorf("%+v, %v", m, err)
	}
	lost, err := b.TakeOverLeases(t.Context())
	if err != nil || len(lost) != 2 {
		t.Fatalf("%v, %v", lost, err)
	}
	for i := range lost {
		l := &lost[i]
		if l.FormerNodeName != "a" || l.Job.Fence == l.OldFence || l.AttemptStarted != (l.Job.Seq == held[0].Seq) {
			t.Errorf("%+v", l)
		}
	}
	if again, err := b.TakeOverLeases(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("a second takeover returns %v, %v", again, err)
	}
	_, err = a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{{Lease: held[0].Lease(),
		Decision: queue.AttemptDecision{NextState: queue.Completed, RecordsAttempt: true},
		Attempt:  queue.Attempt{StartedAt: a.Now(), EndedAt: a.Now()}}}})
	if !errors.Is(err, queue.ErrOutcomeUnknown) || a.Err() == nil {
		t.Errorf("a node that was taken over reports: %v, and its store has %v", err, a.Err())
	}
	if j, err := b.GetJob(t.Context(), "1"); err != nil || j.State != queue.Processing {
		t.Errorf("its job is %v, %v", j.State, err)
	}
	again, err := Open(t.Context(), url, Options{RankOrder: b.RankOrder(),
		Node: NodeConfig{NodeName: "a", StateDirID: "a"}})
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
func TestDueJobsOfStoppedNodeAreHandled(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	claimOnNode(t, b, 1)
	for drained := false; !drained; {
		select {
		case <-b.DueChangeHints():
		default:
			drained = true
		}
	}
	later := newDraft()
	later.RunAt = a.Now().Add(200 * time.Millisecond)
	enqueueOnNode(t, a, later)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.DueChangeHints():
	case <-time.After(20 * time.Second):
		t.Fatal("no node watches the timer of a stopped node")
	}
	if _, err := b.ApplyDueChanges(t.Context()); err != nil {
		t.Fatal(err)
	}
	if jobs := claimOnNode(t, b, 1); len(jobs) != 1 {
		t.Errorf("%d jobs were claimed once the job was due, want 1", len(jobs))
	}
}

// Each node has its own units of resources, and a job that names a node is claimed only there. Locks and user
// quotas apply to all nodes together.
func TestNodesShareLocksButNotResources(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	gpu := queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}
	enqueueOnNode(t, a, draftWithDemand(gpu), draftWithDemand(gpu), draftWithDemand(gpu))
	first, second := claimOnNode(t, a, 9), claimOnNode(t, b, 9)
	if !slices.Equal(seqsOfJobs(first), []int64{1}) || !slices.Equal(seqsOfJobs(second), []int64{2}) {
		t.Errorf("with one unit on each node, node a claims %v, node b %v", seqsOfJobs(first), seqsOfJobs(second))
	}
	if more := claimOnNode(t, a, 9); len(more) != 0 {
		t.Errorf("a unit is assigned twice: %v", seqsOfJobs(more))
	}
	if _, err := b.ReportAndClaim(t.Context(),
		store.LeaseReport{ReleasedLeases: []queue.Lease{second[0].Lease()}}); err != nil {
		t.Fatal(err)
	}
	if more := claimOnNode(t, a, 9); len(more) != 0 {
		t.Errorf("a unit of another node is assigned: %v", seqsOfJobs(more))
	}
	if more := claimOnNode(t, b, 9); !slices.Equal(seqsOfJobs(more), []int64{2}) {
		t.Errorf("a unit that is free again is not assigned: %v", seqsOfJobs(more))
	}
	enqueueOnNode(t, a, draftWithDemand(queue.Demand{Kind: queue.GateNode, GateKey: "b", Amount: 1}))
	if more := claimOnNode(t, a, 9); len(more) != 0 {
		t.Errorf("a node claims a job for another node: %v", seqsOfJobs(more))
	}
	if more := claimOnNode(t, b, 9); !slices.Equal(seqsOfJobs(more), []int64{4}) {
		t.Errorf("a node does not claim the job for it: %v", seqsOfJobs(more))
	}
	lock := queue.Demand{Kind: queue.GateLock, GateKey: "k", Amount: 1}
	enqueueOnNode(t, b, draftWithDemand(lock), draftWithDemand(lock))
	if first, second := claimOnNode(t, b, 9), claimOnNode(t, a, 9); len(first) != 1 || len(second) != 0 {
		t.Errorf("both nodes hold the lock: %v and %v", seqsOfJobs(first), seqsOfJobs(second))
	}
}

// Several nodes claim, finish and enqueue jobs at the same time. No job is lost, and none starts twice.
func TestConcurrentNodesStartEachJobOnce(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	const nodes, each = 3, 40
	var servers []*Store
	for i := range nodes {
		servers = append(servers, openNodeWithGPU(t, url, string(rune('a'+i))))
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
				_, o.err = s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(), newDraft()}, UID: 7})
			}
			for o.err == nil {
				within, cancel := context.WithTimeout(t.Context(), time.Second)
				jobs, err := s.AwaitJobs(within, 8)
				cancel()
				if err != nil {
					break
				}
				r := store.LeaseReport{}
				for _, j := range jobs {
					o.seqs = append(o.seqs, j.Seq)
					r.Settlements = append(r.Settlements, store.Settlement{Lease: j.Lease(),
						Decision: queue.AttemptDecision{NextState: queue.Completed, RecordsAttempt: true},
						Attempt:  queue.Attempt{StartedAt: s.Now(), EndedAt: s.Now()}})
				}
				var g store.ReportAndClaimResult
				if g, o.err = s.ReportAndClaim(t.Context(), r); len(g.StaleLeases) > 0 {
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
	if c := servers[0].Counts(); c.JobsByState[queue.Completed] != 2*nodes*each {
		err := servers[0].RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return nil })
		if c := servers[0].Counts(); err != nil || c.JobsByState[queue.Completed] != 2*nodes*each {
			t.Errorf("%v are counted, %v", c.JobsByState, err)
		}
	}
}

// A request to another node returns the answer of that node. A request without an answer is removed when its
// context ends.
func TestRequestToAnotherNodeIsAnswered(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
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
	if answer, err := a.SendRequest(t.Context(), b.NodeNumber(), []byte(`1`), false); err != nil ||
		string(answer) != `{"to":1}` {
		t.Errorf("%s, %v", answer, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.SendRequest(ctx, 99, []byte(`1`), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request to a node that does not exist: %v", err)
	}
	err := a.leaseConn.UseConn(t.Context(), func(c *pgdb.Conn) error {
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
func TestRoundTripsDoNotGrowWithJobs(t *testing.T) {
	a := openNodeWithGPU(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	const block = 250
	for turn := range 4 {
		before := a.writer.RoundTrips
		enqueueOnNode(t, a, slices.Repeat([]queue.Job{newDraft()}, block)...)
		if n := a.writer.RoundTrips - before; n > 3 && turn > 0 {
			t.Errorf("the enqueue took %d round trips", n)
		}
	}
	jobs, minute := claimOnNode(t, a, block), queue.UnixMillis(0)
	for turn := range 3 {
		var r store.LeaseReport
		r.MaxJobsToClaim = block
		for _, j := range jobs {
			r.AttemptStarts = append(r.AttemptStarts, store.AttemptStart{Lease: j.Lease(), StartedAt: a.Now(), WorkerID: "1/1",
				PID: 1})
			r.Settlements = append(r.Settlements, store.Settlement{Lease: j.Lease(),
				Decision: queue.AttemptDecision{NextState: queue.Completed, RecordsAttempt: true},
				Attempt:  queue.Attempt{StartedAt: a.Now(), EndedAt: a.Now()}})
		}
		before, began := a.writer.RoundTrips, store.PerMinute.PeriodStart(a.Now())
		g, err := a.ReportAndClaim(t.Context(), r)
		if err != nil || len(g.ClaimedJobs) != block {
			t.Fatalf("%d jobs, %v", len(g.ClaimedJobs), err)
		}
		most := int64(3)
		// The first transaction of a minute also reads the statistics of that minute.
		if began != minute || store.PerMinute.PeriodStart(a.Now()) != minute {
			minute, most = began, 4
		}
		if n := a.writer.RoundTrips - before; n > most && turn > 0 { // the first round reads more

			t.Errorf("%d round trips", n)
		}
		jobs = g.ClaimedJobs
	}
}

// If the clock of a runner's machine is an hour behind, the times that the runner reports are converted to
// the server's clock.
func TestRunnerTimesAreConvertedToServerTime(t *testing.T) {
	a := openNodeWithGPU(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	enqueueOnNode(t, a, newDraft())
	job := claimOnNode(t, a, 1)[0]
	const hour, at = queue.UnixMillis(3_600_000), queue.UnixMillis(1_800_000_000_000)
	report := store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: job.Lease(), StartedAt: at, WorkerID: "1/1",
		PID: 1}}}
	a.serverClockOffset.Store(int64(hour))
	if _, err := a.ReportAndClaim(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	if j, err := a.GetJob(t.Context(), job.ID); err != nil || j.StartedAt != at+hour ||
		report.AttemptStarts[0].StartedAt != at {
		t.Errorf("started at %v, %v; the report has %v now", j.StartedAt, err, report.AttemptStarts[0].StartedAt)
	}
}

// A node that hangs in the middle of a transaction blocks other nodes only until the server ends the
// transaction. The node then gets an error.
func TestServerEndsTransactionOfHangingNode(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	a.RunAsWriter(func() {
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
		enqueueOnNode(t, b, newDraft())
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("another node waited for %v", took)
		}
		if _, err := a.writer.QueryNumber(`SELECT commits FROM meta`); database.ErrorKindOf(err) != database.DatabaseBusy {
			t.Errorf("a transaction that was ended still works: %v", err)
		}
		a.writer.Rollback()
	})
	enqueueOnNode(t, a, newDraft())
}

// If a transaction has been open for too long, "queuectl doctor" names its role and process.
func TestExamineNamesOldOpenTransaction(t *testing.T) {
	s := openNodeWithGPU(t, pgserver.SharedServer(t).CreateDatabase(t), "a")
	c := separateServerConn(t, s)
	if err := errors.Join(c.Exec(`BEGIN`), c.Exec(`SELECT one FROM meta`)); err != nil {
		t.Fatal(err)
	}
	blamed := fmt.Sprintf("the role queuectl has had a transaction open for 0s (pid %d)", c.PID())
	for old, want := range map[time.Duration]bool{0: true, time.Hour: false} {
		var list []store.Finding
		err := s.RunRead(t.Context(), func(r *reads.ReadSnapshot) (err error) {
			list, err = pgdb.ExamineQueueDatabase(r, s.connConfig.Database, old)
			return err
		})
		said := slices.ContainsFunc(list, func(f store.Finding) bool { return strings.HasPrefix(f.Message, blamed) })
		if err != nil || said != want {
			t.Errorf("of those older than %v: %v, %v", old, list, err)
		}
	}
}
