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
	{name: "a full queue refuses what is staged", keep: stagedWaitToo},
	{name: "nobody has more batches under way than a share of all", keep: batchesAreShared},
}

// stage stages so many jobs.
func (r *rig) stage(batch string, n int, set ...func(*queue.Job)) store.Receipt {
	r.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = draft(set...)
	}
	receipt, err := r.s.Stage(r.Context(), store.Request{Drafts: drafts, UID: asker, Batch: batch})
	r.must(err)
	return receipt
}

// finish moves all that is committed into the queue and says in how many steps.
func (r *rig) finish() (steps int) {
	for more := true; more; {
		var err error
		more, err = r.s.Finish(r.Context())
		r.must(err)
		if more {
			steps++
		}
	}
	return steps
}

func stagedIsUnseen(r *rig) {
	before := r.one()
	var staged []string
	r.unchanged(func() {
		staged = append(staged, r.stage("b", 3).IDs...)
		staged = append(staged, r.stage("b", 2, delay(time.Hour)).IDs...)
		same(r, "steps before the commit", r.finish(), 0)
	})
	same(r, "claimed before the commit", seqs(r.claim(10)), []int64{before.Seq})
	receipt, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named("last"))}, UID: asker, Batch: "b"})
	r.must(err)
	same(r, "receipt", receipt, store.Receipt{IDs: []string{"last"}, Seqs: receipt.Seqs, Staged: true})
	same(r, "claimed before it is finished", seqs(r.claim(10)), nil)
	r.advance(time.Minute)
	r.news()
	same(r, "steps", r.finish(), 3)
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
	same(r, "steps afterwards", r.finish(), 0)
}

func stagedIdsAreTaken(r *rig) {
	receipt := r.stage("b", 2)
	r.stage("b", 1, named("mine"))
	for _, id := range []string{"mine", receipt.IDs[1]} {
		_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(named(id))}, UID: asker})
		r.refused("enqueue of a staged id", err, queue.CodeExists, "id")
		_, err = r.s.Stage(r.Context(), store.Request{Drafts: []queue.Job{draft(named(id))}, UID: asker, Batch: "other"})
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
	r.must(r.s.Unstage(r.Context(), asker, "asked"))
	r.must(r.s.Unstage(r.Context(), asker, "asked"))
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
	r.unchanged(func() { // else it would be committed without its first frames
		_, err = r.s.Enqueue(r.Context(), last)
		r.refusedCode("commit of a forgotten batch", err, queue.CodeWrongState)
		_, err = r.s.Stage(r.Context(), last)
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
	r.finish()
	again, err := r.s.Enqueue(r.Context(), request)
	r.must(err)
	first.Duplicate = true
	same(r, "receipt of the second time", again, first)
	same(r, "steps of the second time", r.finish(), 0)
	same(r, "jobs", len(r.all(store.Filter{})), 3)
}

func batchesApart(r *rig) {
	r.stage("a", 1)
	r.stage("b", 2)
	_, err := r.s.Stage(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: asker + 1, Batch: "a"})
	r.must(err)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b"})
	r.must(err)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "a"})
	r.must(err)
	r.finish()
	same(r, "jobs", len(r.all(store.Filter{})), 3)
	r.stage("a", 1)
	_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "a"})
	r.must(err)
	r.promote() // which finishes, too
	r.promote()
	same(r, "jobs after the name was used again", len(r.all(store.Filter{})), 4)
}

func stagedWaitToo(r *rig) {
	r.one()
	r.stage("b", 2)
	ask := store.Request{Drafts: []queue.Job{draft(), draft()}, UID: asker, Batch: "b", MaxPending: 4}
	_, err := r.s.Stage(r.Context(), ask)
	r.refusedCode("stage", err, queue.CodeFull)
	_, err = r.s.Enqueue(r.Context(), ask)
	r.refusedCode("commit", err, queue.CodeFull)
	_, err = r.s.Stage(r.Context(), store.Request{Drafts: []queue.Job{draft(), draft()}, UID: asker, Batch: "other", MaxPending: 4})
	r.refusedCode("stage of another batch", err, queue.CodeFull)
	ask.Drafts = ask.Drafts[:1]
	_, err = r.s.Enqueue(r.Context(), ask)
	r.must(err)
}

func batchesAreShared(r *rig) {
	begins := func(uid, n int) error {
		_, err := r.s.Stage(r.Context(), store.Request{Drafts: []queue.Job{draft()}, UID: uid, Batch: fmt.Sprint("b", n)})
		return err
	}
	users := []int{0, asker, asker + 1, asker + 2} // root too
	same(r, "users with a whole share", len(users)*store.MaxStagedUser, store.MaxStaged)
	for _, uid := range users {
		for n := range store.MaxStagedUser {
			r.must(begins(uid, n))
		}
		r.must(begins(uid, 0)) // one more frame
		r.unchanged(func() {
			same[error](r, "one batch too many of a user", begins(uid, store.MaxStagedUser), store.ErrManyBatches)
		})
	}
	r.unchanged(func() { same[error](r, "one batch too many of all", begins(asker+3, 0), store.ErrFullOfBatches) })
	r.must(r.s.Unstage(r.Context(), 0, "b0"))
	r.must(begins(asker+3, 0))
	_, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b0"})
	r.must(err)
	r.finish()
	r.must(begins(asker, store.MaxStagedUser))
}
