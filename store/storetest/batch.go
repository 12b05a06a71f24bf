package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var batchTests = []contractTest{
	{name: "jobs of a staged batch are visible only after the commit", run: stagedBatchIsHidden},
	{name: "ids of staged jobs are reserved", run: stagedIDsAreReserved},
	{name: "the error for a staged id names its batch", run: stagedIDErrorNamesBatch},
	{name: "a job cannot depend on a job of an uncommitted batch", run: uncommittedParentIsRejected},
	{name: "an abandoned batch is discarded after StagingTimeout", run: abandonedBatchIsDiscarded},
	{name: "a repeated commit returns the same receipt", run: repeatedCommitReturnsSameReceipt},
	{name: "batches with different names or users are separate", run: batchesCommitIndependently},
	{name: "staged jobs count for their user, and for the total after the commit", run: limitsCountStagedJobs},
	{name: "the number of open batches is limited per user", run: openBatchesPerUserAreLimited},
	{name: "starting, aborting and discarding a batch is audited", run: batchActionsAreAudited},
	{name: "a staged job can have its own seq as its id", run: stagedJobIDMayEqualItsSeq},
	{name: "seqs skip any number of numeric ids", run: manySeqsUsedAsIDsAreSkipped},
}

// stageBatchJobs sends n jobs of a batch to the store in one request, and does not commit the batch. The store keeps
// the jobs of one such request together, as a frame.
func (r *storeTest) stageBatchJobs(batchName string, jobCount int, options ...func(*queue.Job)) store.Receipt {
	r.Helper()
	drafts := make([]queue.Job, jobCount)
	for i := range drafts {
		drafts[i] = newDraft(options...)
	}
	receipt, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID,
		BatchName: batchName})
	r.must(err)
	return receipt
}

// applyBatchUntilDone moves all jobs of a committed batch into the queue. It returns how many calls
// of ApplyBatch it needed.
func (r *storeTest) applyBatchUntilDone(receipt store.Receipt) (callCount int) {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.store.ApplyBatch(r.Context(), receipt.Batch)
		r.must(err)
		if more {
			callCount++
		}
	}
	return callCount
}

// Jobs of a batch are visible only after the batch is committed.
func stagedBatchIsHidden(r *storeTest) {
	before := r.enqueueOne()
	staged := r.stageBatchJobs("b", 3).IDs
	r.checkStoreUnchanged(func() {
		staged = append(staged, r.stageBatchJobs("b", 2, withDelay(time.Hour)).IDs...)
		for n := range int64(5) {
			checkEqual(r, "steps before the commit", r.applyBatchUntilDone(store.Receipt{Batch: n}), 0)
		}
	})
	checkEqual(r, "claimed before the commit", seqsOf(r.claimJobs(10)), []int64{before.Seq})
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("last"))},
		UID: testUID, BatchName: "b"})
	r.must(err)
	checkEqual(r, "receipt", receipt, store.Receipt{IDs: []string{"last"}, Seqs: receipt.Seqs, Staged: true,
		Batch: receipt.Batch})
	checkEqual(r, "claimed before the batch is applied", seqsOf(r.claimJobs(10)), nil)
	r.advanceClock(time.Minute)
	r.readNewEvents()
	checkEqual(r, "steps", r.applyBatchUntilDone(receipt), 3)
	events := r.readNewEvents()
	staged = append(staged, "last")
	checkEqual(r, "number of events", len(events), len(staged))
	for i, id := range staged {
		j := r.getJob(id)
		checkEqual(r, "event of "+id, events[i], r.expectedEvent(queue.EventEnqueued, j,
			queue.EventDetail{CausedByUID: new(testUID)}))
		checkEqual(r, "created", j.CreatedAt, r.store.Now())
	}
	checkEqual(r, "due of a delayed job", r.getJob(staged[3]).DueAt, r.store.Now().Add(time.Hour))
	r.checkJobCounts()
	claimed := r.claimJobs(10)
	checkEqual(r, "claimed, in the batch's order", []string{claimed[0].ID, claimed[1].ID, claimed[2].ID, claimed[3].ID},
		[]string{staged[0], staged[1], staged[2], "last"})
	checkEqual(r, "steps afterwards", r.applyBatchUntilDone(receipt), 0)
}

func stagedIDsAreReserved(r *storeTest) {
	receipt := r.stageBatchJobs("b", 2)
	r.stageBatchJobs("b", 1, withID("mine"))
	for _, id := range []string{"mine", receipt.IDs[1]} {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID(id))}, UID: testUID})
		r.checkError("enqueue of a staged id", err, queue.CodeExists, "id")
		_, err = r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID(id))}, UID: testUID,
			BatchName: "other"})
		r.checkError("stage of a staged id", err, queue.CodeExists, "id")
	}
	next := r.enqueueOne()
	r.stageBatchJobs("b", 1, withID(fmt.Sprint(next.Seq+1)))
	if after := r.enqueueOne(); after.ID == fmt.Sprint(next.Seq+1) {
		r.Errorf("the generated id %s is also the id of a staged job", after.ID)
	}
	_, err := r.store.GetJob(r.Context(), "mine")
	r.checkErrorCode("get of a staged job", err, queue.CodeNotFound)
}

// The error for an id of an uncommitted batch names the batch, but not to other users. It says when the id gets free.
func stagedIDErrorNamesBatch(r *storeTest) {
	receipt := r.stageBatchJobs("nightly", 1)
	r.stageBatchJobs("nightly", 1, withID("mine"))
	check := func(id string, uid int, want string) {
		r.Helper()
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: uid,
			Drafts: []queue.Job{newDraft(withID(id), func(j *queue.Job) { j.UID = uid })}})
		r.checkError("enqueue of a staged id", err, queue.CodeExists, "id")
		if err != nil && !strings.Contains(err.Error(), want) {
			r.Errorf("enqueue of the id %q by uid %d: got %q, want %q", id, uid, err, want)
		}
	}
	for _, id := range []string{"mine", receipt.IDs[0]} {
		check(id, testUID, `your batch "nightly", which is not committed yet; commit or abort the batch, or choose`)
		check(id, testUID+1, `another user's batch, which is not committed yet; choose another id, or try again in 10m`)
	}
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "nightly",
		Drafts: []queue.Job{newDraft(withID("mine"))}})
	r.checkError("the same id again in the batch", err, queue.CodeExists, "id")
	if err != nil && !strings.Contains(err.Error(), "another job has the id") {
		r.Errorf("the same id again in the batch: %v", err)
	}
}

// Only jobs of the same batch can depend on a job of a batch that is not committed. The batch may still be discarded.
func uncommittedParentIsRejected(r *storeTest) {
	stage := func(batchName string, set ...func(*queue.Job)) error {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(set...)}, UID: testUID,
			BatchName: batchName})
		return err
	}
	r.must(stage("b", withID("parent")))
	child := withParentIDs(queue.ParentCompleted, "parent")
	check := func(subject string, err error) {
		r.Helper()
		r.checkError(subject, err, queue.CodeInvalid, "depends_on")
		if want := `job "parent" is in the batch "b", which is not committed yet`; err != nil &&
			!strings.Contains(err.Error(), want) {
			r.Errorf("%s: got %q, want %q", subject, err, want)
		}
	}
	r.checkStoreUnchanged(func() {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(child)}, UID: testUID})
		check("a job outside the batch", err)
		check("a job of a new batch", stage("other", child))
	})
	r.must(stage("other"))
	check("a job of another batch", stage("other", child))
	edited := r.enqueueOne()
	check("an edit", r.editJob(edited, func(j *queue.Job) error {
		j.DependsOn = []queue.Dependency{{ParentID: "parent", Condition: queue.ParentEnded}}
		return nil
	}))
	r.must(stage("b", child))
	committed, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b"})
	r.must(err)
	outside := r.enqueueOne(child)
	r.applyBatchUntilDone(committed)
	r.checkJobState("after the commit", outside, queue.Blocked, "")
	checkEqual(r, "cancelled jobs", r.store.Counts().JobsByState[queue.Cancelled], int64(0))
}

// An uncommitted batch that gets no more jobs is discarded after store.BatchStagingTimeout.
func abandonedBatchIsDiscarded(r *storeTest) {
	r.stageBatchJobs("aborted", 2, func(j *queue.Job) { j.ID = "" })
	r.stageBatchJobs("aborted", 1, withID("a"))
	r.must(r.store.AbortBatch(r.Context(), testUID, "aborted"))
	r.must(r.store.AbortBatch(r.Context(), testUID, "aborted"))
	r.enqueueOne(withID("a"))
	r.stageBatchJobs("abandoned", 1, withID("b"))
	r.advanceAndApplyDueChanges(store.BatchStagingTimeout - time.Minute)
	r.stageBatchJobs("abandoned", 1)
	r.advanceAndApplyDueChanges(store.BatchStagingTimeout - time.Minute)
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID("b"))}, UID: testUID})
	r.checkError("enqueue while the batch is kept", err, queue.CodeExists, "id")
	r.advanceAndApplyDueChanges(2 * time.Minute)
	r.enqueueOne(withID("b"))
	last := store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID, BatchName: "abandoned"}
	r.checkStoreUnchanged(func() { // a commit must fail, because the jobs of the earlier requests were discarded
		_, err = r.store.Enqueue(r.Context(), last)
		r.checkErrorCode("commit of a discarded batch", err, queue.CodeWrongState)
		_, err = r.store.StageBatch(r.Context(), last)
		r.checkErrorCode("one more frame of a discarded batch", err, queue.CodeWrongState)
	})
	r.advanceAndApplyDueChanges(store.DiscardedBatchNameRetention)
	r.stageBatchJobs("abandoned", 1)
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "aborted"})
	r.checkError("commit of an aborted batch", err, queue.CodeInvalid, "jobs")
}

func repeatedCommitReturnsSameReceipt(r *storeTest) {
	r.stageBatchJobs("b", 2)
	request := store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID, BatchName: "b", IdempotencyKey: "k",
		RequestChecksum: [32]byte{1}}
	first, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	r.applyBatchUntilDone(first)
	again, err := r.store.Enqueue(r.Context(), request)
	r.must(err)
	first.Duplicate = true
	checkEqual(r, "receipt of the second commit", again, first)
	checkEqual(r, "steps of the second commit", r.applyBatchUntilDone(again), 0)
	checkEqual(r, "jobs", len(r.listAllJobs(store.JobFilter{})), 3)
}

func batchesCommitIndependently(r *storeTest) {
	r.stageBatchJobs("a", 1)
	r.stageBatchJobs("b", 2)
	_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: testUID + 1,
		BatchName: "a"})
	r.must(err)
	two, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b"})
	r.must(err)
	one, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "a"})
	r.must(err)
	// Batch a, the second to be committed, can be moved into the queue first, because batches do not wait for each other.
	checkEqual(r, "steps of the batch committed second", r.applyBatchUntilDone(one), 1)
	checkEqual(r, "jobs", len(r.listAllJobs(store.JobFilter{})), 1)
	checkEqual(r, "steps of the batch committed first", r.applyBatchUntilDone(two), 1)
	checkEqual(r, "jobs", len(r.listAllJobs(store.JobFilter{})), 3)
	r.stageBatchJobs("a", 1)
	_, err = r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "a"})
	r.must(err)
	r.applyDueChangesUntilDone() // ApplyDueChanges also moves jobs of committed batches into the queue
	r.applyDueChangesUntilDone()
	checkEqual(r, "jobs after another batch with the same name", len(r.listAllJobs(store.JobFilter{})), 4)
}

// The jobs of an uncommitted batch count toward the limit of their user. Once the batch is committed, they also
// count toward the limit for all users. A commit that would exceed a limit is rejected.
func limitsCountStagedJobs(r *storeTest) {
	r.enqueueOne()
	stage := func(uid int, batch string, n int) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = newDraft(withUID(uid))
		}
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, BatchName: batch,
			MaxPendingJobs: 4, MaxPendingJobsPerUser: 5})
		return err
	}
	enqueue := func(uid int, limit int64) error {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(uid))}, UID: uid,
			MaxPendingJobs: limit})
		return err
	}
	r.must(stage(1, "b", 3))
	r.must(stage(1, "b", 2))
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("one more staged job of the same user", stage(1, "b", 1), queue.CodeQueueFull)
	})
	r.must(enqueue(2, 2))
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("one more job; staged jobs of other users do not count", enqueue(2, 2), queue.CodeQueueFull)
	})
	commit := store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(1), withID("last"))}, UID: 1, BatchName: "b",
		MaxPendingJobs: 7}
	for _, drafts := range [][]queue.Job{commit.Drafts, nil} {
		r.checkStoreUnchanged(func() {
			ask := commit
			ask.Drafts, ask.MaxPendingJobs = drafts, 6+int64(len(drafts))
			_, err := r.store.Enqueue(r.Context(), ask)
			r.checkErrorCode("commit of a batch that exceeds the limit", err, queue.CodeQueueFull)
		})
	}
	commit.MaxPendingJobs = 8
	receipt, err := r.store.Enqueue(r.Context(), commit) // after the rejected commits, the batch still exists
	r.must(err)
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("one more job; committed jobs count", enqueue(2, 8), queue.CodeQueueFull)
	})
	r.applyBatchUntilDone(receipt)
	r.checkStoreUnchanged(func() {
		r.checkErrorCode("one more job; applied jobs count", enqueue(2, 8), queue.CodeQueueFull)
	})
	r.must(enqueue(2, 9))
}

func openBatchesPerUserAreLimited(r *storeTest) {
	begin := func(uid, n int) error {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}, UID: uid,
			BatchName: fmt.Sprint("b", n)})
		return err
	}
	for uid := range 6 { // root is included; the batches of one user do not count toward the limit of another
		for n := range store.MaxStagedBatchesPerUser {
			r.must(begin(uid, n))
		}
		r.must(begin(uid, 0)) // another request for an existing batch does not begin a new batch
		r.checkStoreUnchanged(func() {
			checkEqual[error](r, "one batch more than a user may have", begin(uid, store.MaxStagedBatchesPerUser),
				store.ErrTooManyStagedBatches)
		})
	}
	r.must(r.store.AbortBatch(r.Context(), 0, "b0"))
	r.must(begin(0, store.MaxStagedBatchesPerUser))
	_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: 1, BatchName: "b0"})
	r.must(err)
	// a committed batch does not count toward the limit of uncommitted batches
	r.must(begin(1, store.MaxStagedBatchesPerUser))
	for _, n := range []int{0, queue.MaxJobsPerRequest + 1} {
		_, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{Drafts: make([]queue.Job, n), UID: 9, BatchName: "b"})
		r.checkError("a frame with no jobs or too many jobs", err, queue.CodeInvalid, "jobs")
	}
}

// The store records an audit event when a user starts or aborts a batch, and when a batch is discarded.
func batchActionsAreAudited(r *storeTest) {
	wantAudit := func(target string) {
		r.Helper()
		uid := testUID
		checkEqual(r, "events", r.readNewEvents(), []queue.Event{{Time: r.store.Now(), Kind: queue.EventAudit,
			Detail: queue.EventDetail{CausedByUID: &uid, Verb: "enqueue.batch", ActionTarget: target}}})
	}
	r.stageBatchJobs("a\n", 3)
	wantAudit(`"a\n" begun with 3 jobs`)
	r.stageBatchJobs("a\n", 2)
	checkEqual(r, "events of another frame", r.readNewEvents(), nil)
	r.must(r.store.AbortBatch(r.Context(), testUID, "a\n"))
	wantAudit(`"a\n" aborted with 5 jobs`)
	r.must(r.store.AbortBatch(r.Context(), testUID, "a\n"))
	checkEqual(r, "events of a second abort", r.readNewEvents(), nil)
	r.stageBatchJobs("b", 1)
	r.readNewEvents()
	r.advanceAndApplyDueChanges(store.BatchStagingTimeout + time.Minute)
	wantAudit(`"b" forgotten with 1 jobs`)
}

// A user may choose a number as a job's id. The store then never assigns that number (seq) to a new job. Assigned
// numbers still rise, and jobs of uncommitted batches keep their numbers.
func manySeqsUsedAsIDsAreSkipped(r *storeTest) {
	const jobCount = 1500
	first := r.enqueueOne()
	for from := int64(1); from <= jobCount; from += queue.MaxJobsPerRequest {
		var drafts []queue.Job
		for n := from; n < from+queue.MaxJobsPerRequest && n <= jobCount; n++ {
			drafts = append(drafts, newDraft(withID(fmt.Sprint(first.Seq+2*jobCount+n))))
		}
		r.enqueueJobs(testUID, drafts...)
	}
	last := first.Seq + jobCount
	for range 3 {
		drafts := make([]queue.Job, 700)
		for i := range drafts {
			drafts[i] = newDraft()
		}
		for i, seq := range r.enqueueJobs(testUID, drafts...).Seqs {
			if seq <= last || seq > first.Seq+2*jobCount && seq <= first.Seq+3*jobCount {
				r.Fatalf("job %d got seq %d after seq %d", i, seq, last)
			}
			last = seq
		}
	}
	receipt := r.stageBatchJobs("b", 2)
	for _, id := range receipt.IDs {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withID(id))}, UID: testUID})
		r.checkError("enqueue of the id of a staged job", err, queue.CodeExists, "id")
	}
	r.enqueueOne(withID(fmt.Sprint(receipt.Seqs[1] + 1)))
	r.enqueueOne(withID("0"))
}

// A job of an uncommitted batch may have, as its id, the number (seq) that the store assigns to it. Later jobs
// can depend on the job by that id. The job keeps the id when the batch is committed.
func stagedJobIDMayEqualItsSeq(r *storeTest) {
	first := r.enqueueOne()
	own := fmt.Sprint(first.Seq + 1)
	stage := func(set func(*queue.Job)) store.Receipt {
		receipt, err := r.store.StageBatch(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b",
			Drafts: []queue.Job{newDraft(set)}})
		r.must(err)
		return receipt
	}
	checkEqual(r, "seq of the staged job", stage(withID(own)).Seqs[0], first.Seq+1)
	child := stage(func(j *queue.Job) { j.DependsOn = []queue.Dependency{{ParentID: own}} })
	receipt, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{UID: testUID, BatchName: "b",
		Drafts: []queue.Job{newDraft()}})
	r.must(err)
	r.applyBatchUntilDone(receipt)
	checkEqual(r, "state of its dependant", r.getJob(child.IDs[0]).State, queue.Blocked)
	checkEqual(r, "seq of the job with this id", r.getJob(own).Seq, first.Seq+1)
}
