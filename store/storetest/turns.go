package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var turning = []promise{
	{name: "users of one priority take turns", keep: usersTakeTurns},
	{name: "users take turns within one claim", keep: turnsInOneClaim},
	{name: "three users take turns", keep: threeUsers},
	{name: "by arrival there are no turns", keep: noTurnsByArrival, order: byArrival},
	{name: "by priority alone users take turns", keep: usersTakeTurns, order: byPriority},
	{name: "a turn does not cross priorities", keep: turnsWithinPriority},
	{name: "a job that has waited long goes before a turn", keep: ageBeforeTurn},
	{name: "a user without jobs saves up no turns", keep: noBurst},
	{name: "a user with many lanes has the turns of one user", keep: turnsOfManyLanes},
	{name: "an edited priority changes the turn", keep: turnAfterEdit},
	{name: "a cancelled job takes no turn", keep: turnAfterCancel},
	{name: "users take turns in one claim among many lanes of another priority", keep: turnsAmongManyLanes},
	{name: "users take turns among many lanes whose jobs expire", keep: turnsAmongExpiring},
	{name: "what is given back takes no turn", keep: turnGivenBack},
	{name: "users take turns at a resource", keep: func(r *rig) { turnsAtGate(r, units("gpu", 1)) }},
	{name: "users take turns at a shared lock", keep: func(r *rig) { turnsAtGate(r, lock("@k", 1)) }},
	{name: "a turn overtakes no job that waits for a resource", keep: turnBehindResource},
	{name: "a job has the place of its turn", keep: placeOfTurn},
	{name: "a screen shows what is next in turn", keep: screenInTurn},
	{name: "a screen shows a claimed job before a job that overtakes it", keep: screenOvertaken},
	{name: "a screen shows the later of two claimed jobs first when the other one is given back", keep: screenGivenBack},
	{name: "a simulation takes turns and leaves no trace", keep: simulatedTurns},
}

// A screen shows the next jobs in the order of turns, also while some of them are claimed.
func screenInTurn(r *rig) {
	first := r.jobsOf(1, 30)
	second := r.jobsOf(2, 3)
	next := func(what string, want ...queue.Job) {
		r.Helper()
		screen, err := r.s.Screen(r.Context(), store.ScreenFilter{Rows: 6})
		r.must(err)
		same(r, what, seqs(screen.Ready), seqs(want))
	}
	next("next", first[0], second[0], first[1], second[1], first[2], second[2])
	r.start(r.claimOne())
	next("next after a start", second[0], first[1], second[1], first[2], second[2], first[3])
	claimed := r.claim(3)
	next("next with claimed ones", first[1], second[0], second[1], first[2], second[2], first[3])
	r.release(claimed...)
	next("next after they were given back", second[0], first[1], second[1], first[2], second[2], first[3])
}

// If a user enqueues a more urgent job, an earlier job that is already claimed still starts first.
func screenOvertaken(r *rig) {
	jobs := r.jobsOf(1, 2)
	other := r.jobsOf(2, 2)
	same(r, "claimed job", r.claimOne().Seq, jobs[0].Seq)
	urgent := r.jobsOf(1, 1, priority(9))
	r.showsReady("ready jobs", jobs[0], urgent[0], other[0], jobs[1], other[1])
}

func screenGivenBack(r *rig) {
	jobs := r.jobsOf(1, 4)
	claimed := r.claim(2)
	r.release(claimed[0])
	r.showsReady("ready jobs", jobs[1], jobs[0], jobs[2], jobs[3])
}

// showsReady checks the ready jobs of a screen, in order.
func (r *rig) showsReady(what string, want ...queue.Job) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	screen, err := r.s.Screen(ctx, store.ScreenFilter{Rows: store.MaxScreen})
	r.must(err)
	same(r, what, seqs(screen.Ready), seqs(want))
}

// jobsOf enqueues n jobs of a user.
func (r *rig) jobsOf(uid, n int, set ...func(*queue.Job)) []queue.Job {
	r.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = draft(append([]func(*queue.Job){of(uid)}, set...)...)
	}
	receipt := r.enqueue(uid, drafts...)
	jobs := make([]queue.Job, n)
	for i, id := range receipt.IDs {
		jobs[i] = r.get(id)
	}
	return jobs
}

// users claims n jobs one by one, and returns their users.
func (r *rig) users(n int) (uids []int) {
	r.Helper()
	for range n {
		uids = append(uids, r.claimOne().UID)
	}
	return uids
}

func usersTakeTurns(r *rig) {
	const many = 1000
	r.jobsOf(1, many)
	r.advance(time.Second)
	small := r.jobsOf(2, 3)
	same(r, "users in turn", r.users(8), []int{1, 2, 1, 2, 1, 2, 1, 1})
	for _, j := range small {
		if r.get(j.ID).Fence == j.Fence {
			r.Errorf("job %s has not started among the first", j.ID)
		}
	}
}

func turnsInOneClaim(r *rig) {
	first := r.jobsOf(1, 100)
	r.advance(time.Second)
	second := r.jobsOf(2, 3)
	got := r.claim(8)
	want := []queue.Job{first[0], second[0], first[1], second[1], first[2], second[2], first[3], first[4]}
	same(r, "jobs in turn", seqs(got), seqs(want))
}

func threeUsers(r *rig) {
	r.jobsOf(1, 50)
	r.jobsOf(2, 50)
	r.advance(time.Minute)
	r.jobsOf(3, 4)
	same(r, "users in turn", r.users(14), []int{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2})
}

func noTurnsByArrival(r *rig) {
	r.jobsOf(1, 4)
	r.advance(time.Second)
	r.jobsOf(2, 2)
	same(r, "users in order of arrival", r.users(6), []int{1, 1, 1, 1, 2, 2})
}

func turnsWithinPriority(r *rig) {
	r.jobsOf(1, 3, priority(9))
	r.jobsOf(2, 3)
	r.jobsOf(3, 2, priority(9))
	same(r, "users", r.users(8), []int{1, 3, 1, 3, 1, 2, 2, 2})
}

func ageBeforeTurn(r *rig) {
	old := r.jobsOf(3, 1, priority(4))
	r.advance(2 * time.Minute) // worth two points
	r.jobsOf(1, 3)
	r.jobsOf(2, 3)
	if got := r.claimOne(); got.Seq != old[0].Seq {
		r.Errorf("claimed job %s of user %d, want the one that has waited long", got.ID, got.UID)
	}
	same(r, "users in turn", r.users(4), []int{1, 2, 1, 2})
}

func noBurst(r *rig) {
	r.jobsOf(1, 30)
	r.jobsOf(2, 30)
	r.jobsOf(3, 1)
	same(r, "users in turn", r.users(3), []int{1, 2, 3})
	r.users(20) // user 3 has no waiting jobs in the meantime
	r.jobsOf(3, 5)
	same(r, "users in turn", r.users(6), []int{3, 1, 2, 3, 1, 2})
}

func turnsOfManyLanes(r *rig) {
	r.jobsOf(1, 20)
	for i := range 20 {
		r.jobsOf(2, 1, demands(lock(fmt.Sprint("k", i), 1)))
	}
	same(r, "users in turn", r.users(8), []int{1, 2, 1, 2, 1, 2, 1, 2})
}

func turnAfterEdit(r *rig) {
	r.jobsOf(1, 10)
	moved := r.jobsOf(2, 2)
	r.must(r.edit(moved[1], func(j *queue.Job) error { j.Priority = 9; return nil }))
	if got := r.claimOne(); got.Seq != moved[1].Seq {
		r.Errorf("claimed job %s, want the one whose priority was raised", got.ID)
	}
	same(r, "users in turn", r.users(3), []int{1, 2, 1})
	moved = r.jobsOf(2, 3)
	r.must(r.edit(moved[0], func(j *queue.Job) error { j.Priority = 1; return nil }))
	same(r, "users in turn", r.users(4), []int{2, 1, 2, 1})
	same(r, "the job of a low priority comes last", r.get(moved[0].ID).Fence, moved[0].Fence)
}

func turnAfterCancel(r *rig) {
	r.jobsOf(1, 10)
	other := r.jobsOf(2, 3)
	r.users(2)
	r.must(r.s.Change(r.Context(), other[1].Seq, store.Change{Verb: queue.VerbCancel, UID: asker}))
	r.jobsOf(2, 1, priority(3))
	same(r, "users in turn", r.users(6), []int{1, 2, 1, 1, 1, 1})
}

// Lanes with demands may have to be read before a user's next job is known. They are read once per claim, not
// once per job.
func turnsAmongManyLanes(r *rig) {
	others := func(from, n int) {
		for i := range n {
			r.jobsOf(from+i, 1, priority(-1), demands(lock("k", 1)))
		}
	}
	r.jobsOf(1, 100)
	r.jobsOf(2, 100)
	others(100, 60)
	r.takesTurns("in turn among 60 lanes", r.claim(64), 64)
	others(200, 240)
	for range 2 {
		r.takesTurns("in turn among 300 lanes", r.claim(20), 20)
	}
}

func turnsAmongExpiring(r *rig) {
	r.jobsOf(1, 40)
	r.jobsOf(2, 40)
	for i := range 200 {
		r.jobsOf(100+i, 1, priority(-1), expires(r.s.Now().Add(time.Hour)))
	}
	r.takesTurns("in turn among jobs that expire", r.claim(30), 30)
}

// takesTurns checks that there are n claimed jobs, of users 1 and 2 in turn.
func (r *rig) takesTurns(what string, jobs []queue.Job, n int) {
	r.Helper()
	want := make([]int, n)
	for i := range want {
		want[i] = 1 + i%2
	}
	same(r, what, each(jobs, func(j *queue.Job) int { return j.UID }), want)
}

func turnGivenBack(r *rig) {
	r.jobsOf(1, 10)
	r.jobsOf(2, 10)
	for range 3 {
		got := r.claim(4)
		same(r, "users in turn", each(got, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
		r.release(got...)
	}
	for range 3 { // user 2 keeps its turn, because its job is given back each time
		got := r.claim(2)
		r.release(got[1])
		same(r, "user of what is claimed next", r.claimOne().UID, 2)
	}
}

func turnsAtGate(r *rig, need queue.Demand) {
	r.resources(map[string]int{"gpu": 1})
	r.jobsOf(1, 10, demands(need))
	r.jobsOf(2, 3, demands(need))
	var got []int
	for range 7 {
		jobs := r.claim(3)
		if len(jobs) != 1 {
			r.Fatalf("got %d jobs claimed, want the one that there is room for", len(jobs))
		}
		got = append(got, jobs[0].UID)
		r.end(jobs[0], exit(0))
	}
	same(r, "users in turn", got, []int{1, 2, 1, 2, 1, 2, 1})
}

// A job that waits for more units of a resource than are free keeps its place before the turns of other
// users.
func turnBehindResource(r *rig) {
	r.resources(map[string]int{"gpu": 4})
	running := r.claims("one that leaves a unit", r.jobsOf(3, 1, demands(units("gpu", 3)))...)
	large := r.jobsOf(1, 1, demands(units("gpu", 4)))
	small := r.jobsOf(2, 3, demands(units("gpu", 1)))
	r.claims("no job overtakes the large one")
	r.end(running[0], exit(0))
	r.end(r.claims("the large one alone", large...)[0], exit(0))
	r.claims("the small ones", small...)
}

// The runner starts jobs in the order of their places. A job that gets the turn has the place of the job that
// it overtakes.
func placeOfTurn(r *rig) {
	first := r.jobsOf(1, 3)
	r.advance(time.Second)
	second := r.jobsOf(2, 2)
	done, err := r.s.Exchange(r.Context(), store.Report{Want: 5})
	r.must(err)
	got := done.Jobs
	same(r, "jobs in turn", seqs(got), seqs([]queue.Job{first[0], second[0], first[1], second[1], first[2]}))
	same(r, "places", each(got, func(j *queue.Job) int64 { return j.Start.Seq }), seqs([]queue.Job{first[0], first[1], first[1], first[2], first[2]}))
}

func simulatedTurns(r *rig) {
	r.jobsOf(1, 5)
	r.jobsOf(2, 5)
	for range 3 {
		next, err := r.s.Simulate(r.Context(), 4)
		r.must(err)
		same(r, "users in turn", each(next.Jobs, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
	}
	same(r, "users in turn", r.users(4), []int{1, 2, 1, 2})
}
