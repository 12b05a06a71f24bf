package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var batching = []promise{
	{name: "a staged batch is seen when it is committed and finished", keep: stagedIsUnseen},
	{name: "ids of a staged batch are taken", keep: stagedIdsAreTaken},
	{name: "an abandoned batch is forgotten", keep: abandonedIsForgotten},
	{name: "a repeated commit gets the same receipt", keep: commitAgain},
	{name: "batches of different names and users are apart", keep: batchesApart},
	{name: "a batch counts for its user, and for all once it is committed", keep: stagedWaitToo},
	{name: "a user has a bounded number of batches under way, whatever others have", keep: batchesAreBounded},
	{name: "what becomes of a batch that is not committed is audited", keep: batchesAudited},
	{name: "jobs of a batch may have their own numbers for names", keep: ownNumbers},
	{name: "numbers that are names are skipped, however many", keep: squattedNumbers},
}

// stage stages a frame of n jobs.
func (r *rig) stage(batch string, n int, set ...func(*queue.Job)) store.Receipt {
	r.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = draft(set...)
	}
	receipt, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: asker, Batch: batch})
	r.must(err)
	return receipt
}

// finish moves all frames of a committed batch into the queue, and returns the number of steps.
func (r *rig) finish(committed store.Receipt) (steps int) {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.s.ApplyBatch(r.Context(), committed.Batch)
		r.must(err)
		if more {
			steps++
		}
	}
	return steps
}

func stagedIsUnseen(r *rig) {
	before := r.one()
	staged := r.stage("b", 3).IDs
	r.unchanged(func() {
		staged = append(staged, r.stage("b", 2, delay(time.Hour)).IDs...)
		for n := range int64(5) {
			same(r, "steps before the commit", r.finish(store.Receipt{Batch: n}), 0)
		}
	})
	same(r, "claimed before the commit", seqs(r.claim(10)), []int64{before.Seq})
	receipt, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named("last"))}, UID: asker, Batch: "b"})
	r.must(err)
	same(r, "receipt", receipt, store.Receipt{IDs: []string{"last"}, Seqs: receipt.Seqs, Staged: true, Batch: receipt.Batch})
	same(r, "claimed before it is finished", seqs(r.claim(10)), nil)
	r.advance(time.Minute)
	r.news()
	same(r, "steps", r.finish(receipt), 3)
	events := r.news()
	staged = append(staged, "last")
	same(r, "number of events", len(events), len(staged))
	for i, id := range staged {
		j := r.get(id)
		same(r, "event of "+id, events[i], r.event(queue.EventEnqueued, j, queue.EventDetail{UID: new(asker)}))
		same(r, "created", j.CreatedAt, r.s.Now())
	}
	same(r, "due of a delayed job", r.get(staged[3]).DueAt, r.s.Now().Add(time.Hour))
	r.counted()
	claimed := r.claim(10)
	same(r, "claimed, in the batch's order", []string{claimed[0].ID, claimed[1].ID, claimed[2].ID, claimed[3].ID}, []string{staged[0], staged[1], staged[2], "last"})
	same(r, "steps afterwards", r.finish(receipt), 0)
}

func stagedIdsAreTaken(r *rig) {
	receipt := r.stage("b", 2)
	r.stage("b", 1, named("mine"))
	for _, id := range []string{"mine", receipt.IDs[1]} {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named(id))}, UID: asker})
		r.refused("enqueue of a staged id", err, queue.CodeExists, "id")
		_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(named(id))}, UID: asker, Batch: "other"})
		r.refused("stage of a staged id", err, queue.CodeExists, "id")
	}
	next := r.one()
	r.stage("b", 1, named(fmt.Sprint(next.Seq+1)))
	if after := r.one(); after.ID == fmt.Sprint(next.Seq+1) {
		r.Errorf("a generated id is one that is staged: %s", after.ID)
	}
	_, err := r.s.Get(r.Context(), "mine")
	r.refusedCode("get of a staged job", err, queue.CodeNotFound)
}

func abandonedIsForgotten(r *rig) {
	r.stage("asked", 2, func(j *queue.Job) { j.ID = "" })
	r.stage("asked", 1, named("a"))
	r.must(r.s.AbortBatch(r.Context(), asker, "asked"))
	r.must(r.s.AbortBatch(r.Context(), asker, "asked"))
	r.one(named("a"))
	r.stage("silent", 1, named("b"))
	r.pass(store.StageMemory - time.Minute)
	r.stage("silent", 1)
	r.pass(store.StageMemory - time.Minute)
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named("b"))}, UID: asker})
	r.refused("enqueue while the batch lives", err, queue.CodeExists, "id")
	r.pass(2 * time.Minute)
	r.one(named("b"))
	last := store.Request{Drafts: []queue.Job{draft()}, UID: asker, Batch: "silent"}
	r.unchanged(func() { // otherwise the batch would be committed without its first frames
		_, err = r.s.Enqueue(r.Context(), last)
		r.refusedCode("commit of a forgotten batch", err, queue.CodeWrongState)
		_, err = r.s.StageBatch(r.Context(), last)
		r.refusedCode("one more frame of a forgotten batch", err, queue.CodeWrongState)
	})
	r.pass(store.ForgottenMemory)
	r.stage("silent", 1)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "asked"})
	r.refused("commit of a batch that was given up", err, queue.CodeInvalid, "jobs")
}

func commitAgain(r *rig) {
	r.stage("b", 2)
	request := store.Request{Drafts: []queue.Job{draft()}, UID: asker, Batch: "b", Key: "k", Sum: [32]byte{1}}
	first, err := r.s.Enqueue(r.Context(), request)
	r.must(err)
	r.finish(first)
	again, err := r.s.Enqueue(r.Context(), request)
	r.must(err)
	first.Duplicate = true
	same(r, "receipt of the second time", again, first)
	same(r, "steps of the second time", r.finish(again), 0)
	same(r, "jobs", len(r.all(store.Filter{})), 3)
}

func batchesApart(r *rig) {
	r.stage("a", 1)
	r.stage("b", 2)
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: asker + 1, Batch: "a"})
	r.must(err)
	two, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b"})
	r.must(err)
	one, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "a"})
	r.must(err)
	same(r, "steps of the second one", r.finish(one), 1) // a batch does not wait for an earlier one
	same(r, "jobs", len(r.all(store.Filter{})), 1)
	same(r, "steps of the first one", r.finish(two), 1)
	same(r, "jobs", len(r.all(store.Filter{})), 3)
	r.stage("a", 1)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "a"})
	r.must(err)
	r.promote() // Promote moves frames, too
	r.promote()
	same(r, "jobs after the name was used again", len(r.all(store.Filter{})), 4)
}

// The jobs of a staged batch count toward the limit of their user, and toward the limit for all once the
// batch is committed. A commit that does not fit is rejected.
func stagedWaitToo(r *rig) {
	r.one()
	stage := func(uid int, batch string, n int) error {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = draft(of(uid))
		}
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: drafts, UID: uid, Batch: batch, MaxPending: 4, MaxPendingUser: 5})
		return err
	}
	enqueue := func(uid int, most int64) error {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(of(uid))}, UID: uid, MaxPending: most})
		return err
	}
	r.must(stage(1, "b", 3))
	r.must(stage(1, "b", 2))
	r.unchanged(func() { r.refusedCode("one more of the same user", stage(1, "b", 1), queue.CodeFull) })
	r.must(enqueue(2, 2))
	r.unchanged(func() { r.refusedCode("what others have stored does not count", enqueue(2, 2), queue.CodeFull) })
	commit := store.Request{Drafts: []queue.Job{draft(of(1), named("last"))}, UID: 1, Batch: "b", MaxPending: 7}
	for _, drafts := range [][]queue.Job{commit.Drafts, nil} {
		r.unchanged(func() {
			ask := commit
			ask.Drafts, ask.MaxPending = drafts, 6+int64(len(drafts))
			_, err := r.s.Enqueue(r.Context(), ask)
			r.refusedCode("commit of what does not fit", err, queue.CodeFull)
		})
	}
	commit.MaxPending = 8
	receipt, err := r.s.Enqueue(r.Context(), commit) // a rejected commit keeps the batch
	r.must(err)
	r.unchanged(func() { r.refusedCode("what is committed counts for all", enqueue(2, 8), queue.CodeFull) })
	r.finish(receipt)
	r.unchanged(func() { r.refusedCode("what is finished counts for all", enqueue(2, 8), queue.CodeFull) })
	r.must(enqueue(2, 9))
}

func batchesAreBounded(r *rig) {
	begins := func(uid, n int) error {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: uid, Batch: fmt.Sprint("b", n)})
		return err
	}
	for uid := range 6 { // including root; no user takes up another user's limit
		for n := range store.MaxStagedUser {
			r.must(begins(uid, n))
		}
		r.must(begins(uid, 0)) // another frame of an open batch
		r.unchanged(func() {
			same[error](r, "one batch too many of a user", begins(uid, store.MaxStagedUser), store.ErrManyBatches)
		})
	}
	r.must(r.s.AbortBatch(r.Context(), 0, "b0"))
	r.must(begins(0, store.MaxStagedUser))
	_, err := r.s.Enqueue(r.Context(), store.Request{UID: 1, Batch: "b0"})
	r.must(err)
	r.must(begins(1, store.MaxStagedUser)) // a committed batch does not count
	for _, n := range []int{0, queue.MaxBatch + 1} {
		_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: make([]queue.Job, n), UID: 9, Batch: "b"})
		r.refused("a frame of no jobs, or too many", err, queue.CodeInvalid, "jobs")
	}
}

func batchesAudited(r *rig) {
	told := func(target string) {
		r.Helper()
		uid := asker
		same(r, "events", r.news(), []queue.Event{{At: r.s.Now(), Kind: queue.EventAudit, Detail: queue.EventDetail{UID: &uid, Verb: "enqueue.batch", Target: target}}})
	}
	r.stage("a\n", 3)
	told(`"a\n" begun with 3 jobs`)
	r.stage("a\n", 2)
	same(r, "events of a frame", r.news(), nil)
	r.must(r.s.AbortBatch(r.Context(), asker, "a\n"))
	told(`"a\n" aborted with 5 jobs`)
	r.must(r.s.AbortBatch(r.Context(), asker, "a\n"))
	same(r, "events of nothing", r.news(), nil)
	r.stage("b", 1)
	r.news()
	r.pass(store.StageMemory + time.Minute)
	told(`"b" forgotten with 1 jobs`)
}

// New jobs skip seqs that other jobs have as their ids. Seqs still rise, and staged jobs keep theirs.
func squattedNumbers(r *rig) {
	const many = 1500
	first := r.one()
	for from := int64(1); from <= many; from += queue.MaxBatch {
		var drafts []queue.Job
		for n := from; n < from+queue.MaxBatch && n <= many; n++ {
			drafts = append(drafts, draft(named(fmt.Sprint(first.Seq+2*many+n))))
		}
		r.enqueue(asker, drafts...)
	}
	last := first.Seq + many
	for range 3 {
		drafts := make([]queue.Job, 700)
		for i := range drafts {
			drafts[i] = draft()
		}
		for i, seq := range r.enqueue(asker, drafts...).Seqs {
			if seq <= last || seq > first.Seq+2*many && seq <= first.Seq+3*many {
				r.Fatalf("job %d got %d after %d", i, seq, last)
			}
			last = seq
		}
	}
	receipt := r.stage("b", 2)
	for _, id := range receipt.IDs {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named(id))}, UID: asker})
		r.refused("the number of a staged job", err, queue.CodeExists, "id")
	}
	r.one(named(fmt.Sprint(receipt.Seqs[1] + 1)))
	r.one(named("0"))
}

// A staged job may have its own seq as its id. Later jobs can depend on it by that id, and it has the id in
// the queue.
func ownNumbers(r *rig) {
	first := r.one()
	own := fmt.Sprint(first.Seq + 1)
	stage := func(set func(*queue.Job)) store.Receipt {
		receipt, err := r.s.StageBatch(r.Context(), store.Request{UID: asker, Batch: "b", Drafts: []queue.Job{draft(set)}})
		r.must(err)
		return receipt
	}
	same(r, "its number", stage(named(own)).Seqs[0], first.Seq+1)
	child := stage(func(j *queue.Job) { j.After = []queue.Dependency{{ID: own}} })
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b", Drafts: []queue.Job{draft()}})
	r.must(err)
	r.finish(receipt)
	same(r, "state of what depends on it", r.get(child.IDs[0]).State, queue.Blocked)
	same(r, "job of the name", r.get(own).Seq, first.Seq+1)
}
