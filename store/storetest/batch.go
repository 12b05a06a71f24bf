package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var batchPromises = []promise{
	{name: "jobs of a staged batch are visible only after the commit", check: stagedBatchIsHidden},
	{name: "ids of staged jobs are reserved", check: stagedIDsAreReserved},
	{name: "an abandoned batch is discarded after StagingTimeout", check: abandonedBatchIsDiscarded},
	{name: "a repeated commit returns the same receipt", check: repeatedCommitReturnsSameReceipt},
	{name: "batches with different names or users are separate", check: batchesCommitIndependently},
	{name: "staged jobs count for their user, and for the total after the commit", check: limitsCountStagedJobs},
	{name: "the number of open batches is limited per user", check: openBatchesPerUserAreLimited},
	{name: "starting, aborting and discarding a batch is audited", check: batchActionsAreAudited},
	{name: "a staged job can have its own seq as its id", check: stagedIDMayBeOwnSeq},
	{name: "seqs skip any number of numeric ids", check: numbersUsedAsIDsAreSkipped},
}

// stageJobs enqueues n jobs of a batch in one request, and does not commit the batch. The jobs of one such
// request are called a frame.
func (r *rig) stageJobs(batch string, n int, set ...func(*queue.Job)) store.Receipt {
	r.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = draft(set...)
	}
	receipt, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: testUID, Batch: batch})
	r.must(err)
	return receipt
}

// applyBatch moves all jobs of a committed batch into the queue. It returns how many calls
// of ApplyBatch it needed.
func (r *rig) applyBatch(receipt store.Receipt) (steps int) {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.s.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
		if more {
			steps++
		}
	}
	return steps
}

// Jobs of a batch are visible only after the batch is committed.
func stagedBatchIsHidden(r *rig) {
	before := r.enqueueOne()
	staged := r.stageJobs("b", 3).IDs
	r.checkUnchanged(func() {
		staged = append(staged, r.stageJobs("b", 2, withDelay(time.Hour)).IDs...)
		for n := range int64(5) {
			checkEqual(r, "steps before the commit", r.applyBatch(store.Receipt{Batch: n}), 0)
		}
	})
	checkEqual(r, "claimed before the commit", seqs(r.claim(10)), []int64{before.Seq})
	receipt, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withID("last"))}, UID: testUID,
		Batch: "b"})
	r.must(err)
	checkEqual(r, "receipt", receipt, store.Receipt{IDs: []string{"last"}, Seqs: receipt.Seqs, Staged: true,
		Batch: receipt.Batch})
	checkEqual(r, "claimed before the batch is applied", seqs(r.claim(10)), nil)
	r.advance(time.Minute)
	r.newEvents()
	checkEqual(r, "steps", r.applyBatch(receipt), 3)
	events := r.newEvents()
	staged = append(staged, "last")
	checkEqual(r, "number of events", len(events), len(staged))
	for i, id := range staged {
		j := r.getJob(id)
		checkEqual(r, "event of "+id, events[i], r.event(queue.EventEnqueued, j, queue.EventDetail{UID: new(testUID)}))
		checkEqual(r, "created", j.CreatedAt, r.s.Now())
	}
	checkEqual(r, "due of a delayed job", r.getJob(staged[3]).DueAt, r.s.Now().Add(time.Hour))
	r.checkCounts()
	claimed := r.claim(10)
	checkEqual(r, "claimed, in the batch's order", []string{claimed[0].ID, claimed[1].ID, claimed[2].ID, claimed[3].ID},
		[]string{staged[0], staged[1], staged[2], "last"})
	checkEqual(r, "steps afterwards", r.applyBatch(receipt), 0)
}

func stagedIDsAreReserved(r *rig) {
	receipt := r.stageJobs("b", 2)
	r.stageJobs("b", 1, withID("mine"))
	for _, id := range []string{"mine", receipt.IDs[1]} {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withID(id))}, UID: testUID})
		r.wantError("enqueue of a staged id", err, queue.CodeExists, "id")
		_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(withID(id))}, UID: testUID,
			Batch: "other"})
		r.wantError("stage of a staged id", err, queue.CodeExists, "id")
	}
	next := r.enqueueOne()
	r.stageJobs("b", 1, withID(fmt.Sprint(next.Seq+1)))
	if after := r.enqueueOne(); after.ID == fmt.Sprint(next.Seq+1) {
		r.Errorf("the generated id %s is also the id of a staged job", after.ID)
	}
	_, err := r.s.Get(r.Context(), "mine")
	r.wantCode("get of a staged job", err, queue.CodeNotFound)
}

// An uncommitted batch that gets no more jobs is discarded after store.StagingTimeout.
func abandonedBatchIsDiscarded(r *rig) {
	r.stageJobs("aborted", 2, func(j *queue.Job) { j.ID = "" })
	r.stageJobs("aborted", 1, withID("a"))
	r.must(r.s.AbortBatch(r.Context(), testUID, "aborted"))
	r.must(r.s.AbortBatch(r.Context(), testUID, "aborted"))
	r.enqueueOne(withID("a"))
	r.stageJobs("abandoned", 1, withID("b"))
	r.advanceAndPromote(store.StagingTimeout - time.Minute)
	r.stageJobs("abandoned", 1)
	r.advanceAndPromote(store.StagingTimeout - time.Minute)
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withID("b"))}, UID: testUID})
	r.wantError("enqueue while the batch is kept", err, queue.CodeExists, "id")
	r.advanceAndPromote(2 * time.Minute)
	r.enqueueOne(withID("b"))
	last := store.Request{Drafts: []queue.Job{draft()}, UID: testUID, Batch: "abandoned"}
	r.checkUnchanged(func() { // a commit would store the batch without its first frames, which were discarded
		_, err = r.s.Enqueue(r.Context(), last)
		r.wantCode("commit of a discarded batch", err, queue.CodeWrongState)
		_, err = r.s.StageBatch(r.Context(), last)
		r.wantCode("one more frame of a discarded batch", err, queue.CodeWrongState)
	})
	r.advanceAndPromote(store.DiscardedNameRetention)
	r.stageJobs("abandoned", 1)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "aborted"})
	r.wantError("commit of an aborted batch", err, queue.CodeInvalid, "jobs")
}

func repeatedCommitReturnsSameReceipt(r *rig) {
	r.stageJobs("b", 2)
	request := store.Request{Drafts: []queue.Job{draft()}, UID: testUID, Batch: "b", IdempotencyKey: "k",
		Checksum: [32]byte{1}}
	first, err := r.s.Enqueue(r.Context(), request)
	r.must(err)
	r.applyBatch(first)
	again, err := r.s.Enqueue(r.Context(), request)
	r.must(err)
	first.Duplicate = true
	checkEqual(r, "receipt of the second commit", again, first)
	checkEqual(r, "steps of the second commit", r.applyBatch(again), 0)
	checkEqual(r, "jobs", len(r.listAll(store.Filter{})), 3)
}

func batchesCommitIndependently(r *rig) {
	r.stageJobs("a", 1)
	r.stageJobs("b", 2)
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: testUID + 1, Batch: "a"})
	r.must(err)
	two, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "b"})
	r.must(err)
	one, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "a"})
	r.must(err)
	// Batch a was committed last but can be moved into the queue first, because batches do
	// not wait for each other.
	checkEqual(r, "steps of the batch committed second", r.applyBatch(one), 1)
	checkEqual(r, "jobs", len(r.listAll(store.Filter{})), 1)
	checkEqual(r, "steps of the batch committed first", r.applyBatch(two), 1)
	checkEqual(r, "jobs", len(r.listAll(store.Filter{})), 3)
	r.stageJobs("a", 1)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "a"})
	r.must(err)
	r.promote() // Promote also moves jobs of committed batches into the queue
	r.promote()
	checkEqual(r, "jobs after another batch with the same name", len(r.listAll(store.Filter{})), 4)
}

// The jobs of an uncommitted batch count toward the limit of their user. Once the batch is committed, they also
// count toward the limit for all users. A commit that would exceed a limit is rejected.
func limitsCountStagedJobs(r *rig) {
	r.enqueueOne()
	stage := func(uid int, batch string, n int) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = draft(withUID(uid))
		}
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: uid, Batch: batch, MaxPending: 4,
			MaxPendingPerUser: 5})
		return err
	}
	enqueue := func(uid int, limit int64) error {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withUID(uid))}, UID: uid,
			MaxPending: limit})
		return err
	}
	r.must(stage(1, "b", 3))
	r.must(stage(1, "b", 2))
	r.checkUnchanged(func() { r.wantCode("one more staged job of the same user", stage(1, "b", 1), queue.CodeQueueFull) })
	r.must(enqueue(2, 2))
	r.checkUnchanged(func() {
		r.wantCode("one more job; staged jobs of other users do not count", enqueue(2, 2), queue.CodeQueueFull)
	})
	commit := store.Request{Drafts: []queue.Job{draft(withUID(1), withID("last"))}, UID: 1, Batch: "b", MaxPending: 7}
	for _, drafts := range [][]queue.Job{commit.Drafts, nil} {
		r.checkUnchanged(func() {
			ask := commit
			ask.Drafts, ask.MaxPending = drafts, 6+int64(len(drafts))
			_, err := r.s.Enqueue(r.Context(), ask)
			r.wantCode("commit of a batch that exceeds the limit", err, queue.CodeQueueFull)
		})
	}
	commit.MaxPending = 8
	receipt, err := r.s.Enqueue(r.Context(), commit) // after the rejected commits, the batch still exists
	r.must(err)
	r.checkUnchanged(func() { r.wantCode("one more job; committed jobs count", enqueue(2, 8), queue.CodeQueueFull) })
	r.applyBatch(receipt)
	r.checkUnchanged(func() { r.wantCode("one more job; applied jobs count", enqueue(2, 8), queue.CodeQueueFull) })
	r.must(enqueue(2, 9))
}

func openBatchesPerUserAreLimited(r *rig) {
	begin := func(uid, n int) error {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: uid,
			Batch: fmt.Sprint("b", n)})
		return err
	}
	for uid := range 6 { // root is included; the batches of one user do not count toward the limit of another
		for n := range store.MaxStagedBatches {
			r.must(begin(uid, n))
		}
		r.must(begin(uid, 0)) // another request for an existing batch does not begin a new batch
		r.checkUnchanged(func() {
			checkEqual[error](r, "one batch more than a user may have", begin(uid, store.MaxStagedBatches),
				store.ErrTooManyBatches)
		})
	}
	r.must(r.s.AbortBatch(r.Context(), 0, "b0"))
	r.must(begin(0, store.MaxStagedBatches))
	_, err := r.s.Enqueue(r.Context(), store.Request{UID: 1, Batch: "b0"})
	r.must(err)
	r.must(begin(1, store.MaxStagedBatches)) // a committed batch does not count toward the limit of uncommitted batches
	for _, n := range []int{0, queue.MaxJobsPerRequest + 1} {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: make([]queue.Job, n), UID: 9, Batch: "b"})
		r.wantError("a frame with no jobs or too many jobs", err, queue.CodeInvalid, "jobs")
	}
}

// An audit event records that a user starts or aborts a batch, or that a batch is discarded.
func batchActionsAreAudited(r *rig) {
	wantAudit := func(target string) {
		r.Helper()
		uid := testUID
		checkEqual(r, "events", r.newEvents(), []queue.Event{{Time: r.s.Now(), Kind: queue.EventAudit,
			Detail: queue.EventDetail{UID: &uid, Verb: "enqueue.batch", Target: target}}})
	}
	r.stageJobs("a\n", 3)
	wantAudit(`"a\n" begun with 3 jobs`)
	r.stageJobs("a\n", 2)
	checkEqual(r, "events of another frame", r.newEvents(), nil)
	r.must(r.s.AbortBatch(r.Context(), testUID, "a\n"))
	wantAudit(`"a\n" aborted with 5 jobs`)
	r.must(r.s.AbortBatch(r.Context(), testUID, "a\n"))
	checkEqual(r, "events of a second abort", r.newEvents(), nil)
	r.stageJobs("b", 1)
	r.newEvents()
	r.advanceAndPromote(store.StagingTimeout + time.Minute)
	wantAudit(`"b" forgotten with 1 jobs`)
}

// If a user gives a job a number as its id, the store never assigns that number (seq) to a new job. Assigned
// numbers still rise, and jobs of uncommitted batches keep theirs.
func numbersUsedAsIDsAreSkipped(r *rig) {
	const jobCount = 1500
	first := r.enqueueOne()
	for from := int64(1); from <= jobCount; from += queue.MaxJobsPerRequest {
		var drafts []queue.Job
		for n := from; n < from+queue.MaxJobsPerRequest && n <= jobCount; n++ {
			drafts = append(drafts, draft(withID(fmt.Sprint(first.Seq+2*jobCount+n))))
		}
		r.enqueue(testUID, drafts...)
	}
	last := first.Seq + jobCount
	for range 3 {
		drafts := make([]queue.Job, 700)
		for i := range drafts {
			drafts[i] = draft()
		}
		for i, seq := range r.enqueue(testUID, drafts...).Seqs {
			if seq <= last || seq > first.Seq+2*jobCount && seq <= first.Seq+3*jobCount {
				r.Fatalf("job %d got seq %d after seq %d", i, seq, last)
			}
			last = seq
		}
	}
	receipt := r.stageJobs("b", 2)
	for _, id := range receipt.IDs {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(withID(id))}, UID: testUID})
		r.wantError("enqueue of the id of a staged job", err, queue.CodeExists, "id")
	}
	r.enqueueOne(withID(fmt.Sprint(receipt.Seqs[1] + 1)))
	r.enqueueOne(withID("0"))
}

// A job of an uncommitted batch may have, as its id, the number (seq) that the store assigns to it. Later jobs
// can depend on the job by that id. The job keeps the id when the batch is committed.
func stagedIDMayBeOwnSeq(r *rig) {
	first := r.enqueueOne()
	own := fmt.Sprint(first.Seq + 1)
	stage := func(set func(*queue.Job)) store.Receipt {
		receipt, err := r.s.StageBatch(r.Context(), store.Request{UID: testUID, Batch: "b", Drafts: []queue.Job{draft(set)}})
		r.must(err)
		return receipt
	}
	checkEqual(r, "seq of the staged job", stage(withID(own)).Seqs[0], first.Seq+1)
	child := stage(func(j *queue.Job) { j.DependsOn = []queue.Dependency{{ID: own}} })
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: testUID, Batch: "b", Drafts: []queue.Job{draft()}})
	r.must(err)
	r.applyBatch(receipt)
	checkEqual(r, "state of its dependant", r.getJob(child.IDs[0]).State, queue.Blocked)
	checkEqual(r, "seq of the job with this id", r.getJob(own).Seq, first.Seq+1)
}
