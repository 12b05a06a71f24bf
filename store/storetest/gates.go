package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var gating = []promise{
	{name: "everybody's locks and rates go by the rules that are set", keep: setGates},
	{name: "so many jobs with a key run", keep: locked},
	{name: "a key is its user's own, or everybody's", keep: keysOfUsers},
	{name: "the newest word on a key holds for all", keep: newestWord},
	{name: "so many jobs with a key start in a period", keep: rated},
	{name: "what was claimed counts as started", keep: ratedUnstarted},
	{name: "a resource has so many units", keep: resourced},
	{name: "nobody of a queue overtakes who waits for a resource", keep: notOvertaken},
	{name: "who cannot start otherwise holds no place", keep: holdsNoPlace},
	{name: "a job runs on the node that it names", keep: onNode},
	{name: "a job meets several gates", keep: severalGates},
	{name: "a demand that is edited holds", keep: editedDemand},
	{name: "an await is served by room at a gate", keep: awaitGate},
	{name: "what no gate could meet is refused", keep: wrongDemands},
	{name: "a paused queue rests", keep: pausedQueue},
	{name: "a queue has so many jobs leased", keep: boundedQueue},
	{name: "who has many queues holds nobody up", keep: manyQueues},
	{name: "many queues that wait for a resource hold nobody up", keep: manyQueuesAtAResource},
	{name: "queues share starts by weight", keep: weighedQueues},
	{name: "an idle queue earns nothing", keep: idleQueue},
}

func in(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }

func demands(list ...queue.Demand) func(*queue.Job) {
	return func(j *queue.Job) { j.Demands = list }
}

func lock(key string, n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, Key: key, N: n} }

func rate(key string, n int, per time.Duration) queue.Demand {
	return queue.Demand{Kind: queue.GateRate, Key: key, N: n, Per: per}
}

func units(name string, n int) queue.Demand {
	return queue.Demand{Kind: queue.GateResource, Key: name, N: n}
}

// claims claims jobs and checks that they are exactly the given ones.
func (r *rig) claims(what string, want ...queue.Job) []queue.Job {
	r.Helper()
	got := r.turn(store.Report{Want: 50}).Jobs
	seqs := func(jobs []queue.Job) (list []int64) {
		for i := range jobs {
			list = append(list, jobs[i].Seq)
		}
		return list
	}
	if !slices.Equal(seqs(got), seqs(want)) {
		r.Errorf("%s: claimed %v, want %v", what, seqs(got), seqs(want))
	}
	return got
}

// release gives back the leases of jobs.
func (r *rig) release(jobs ...queue.Job) {
	r.Helper()
	var t store.Report
	for _, j := range jobs {
		t.Released = append(t.Released, j.Lease())
	}
	r.turn(t)
}

func locked(r *rig) {
	jobs := r.store(draft(demands(lock("k", 2))), draft(demands(lock("k", 2))), draft(demands(lock("k", 2))), draft(demands(lock("other", 1))), draft())
	got := r.claims("two of three, and the others", jobs[0], jobs[1], jobs[3], jobs[4])
	r.claims("no room")
	r.release(got[1])
	got[1] = r.claims("a claim that was given back", jobs[1])[0]
	got[0] = r.start(got[0])
	r.claims("a started one holds it still")
	r.end(got[0], exit(1)) // fails, and waits to be retried
	r.claims("after an end", jobs[2])
	r.pass(time.Hour)
	r.promote()
	r.claims("and there is no room for another try")
	r.end(got[1], exit(0))
	r.claims("but then", jobs[0])
}

func keysOfUsers(r *rig) {
	jobs := r.store(
		draft(of(1), demands(lock("k", 1))), draft(of(1), demands(lock("k", 1))), draft(of(2), demands(lock("k", 1))),
		draft(of(1), demands(lock("@k", 1))), draft(of(2), demands(lock("@k", 1))))
	r.claims("one of each user, and one of all", jobs[0], jobs[2], jobs[3])
}

func newestWord(r *rig) {
	old := r.store(draft(demands(lock("k", 1))), draft(demands(lock("k", 1))), draft(demands(lock("k", 1))))
	r.claims("by the first word", old[0])
	last := r.one(demands(lock("k", 3)))
	r.must(r.edit(old[2], func(j *queue.Job) error { j.Command = "edited"; return nil }))
	got := r.claims("by the last one, whatever else is edited", old[1], old[2])
	r.end(got[0], exit(0))
	r.claims("still", last)
	r.one(demands(lock("k", 1)))
	r.end(got[1], exit(0))
	r.claims("two run, one may")
}

func rated(r *rig) {
	second := demands(rate("k", 2, time.Second))
	jobs := r.store(draft(second), draft(second), draft(second), draft(second), draft(second))
	got := r.claims("two in a second", jobs[0], jobs[1])
	r.start(got[0])
	r.end(got[0], exit(0))
	r.pass(400 * time.Millisecond)
	r.start(got[1])
	r.claims("ends make no room")
	r.pass(600 * time.Millisecond)
	r.promote()
	r.claims("it is a second yet")
	r.pass(time.Millisecond)
	r.promote()
	r.claims("one has left it", jobs[2])
	r.pass(399 * time.Millisecond)
	r.promote()
	r.claims("the other has not")
	r.pass(time.Millisecond)
	r.promote()
	r.claims("now it has", jobs[3])
}

func ratedUnstarted(r *rig) {
	second := demands(rate("k", 1, time.Second))
	jobs := r.store(draft(second), draft(second))
	got := r.claims("one", jobs[0])
	r.pass(time.Hour)
	r.promote()
	r.claims("it may have started")
	r.release(got...)
	got = r.claims("what was given back did not start", jobs[0])
	r.end(got[0], ended(queue.Unstarted))
	r.end(r.claims("nor what could not be started", jobs[0])[0], exit(0))
	r.claims("but this one did")
	r.pass(time.Second + time.Millisecond)
	r.promote()
	r.claims("a second later", jobs[1])
}

func (r *rig) resources(units map[string]int) {
	r.Helper()
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "here", Resources: units}))
}

func resourced(r *rig) {
	jobs := r.store(draft(demands(units("gpu", 2))), draft(demands(units("gpu", 1))), draft(demands(units("gpu", 1))), draft(demands(units("disk", 1))))
	r.claims("where there is none")
	r.resources(map[string]int{"gpu": 3})
	got := r.claims("three units", jobs[0], jobs[1])
	r.resources(map[string]int{"gpu": 1, "disk": 1})
	disk := r.claims("fewer units end nothing", jobs[3])
	r.end(got[1], exit(0))
	r.claims("two of one are in use")
	r.end(got[0], exit(0))
	r.claims("one is free", jobs[2])
	r.end(disk[0], exit(0))
}

func notOvertaken(r *rig) {
	r.resources(map[string]int{"gpu": 4})
	jobs := r.store(draft(demands(units("gpu", 2))), draft(demands(units("gpu", 4))), draft(demands(units("gpu", 1))), draft(of(7), priority(4), demands(units("gpu", 1))),
		draft(in("night"), demands(units("gpu", 1))), draft())
	got := r.claims("those that do not wait behind the large one", jobs[0], jobs[4], jobs[5])
	r.end(got[1], exit(0))
	r.claims("the large one waits")
	r.end(got[0], exit(0))
	got = r.claims("and goes first", jobs[1])
	r.end(got[0], exit(0))
	r.claims("then those behind", jobs[2], jobs[3])
}

func holdsNoPlace(r *rig) {
	r.resources(map[string]int{"gpu": 2})
	jobs := r.store(draft(demands(lock("k", 1))), draft(demands(units("gpu", 1))), draft(demands(lock("k", 1), units("gpu", 2))), draft(of(7), priority(4), demands(units("gpu", 1))))
	got := r.claims("the third one waits for its key", jobs[0], jobs[1], jobs[3])
	next := r.one(demands(units("gpu", 1)))
	r.end(got[1], exit(0))
	got[1] = r.claims("nobody waits behind it", next)[0]
	r.end(got[0], exit(0))
	last := r.one(demands(units("gpu", 1)))
	r.end(got[1], exit(0))
	r.claims("it has its key, and waits for units")
	r.must(r.change(jobs[2], queue.VerbCancel))
	r.claims("it is gone", last)
}

func on(node string) queue.Demand { return queue.Demand{Kind: queue.GateNode, Key: node, N: 1} }

func onNode(r *rig) {
	jobs := r.store(draft(demands(on("here"))), draft(demands(on("there"))), draft(demands(on("size=large"))), draft(demands(on("size=small"))),
		draft(demands(on("there"), units("gpu", 1))), draft(demands(units("gpu", 1))))
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "here", Labels: map[string]string{"size": "large"}, Resources: map[string]int{"gpu": 1}}))
	got := r.claims("on one node", jobs[0], jobs[2], jobs[5])
	r.must(r.s.SetNode(r.Context(), store.Node{Name: "there", Labels: map[string]string{"size": "small", "here": ""}, Resources: map[string]int{"gpu": 1}}))
	r.promote()
	r.claims("on another one, whose unit is in use", jobs[1], jobs[3])
	r.end(got[2], exit(0))
	r.claims("as the unit is free", jobs[4])
}

func severalGates(r *rig) {
	r.resources(map[string]int{"gpu": 1})
	r.bound(2)
	all := demands(lock("k", 1), rate("r", 1, time.Second), units("gpu", 1))
	jobs := r.store(draft(all), draft(all), draft(demands(lock("k", 1))), draft(demands(rate("r", 1, time.Second))), draft(demands(units("gpu", 1))), draft(), draft())
	got := r.claims("one with all three, one without", jobs[0], jobs[5])
	r.end(got[1], exit(0))
	plain := r.claims("its user has room again", jobs[6])
	r.end(got[0], exit(0))
	one := r.claims("the second one's rate is full", jobs[2])
	r.end(plain[0], exit(0))
	two := r.claims("a unit is free", jobs[4])
	r.pass(time.Second + time.Millisecond)
	r.promote()
	r.end(two[0], exit(0))
	three := r.claims("its key is taken", jobs[3])
	r.end(one[0], exit(0))
	r.end(three[0], exit(0))
	r.claims("its rate is, now")
	r.pass(time.Second + time.Millisecond)
	r.promote()
	r.claims("at last", jobs[1])
}

func editedDemand(r *rig) {
	jobs := r.store(draft(demands(lock("k", 1))), draft(demands(lock("k", 1))), draft())
	r.must(r.edit(jobs[1], func(j *queue.Job) error { j.Demands, j.Queue = nil, "night"; return nil }))
	got := r.claims("its key was taken away", jobs[0], jobs[1], jobs[2])
	same(r, "queue", r.get(jobs[1].ID).Queue, "night")
	same(r, "demands", len(r.get(jobs[1].ID).Demands), 0)
	r.release(got[1])
	r.must(r.edit(r.get(jobs[1].ID), func(j *queue.Job) error { j.Demands = []queue.Demand{lock("k", 1)}; return nil }))
	r.claims("its key was given back")
	r.end(got[0], exit(0))
	r.claims("it has it", jobs[1])
}

func awaitGate(r *rig) {
	jobs := r.store(draft(demands(lock("k", 1), rate("r", 1, time.Second))), draft(demands(lock("k", 1))), draft(demands(rate("r", 1, time.Second))))
	got := r.claims("the first", jobs[0])
	result := r.await(r.Context(), 1)
	r.end(got[0], exit(0))
	got = r.served("the key is free", result)
	same(r, "job", got[0].Seq, jobs[1].Seq)
	result = r.await(r.Context(), 1)
	r.pass(time.Second + time.Millisecond)
	r.promote()
	same(r, "job", r.served("the second is over", result)[0].Seq, jobs[2].Seq)
	other := r.one(demands(lock("k", 1)))
	result = r.await(r.Context(), 1)
	r.one(demands(lock("k", 2)))
	same(r, "job", r.served("there is more room", result)[0].Seq, other.Seq)
}

func wrongDemands(r *rig) {
	j := r.one()
	for what, list := range map[string][]queue.Demand{
		"a lock of none":     {lock("k", 0)},
		"too many units":     {units("gpu", queue.MaxDemand+1)},
		"no key":             {lock("", 1)},
		"a key of two lines": {lock("a\n3 1 b", 1)},
		"a label of nothing": {on("=large")},
		"no period":          {rate("r", 1, 0)},
		"a lock's period":    {{Kind: queue.GateLock, Key: "k", N: 1, Per: time.Second}},
		"no kind":            {{Key: "k", N: 1}},
		"two of a node":      {{Kind: queue.GateNode, Key: "here", N: 2}},
		"a user's quota":     {{Kind: queue.GateUser, Key: "k", N: 1}},
		"one key twice":      {lock("k", 1), lock("k", 2)},
		"out of order":       {units("gpu", 1), lock("k", 1)},
		"more than anybody":  make([]queue.Demand, queue.MaxDemands+1),
	} {
		r.unchanged(func() {
			_, err := r.s.Enqueue(r.Context(), store.Request{Drafts: []queue.Job{draft(demands(list...))}, UID: asker})
			r.refusedCode(what, err, queue.CodeInvalid)
			r.refusedCode(what, r.edit(j, func(j *queue.Job) error { j.Demands = list; return nil }), queue.CodeInvalid)
		})
	}
}

func (r *rig) rule(name string, rule store.QueueRule) {
	r.Helper()
	r.must(r.s.SetQueue(r.Context(), name, rule))
}

func pausedQueue(r *rig) {
	r.rule("night", store.QueueRule{Weight: 1, Paused: true})
	jobs := r.store(draft(in("night")), draft(in("night"), of(7)), draft())
	r.claims("what does not rest", jobs[2])
	result := r.await(r.Context(), 9)
	r.rule("night", store.QueueRule{Weight: 1})
	same(r, "jobs", len(r.served("it goes on", result)), 2)
}

func boundedQueue(r *rig) {
	r.rule("night", store.QueueRule{Weight: 1, Concurrency: 2})
	jobs := r.store(draft(in("night")), draft(in("night"), of(7)), draft(in("night"), of(8)), draft())
	got := r.claims("two of it", jobs[0], jobs[1], jobs[3])
	result := r.await(r.Context(), 9)
	r.end(got[0], exit(0))
	same(r, "job", r.served("one has ended", result)[0].Seq, jobs[2].Seq)
}

// A user who has jobs in many queues and has reached the quota does not delay other users' claims. When a job
// of the user ends, another one starts.
func manyQueues(r *rig) {
	const many = 600
	r.bound(2)
	drafts := make([]queue.Job, many)
	for i := range drafts {
		drafts[i] = draft(of(1), in(fmt.Sprint("q", i)))
	}
	mine := r.store(drafts...)
	var got []queue.Job
	for range 20 {
		got = append(got, r.turn(store.Report{Want: 9}).Jobs...)
	}
	same(r, "jobs of who may have two", len(got), 2)
	other := r.one(of(2))
	r.end(got[0], exit(0))
	var next []queue.Job
	for range 10 {
		next = append(next, r.turn(store.Report{Want: 9}).Jobs...)
	}
	same(r, "jobs of both", len(next), 2)
	if !slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == other.Seq }) || !slices.ContainsFunc(next, func(j queue.Job) bool { return j.Seq == mine[2].Seq }) {
		r.Errorf("claimed %v, want the third of one and the other's", next)
	}
}

// Many queues whose jobs lack units of a resource do not keep Promote from finishing, and do not delay other
// jobs.
func manyQueuesAtAResource(r *rig) {
	r.resources(map[string]int{"gpu": 2})
	r.claims("one unit of two", r.one(demands(units("gpu", 1))))
	drafts := make([]queue.Job, 600)
	for i := range drafts {
		drafts[i] = draft(of(1), in(fmt.Sprint("q", i)), demands(units("gpu", 2)))
	}
	r.store(drafts...)
	r.resources(map[string]int{"gpu": 2, "disk": 1}) // all lanes are checked again
	r.claims("another's job", r.one(of(2)))
	r.promote()
	r.claims("nothing fits")
}

// Queues with weights 3 and 1 share the starts 3 to 1, whatever the priorities of their jobs are.
func weighedQueues(r *rig) {
	r.rule("a", store.QueueRule{Weight: 3})
	const many = 400
	var drafts []queue.Job
	for range many {
		drafts = append(drafts, draft(in("a"), priority(1)), draft(in("b"), priority(9)))
	}
	r.store(drafts...)
	starts := map[string]int{}
	for range many / 10 {
		var t store.Report
		for _, j := range r.turn(store.Report{Want: 10}).Jobs {
			starts[j.Queue]++
			t.Ended = append(t.Ended, r.settlement(j, exit(0)))
		}
		r.turn(t)
	}
	if starts["a"] < many*3/4-2 || starts["a"] > many*3/4+2 || starts["a"]+starts["b"] != many {
		r.Errorf("%v of %d starts at weights 3 and 1", starts, many)
	}
}

func idleQueue(r *rig) {
	r.rule("a", store.QueueRule{Weight: 2})
	var drafts []queue.Job
	for range 40 {
		drafts = append(drafts, draft(in("a")))
	}
	r.store(drafts...)
	r.turn(store.Report{Want: 30})
	drafts = drafts[:0]
	for range 20 {
		drafts = append(drafts, draft(in("b"), priority(9)))
	}
	r.store(drafts...)
	starts := map[string]int{}
	for _, j := range r.turn(store.Report{Want: 12}).Jobs {
		starts[j.Queue]++
	}
	if starts["a"] < 7 || starts["a"] > 9 {
		r.Errorf("%v of 12 starts at weights 2 and 1, where one had nothing to run before", starts)
	}
}

// The rules set by SetGate apply to shared keys, whatever the jobs say.
func setGates(r *rig) {
	set := func(d queue.Demand) error { return r.s.SetGate(r.Context(), d) }
	lock := func(n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, Key: "@db", N: n} }
	rate := queue.Demand{Kind: queue.GateRate, Key: "@api", N: 2, Per: time.Second}
	r.must(set(lock(2)))
	r.must(set(rate))
	named := func(d ...queue.Demand) queue.Job {
		return r.one(func(j *queue.Job) { j.Demands = d })
	}
	a, b, c := named(lock(1)), named(lock(7)), named(lock(1))
	r.claims("two of them, whatever they say", a, b)
	r.must(set(lock(3)))
	r.claims("a third one", c)
	own := queue.Demand{Kind: queue.GateLock, Key: "own", N: 1}
	named(own)
	r.claims("that of the user's own", r.get("4"))
	gates := func(uid int, after store.GateState) []store.GateState {
		list, err := r.s.Gates(r.Context(), uid, after)
		r.must(err)
		return list
	}
	want := []store.GateState{
		{Demand: lock(3), UID: queue.Everybody, Set: true, Used: 3, Jobs: 3}, {Demand: rate, UID: queue.Everybody, Set: true},
		{Demand: own, UID: asker, Used: 1, Jobs: 1},
	}
	same(r, "gates", gates(asker, store.GateState{}), want)
	same(r, "gates after one", gates(asker, want[0]), want[1:])
	same(r, "gates after those of everybody", gates(asker, want[1]), want[2:])
	same(r, "gates of nobody", gates(queue.Everybody, store.GateState{}), want[:2])
	same(r, "gates of another user", gates(7, store.GateState{}), want[:2])
	r.must(set(lock(0)))
	r.must(set(queue.Demand{Kind: queue.GateRate, Key: "@api"}))
	d := named(lock(4))
	r.claims("no job changes it while others name it")
	want[0] = store.GateState{Demand: lock(3), UID: queue.Everybody, Used: 3, Jobs: 4}
	same(r, "gates that no rule is set for", gates(7, store.GateState{}), want[:1])
	held, err := r.heldJobs()
	r.must(err)
	for _, j := range held {
		r.end(j, exit(0))
	}
	r.must(r.change(d, queue.VerbCancel))
	e := named(lock(1))
	f := named(lock(9))
	r.claims("by the word of the first that names it", e)
	r.must(r.change(f, queue.VerbCancel))
	r.must(r.change(d, queue.VerbRetry)) // d states another limit
	r.claims("still by that")
	for _, wrong := range []queue.Demand{{Kind: queue.GateLock, Key: "own", N: 1}, {Kind: queue.GateLock, Key: "@", N: 1}, {Kind: queue.GateResource, Key: "gpu", N: 1}, {Kind: queue.GateLock, Key: "@x", N: -1}, {Kind: queue.GateRate, Key: "@x", N: 1}} {
		if err := set(wrong); !errors.Is(err, queue.ErrInvalid) {
			r.Errorf("%+v: got error %v, want %v", wrong, err, queue.ErrInvalid)
		}
	}
}
