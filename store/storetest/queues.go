package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var queueing = []promise{
	{name: "a queue is there from its first job to its last", keep: queueComesAndGoes},
	{name: "a queue has room for so many jobs", keep: fullQueue},
	{name: "a pause ends when its time has come", keep: queuePauseEnds},
	{name: "one user begins a bounded number of queues", keep: queuesOfOneUser},
	{name: "a waiting job moves to another queue", keep: editedQueue},
	{name: "what holds a job back is told", keep: toldObstacles},
	{name: "what would start next is told, and nothing is changed", keep: simulated},
	{name: "a unique key is one unfinished job's", keep: uniqueKey},
	{name: "a unique key is kept for a while", keep: uniqueFor},
	{name: "a waiting job gives its unique key up", keep: uniqueReplaces},
	{name: "drafts of one request share a unique key", keep: uniqueDrafts},
	{name: "a retried job needs its unique key", keep: uniqueRetry},
	{name: "a job of a request that ends at once keeps none of it from its unique key", keep: uniqueEndedAtOnce},
	{name: "a retried parent takes none back whose unique key another job has", keep: uniqueRetriedParent},
}

func unique(key string, do queue.Conflict) func(*queue.Job) {
	return func(j *queue.Job) { j.Unique, j.OnConflict = key, do }
}

func (r *rig) queues() map[string]store.QueueState {
	r.Helper()
	list, err := r.s.Queues(r.Context())
	r.must(err)
	of := map[string]store.QueueState{}
	for i, q := range list {
		if i > 0 && list[i-1].Name >= q.Name {
			r.Errorf("queue %q comes after %q", q.Name, list[i-1].Name)
		}
		of[q.Name] = q
	}
	return of
}

func queueComesAndGoes(r *rig) {
	same(r, "queues at first", len(r.queues()), 0)
	rule := store.QueueRule{Weight: 3, Concurrency: 2, MaxPending: 9, Defaults: `{"priority":7}`, Paused: true, PausedBy: 7, PausedAt: 5, Reason: "x"}
	r.rule("kept", rule)
	receipt, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Drafts: []queue.Job{draft(in("gpu")), draft(in("gpu")), draft(in("gpu"), delay(time.Hour)), draft(in("kept"))}})
	r.must(err)
	same(r, "queues that have begun", receipt.Begun, []string{"gpu"})
	r.must(r.change(r.get(receipt.IDs[3]), queue.VerbCancel))
	got := r.turn(store.Report{Want: 1}).Jobs
	same(r, "queues", r.queues(), map[string]store.QueueState{
		"kept": {Name: "kept", Rule: rule},
		// A leased job counts as waiting until it is known to have started.
		"gpu": {Name: "gpu", Rule: store.Plain, Waiting: 3, Leased: 1, Oldest: r.s.Now()},
	})
	r.turn(store.Report{Started: []store.Started{{Lease: got[0].Lease(), At: r.s.Now(), Worker: "w", PID: 1}}})
	same(r, "its waiting jobs", r.queues()["gpu"].Waiting, int64(2))
	r.end(got[0], exit(0))
	for _, j := range r.all(store.Filter{States: []queue.State{queue.Pending}}) {
		r.must(r.change(j, queue.VerbCancel))
	}
	r.rule("kept", store.Plain)
	same(r, "queues at the end", len(r.queues()), 0)
}

func fullQueue(r *rig) {
	r.rule("small", store.QueueRule{Weight: 1, MaxPending: 2})
	ask := func(what string, drafts ...queue.Job) {
		r.Helper()
		r.unchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: drafts, UID: asker})
			r.refusedCode(what, err, queue.CodeFull)
		})
	}
	ask("three at once", draft(in("small")), draft(in("small")), draft(in("small")))
	jobs := r.store(draft(in("small")), draft(in("small")))
	ask("a third", draft(in("small")))
	other := r.one()
	r.refusedCode("to move there", r.edit(other, func(j *queue.Job) error { j.Queue = "small"; return nil }), queue.CodeFull)
	r.must(r.change(jobs[0], queue.VerbCancel))
	last := r.one(in("small"))
	r.refusedCode("to come back", r.change(jobs[0], queue.VerbRetry), queue.CodeFull)
	_, err := r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(in("small"))}, UID: asker, Batch: "b"})
	r.refusedCode("a frame of a batch", err, queue.CodeFull)
	r.must(r.change(last, queue.VerbCancel))
	_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(in("small"))}, UID: asker, Batch: "b"})
	r.must(err)
	_, err = r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(in("small"))}, UID: asker, Batch: "b"})
	r.refusedCode("its last frame", err, queue.CodeFull)
	committed, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Batch: "b"})
	r.must(err)
	r.finish(committed)
	same(r, "its waiting jobs", r.queues()["small"].Waiting, int64(2))
	r.counted()
}

func queuePauseEnds(r *rig) {
	r.rule("night", store.QueueRule{Weight: 2, Paused: true, PausedBy: 3, PausedAt: r.s.Now(), Reason: "why", Until: r.s.Now().Add(time.Minute)})
	j := r.one(in("night"))
	if next := r.promote(); next > time.Minute {
		r.Errorf("the next look is in %v", next)
	}
	r.claims("while it is paused")
	r.pass(time.Minute - time.Millisecond)
	r.claims("still")
	r.pass(time.Millisecond)
	same(r, "its rule", r.queues()["night"].Rule, store.QueueRule{Weight: 2})
	r.claims("then", j)
}

func queuesOfOneUser(r *rig) {
	drafts := make([]queue.Job, store.MaxQueues)
	for i := range drafts {
		drafts[i] = draft(in(fmt.Sprint("q", i)))
	}
	jobs := r.store(drafts...)
	_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(in("one-more"))}, UID: asker})
	r.refusedCode("one more queue", err, queue.CodeFull)
	r.store(draft(in("q7")))
	_, err = r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(in("another-user"), of(7))}, UID: 7})
	r.must(err)
	r.rule("set", store.QueueRule{Weight: 2})
	r.store(draft(in("set")))
	r.must(r.change(jobs[0], queue.VerbCancel))
	r.one(in("one-more"))
}

func editedQueue(r *rig) {
	r.rule("night", store.QueueRule{Weight: 1, Paused: true})
	j := r.one(in("night"))
	r.claims("it is paused")
	r.must(r.edit(j, func(j *queue.Job) error { j.Queue = "day"; return nil }))
	same(r, "waiting jobs", r.queues()["day"].Waiting, int64(1))
	same(r, "waiting jobs of the first", r.queues()["night"].Waiting, int64(0))
	r.claims("it has moved", j)
}

func simulated(r *rig) {
	r.must(r.s.SetNode(r.Context(), store.Node{Resources: map[string]int{"gpu": 1}}))
	r.rule("one", store.QueueRule{Weight: 2, Concurrency: 1})
	gpu := queue.Demand{Kind: queue.GateResource, Key: "gpu", N: 1}
	jobs := r.store(draft(), draft(in("one")), draft(in("one")), draft(demands(gpu)), draft(demands(gpu)), draft(demands(lock("k", 1))), draft(expires(r.s.Now().Add(time.Minute))))
	r.advance(2 * time.Minute) // the last job has expired
	queues, counts := r.queues(), r.s.Counts()
	r.news()
	var first []int64
	for range 3 {
		got, err := r.s.Simulate(r.Context(), 9)
		r.must(err)
		if first == nil {
			first = seqs(got.Jobs)
		}
		same(r, "the same each time", seqs(got.Jobs), first)
		same(r, "incomplete", got.Incomplete, false)
	}
	same(r, "jobs", len(first), 4)
	same(r, "queues", r.queues(), queues)
	same(r, "counts", r.s.Counts().States, counts.States)
	same(r, "events", r.news(), nil)
	same(r, "what is claimed then", seqs(r.turn(store.Report{Want: 9}).Jobs), first)
	r.in("it was too late", jobs[6], queue.Cancelled, queue.ReasonExpired)
	r.counted()
}

func toldObstacles(r *rig) {
	obstacles := func(what string, j queue.Job, want ...store.Obstacle) {
		r.Helper()
		got, err := r.s.Obstacles(r.Context(), []int64{j.Seq})
		r.must(err)
		same(r, what, got[j.Seq], want)
	}
	r.must(r.s.SetNode(r.Context(), store.Node{Resources: map[string]int{"gpu": 3}}))
	first := r.one(demands(lock("k", 1), queue.Demand{Kind: queue.GateRate, Key: "r", N: 1, Per: time.Minute}, queue.Demand{Kind: queue.GateResource, Key: "gpu", N: 2}))
	obstacles("it may run", first)
	r.claims("the first", first)
	obstacles("it runs", first)
	second := r.one(demands(lock("k", 1), queue.Demand{Kind: queue.GateRate, Key: "r", N: 1, Per: time.Minute}))
	large := r.one(demands(queue.Demand{Kind: queue.GateResource, Key: "gpu", N: 2}))
	small := r.one(demands(queue.Demand{Kind: queue.GateResource, Key: "gpu", N: 1}))
	r.claims("nobody")
	obstacles("a lock and a rate", second, store.Obstacle{Gate: queue.GateLock, Key: "k", Used: 1, Most: 1, Need: 1}, store.Obstacle{Gate: queue.GateRate, Key: "r", Used: 1, Most: 1, Need: 1})
	obstacles("more than there is", large, store.Obstacle{Gate: queue.GateResource, Key: "gpu", Used: 2, Most: 3, Need: 2})
	obstacles("behind that", small, store.Obstacle{Gate: queue.GateResource, Key: "gpu", Used: 2, Most: 3, Need: 1, Barred: true})
	r.start(r.get(first.ID))
	free := r.one(demands(lock("other", 1)))
	// firsts checks the first obstacle of each of several jobs.
	firsts := func(what string, want map[int64]store.Obstacle) {
		r.Helper()
		all, err := r.s.Obstacles(r.Context(), []int64{second.Seq, large.Seq, small.Seq, free.Seq, first.Seq, 99})
		r.must(err)
		got := map[int64]store.Obstacle{}
		for seq, list := range all {
			got[seq] = store.Obstacle{Gate: list[0].Gate, Key: list[0].Key}
		}
		same(r, what, got, want)
	}
	gpu := store.Obstacle{Gate: queue.GateResource, Key: "gpu"}
	firsts("of several jobs", map[int64]store.Obstacle{second.Seq: {Gate: queue.GateLock, Key: "k"}, large.Seq: gpu, small.Seq: gpu})
	r.bound(1)
	own := store.Obstacle{Gate: queue.GateUser}
	firsts("of several jobs with a quota", map[int64]store.Obstacle{second.Seq: own, large.Seq: own, small.Seq: own, free.Seq: own})
	r.rule("night", store.QueueRule{Weight: 1, Paused: true})
	last := r.one(in("night"))
	obstacles("its queue and its user", last, store.Obstacle{Key: "night", Need: 1, Paused: true}, store.Obstacle{Gate: queue.GateUser, Used: 1, Most: 1, Need: 1})
	later := r.one(delay(time.Hour))
	obstacles("it is not due", later)
	obstacles("it is not due, and its queue is paused", r.one(in("night"), delay(time.Hour)), store.Obstacle{Key: "night", Need: 1, Paused: true})
}

func (r *rig) ask(set ...func(*queue.Job)) (store.Receipt, error) {
	r.Helper()
	return r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(set...)}, UID: asker})
}

func uniqueKey(r *rig) {
	first := r.one(unique("k", queue.ConflictReturn))
	got, err := r.ask(unique("k", queue.ConflictReturn))
	r.must(err)
	same(r, "the second", got, store.Receipt{IDs: []string{first.ID}, Seqs: []int64{first.Seq}, Found: []bool{true}, Begun: got.Begun})
	r.unchanged(func() {
		_, err = r.ask(unique("k", queue.ConflictReject))
		r.refused("one that is to be alone", err, queue.CodeExists, "unique")
	})
	r.store(draft(unique("k", queue.ConflictReject), of(7)), draft(unique("other", queue.ConflictReject)))
	running := r.claimOne()
	same(r, "what runs", running.Seq, first.Seq)
	_, err = r.ask(unique("k", queue.ConflictReplace))
	r.refused("to replace what runs", err, queue.CodeExists, "unique")
	r.end(running, exit(1))
	_, err = r.ask(unique("k", queue.ConflictReject))
	r.refused("while it waits for its retry", err, queue.CodeExists, "unique")
	r.must(r.change(first, queue.VerbCancel))
	r.one(unique("k", queue.ConflictReject))
	_, err = r.s.StageBatch(r.Context(), store.Request{Drafts: []queue.Job{draft(unique("z", queue.ConflictReturn))}, UID: asker, Batch: "b"})
	r.refused("in a batch of many requests", err, queue.CodeInvalid, "unique")
	r.counted()
}

func uniqueFor(r *rig) {
	first := r.one(unique("k", queue.ConflictReturn), func(j *queue.Job) { j.UniqueFor = time.Minute })
	r.end(r.claimOne(), exit(0))
	r.pass(time.Minute - time.Millisecond)
	got, err := r.ask(unique("k", queue.ConflictReturn))
	r.must(err)
	same(r, "the job that has ended", got.Seqs, []int64{first.Seq})
	_, err = r.ask(unique("k", queue.ConflictReplace))
	r.refused("what has ended is not replaced", err, queue.CodeExists, "unique")
	r.pass(time.Millisecond)
	r.one(unique("k", queue.ConflictReject))
}

func uniqueReplaces(r *rig) {
	first := r.one(unique("k", queue.ConflictReplace))
	child := r.one(after(queue.ParentEnded, first))
	second := r.one(unique("k", queue.ConflictReplace))
	r.in("the first", first, queue.Cancelled, queue.ReasonReplaced)
	r.claims("the second, and who waited for the first's end", child, second)
	r.counted()
}

func uniqueDrafts(r *rig) {
	got, err := r.s.Enqueue(r.Context(), store.Request{UID: asker, Drafts: []queue.Job{draft(unique("k", queue.ConflictReturn)), draft(), draft(unique("k", queue.ConflictReturn))}})
	r.must(err)
	same(r, "the third", got.Seqs[2], got.Seqs[0])
	same(r, "jobs", len(r.all(store.Filter{})), 2)
	r.unchanged(func() {
		_, err = r.s.Enqueue(r.Context(), store.Request{UID: asker, Drafts: []queue.Job{draft(unique("z", queue.ConflictReject)), draft(unique("z", queue.ConflictReject))}})
		r.refusedCode("two of one request", err, queue.CodeExists)
	})
}

func uniqueRetry(r *rig) {
	first := r.one(unique("k", queue.ConflictReturn))
	r.must(r.change(first, queue.VerbCancel))
	second := r.one(unique("k", queue.ConflictReturn))
	r.refusedCode("another job has its key", r.change(first, queue.VerbRetry), queue.CodeExists)
	r.must(r.change(second, queue.VerbCancel))
	r.must(r.change(first, queue.VerbRetry))
}

func uniqueRetriedParent(r *rig) {
	parent := r.one(maxAttempts(1))
	child := r.one(unique("k", queue.ConflictReject), after(queue.ParentCompleted, parent))
	r.end(r.claims("the parent", parent)[0], exit(1))
	other := r.one(unique("k", queue.ConflictReject), delay(time.Hour))
	r.must(r.change(parent, queue.VerbRetry))
	r.promote()
	r.in("another job has its key", child, queue.Cancelled, queue.ReasonDependency)
	r.end(r.claims("the parent again", parent)[0], exit(1))
	r.must(r.change(other, queue.VerbCancel))
	r.must(r.change(parent, queue.VerbRetry))
	r.promote()
	r.in("nobody has its key", child, queue.Blocked, "")
}

func uniqueEndedAtOnce(r *rig) {
	parent := r.one(maxAttempts(1))
	r.end(r.claims("the parent", parent)[0], exit(1))
	keyed := func(set ...func(*queue.Job)) queue.Job {
		j := draft(set...)
		j.Unique, j.UniqueFor, j.OnConflict = "k", time.Hour, queue.ConflictReplace
		return j
	}
	jobs := r.store(keyed(after(queue.ParentCompleted, parent)), keyed())
	r.in("its parent has failed", jobs[0], queue.Cancelled, queue.ReasonDependency)
	r.in("it takes the place of the other", jobs[1], queue.Pending, "")
}
