package storetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var turnPromises = []promise{
	{name: "users with jobs of the same priority take turns", check: usersTakeTurns},
	{name: "users take turns within one claim", check: usersTakeTurnsInOneClaim},
	{name: "three users take turns", check: threeUsersTakeTurns},
	{name: "with order by arrival, users take no turns", check: arrivalOrderHasNoTurns, order: arrivalOrder},
	{name: "with order by priority, users take turns", check: usersTakeTurns, order: priorityOrder},
	{name: "users take turns only within a priority", check: turnsWithinPriority},
	{name: "a better rank gained by waiting precedes turns", check: ageingPrecedesTurns},
	{name: "a user without waiting jobs saves up no turns", check: idleUserSavesNoTurns},
	{name: "a user with many lanes gets no extra turns", check: lanesGrantNoExtraTurns},
	{name: "an edited priority changes the user's turn", check: editedPriorityChangesTurn},
	{name: "a cancelled job uses up no turn", check: cancelledJobUsesUpNoTurn},
	{name: "users take turns in one claim despite many lanes of another priority", check: claimReadsLanesOnce},
	{name: "users take turns despite many lanes whose jobs expire", check: expiringLanesKeepTurns},
	{name: "a released job uses up no turn", check: releasedJobUsesUpNoTurn},
	{name: "users take turns at a resource", check: func(r *rig) { checkTurnsAtGate(r, resourceDemand("gpu", 1)) }},
	{name: "users take turns at a shared lock", check: func(r *rig) { checkTurnsAtGate(r, lockDemand("@k", 1)) }},
	{name: "a user's turn does not overtake a job that waits for a resource", check: resourceWaiterKeepsTurn},
	{name: "a job that overtakes another one gets its place in the start order", check: overtakingJobGetsStartPosition},
	{name: "Screen shows the next jobs in the order of turns", check: screenShowsTurns},
	{name: "Screen shows a claimed job before a more urgent new job", check: screenShowsClaimedBeforeUrgent},
	{name: "Screen shows a claimed job before an earlier job that was given back",
		check: screenShowsClaimedBeforeReleased},
	{name: "Simulate respects turns and does not change them", check: simulateFollowsTurns},
}

// Users take turns. The status screen shows the next jobs in the order of these turns, even if some of
// them are already claimed.
func screenShowsTurns(r *rig) {
	first := r.enqueueFor(1, 30)
	second := r.enqueueFor(2, 3)
	next := func(subject string, want ...queue.Job) {
		r.Helper()
		screen, err := r.s.Screen(r.Context(), store.ScreenFilter{Rows: 6})
		r.must(err)
		checkEqual(r, subject, seqs(screen.Ready), seqs(want))
	}
	next("next", first[0], second[0], first[1], second[1], first[2], second[2])
	r.startJob(r.claimOne())
	next("next after a start", second[0], first[1], second[1], first[2], second[2], first[3])
	claimed := r.claim(3)
	next("next with claimed jobs", first[1], second[0], second[1], first[2], second[2], first[3])
	r.release(claimed...)
	next("next after they were given back", second[0], first[1], second[1], first[2], second[2], first[3])
}

// On the status screen, a claimed job comes before a more urgent job that its user enqueues later.
func screenShowsClaimedBeforeUrgent(r *rig) {
	jobs := r.enqueueFor(1, 2)
	other := r.enqueueFor(2, 2)
	checkEqual(r, "claimed job", r.claimOne().Seq, jobs[0].Seq)
	urgent := r.enqueueFor(1, 1, withPriority(9))
	r.checkReady("ready jobs", jobs[0], urgent[0], other[0], jobs[1], other[1])
}

func screenShowsClaimedBeforeReleased(r *rig) {
	jobs := r.enqueueFor(1, 4)
	claimed := r.claim(2)
	r.release(claimed[0])
	r.checkReady("ready jobs", jobs[1], jobs[0], jobs[2], jobs[3])
}

// checkReady checks that the status screen shows the given jobs as the next ones, in this order.
func (r *rig) checkReady(subject string, want ...queue.Job) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), maxWait)
	defer cancel()
	screen, err := r.s.Screen(ctx, store.ScreenFilter{Rows: store.MaxScreenRows})
	r.must(err)
	checkEqual(r, subject, seqs(screen.Ready), seqs(want))
}

// enqueueFor enqueues n jobs of the user uid.
func (r *rig) enqueueFor(uid, n int, set ...func(*queue.Job)) []queue.Job {
	r.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = draft(append([]func(*queue.Job){withUID(uid)}, set...)...)
	}
	receipt := r.enqueue(uid, drafts...)
	jobs := make([]queue.Job, n)
	for i, id := range receipt.IDs {
		jobs[i] = r.getJob(id)
	}
	return jobs
}

// claimUsers claims n jobs one by one, and returns their users.
func (r *rig) claimUsers(n int) (uids []int) {
	r.Helper()
	for range n {
		uids = append(uids, r.claimOne().UID)
	}
	return uids
}

// Users with jobs of the same priority take turns.
func usersTakeTurns(r *rig) {
	const jobCount = 1000
	r.enqueueFor(1, jobCount)
	r.advance(time.Second)
	small := r.enqueueFor(2, 3)
	checkEqual(r, "users in turn", r.claimUsers(8), []int{1, 2, 1, 2, 1, 2, 1, 1})
	for _, j := range small {
		if r.getJob(j.ID).Fence == j.Fence {
			r.Errorf("job %s was not among the first 8 claimed jobs", j.ID)
		}
	}
}

func usersTakeTurnsInOneClaim(r *rig) {
	first := r.enqueueFor(1, 100)
	r.advance(time.Second)
	second := r.enqueueFor(2, 3)
	got := r.claim(8)
	want := []queue.Job{first[0], second[0], first[1], second[1], first[2], second[2], first[3], first[4]}
	checkEqual(r, "jobs in turn", seqs(got), seqs(want))
}

func threeUsersTakeTurns(r *rig) {
	r.enqueueFor(1, 50)
	r.enqueueFor(2, 50)
	r.advance(time.Minute)
	r.enqueueFor(3, 4)
	checkEqual(r, "users in turn", r.claimUsers(14), []int{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2})
}

// If jobs start in order of arrival, users do not take turns.
func arrivalOrderHasNoTurns(r *rig) {
	r.enqueueFor(1, 4)
	r.advance(time.Second)
	r.enqueueFor(2, 2)
	checkEqual(r, "users in order of arrival", r.claimUsers(6), []int{1, 1, 1, 1, 2, 2})
}

// Users take turns only among jobs of the same priority.
func turnsWithinPriority(r *rig) {
	r.enqueueFor(1, 3, withPriority(9))
	r.enqueueFor(2, 3)
	r.enqueueFor(3, 2, withPriority(9))
	checkEqual(r, "users", r.claimUsers(8), []int{1, 3, 1, 3, 1, 2, 2, 2})
}

// A job whose rank has improved by waiting comes before jobs of users who are next in turn.
func ageingPrecedesTurns(r *rig) {
	old := r.enqueueFor(3, 1, withPriority(4))
	r.advance(2 * time.Minute) // two minutes of waiting are worth two points of priority, so the old job now ranks first
	r.enqueueFor(1, 3)
	r.enqueueFor(2, 3)
	if got := r.claimOne(); got.Seq != old[0].Seq {
		r.Errorf("claimed job %s of user %d, want the job that has waited long", got.ID, got.UID)
	}
	checkEqual(r, "users in turn", r.claimUsers(4), []int{1, 2, 1, 2})
}

// A user without waiting jobs does not get several turns in a row afterwards.
func idleUserSavesNoTurns(r *rig) {
	r.enqueueFor(1, 30)
	r.enqueueFor(2, 30)
	r.enqueueFor(3, 1)
	checkEqual(r, "users in turn", r.claimUsers(3), []int{1, 2, 3})
	r.claimUsers(20) // user 3 has no waiting jobs during these claims
	r.enqueueFor(3, 5)
	checkEqual(r, "users in turn", r.claimUsers(6), []int{3, 1, 2, 3, 1, 2})
}

// A user whose jobs have many different demands gets no extra turns.
func lanesGrantNoExtraTurns(r *rig) {
	r.enqueueFor(1, 20)
	for i := range 20 {
		r.enqueueFor(2, 1, withDemands(lockDemand(fmt.Sprint("k", i), 1)))
	}
	checkEqual(r, "users in turn", r.claimUsers(8), []int{1, 2, 1, 2, 1, 2, 1, 2})
}

func editedPriorityChangesTurn(r *rig) {
	r.enqueueFor(1, 10)
	moved := r.enqueueFor(2, 2)
	r.must(r.edit(moved[1], func(j *queue.Job) error { j.Priority = 9; return nil }))
	if got := r.claimOne(); got.Seq != moved[1].Seq {
		r.Errorf("claimed job %s, want the job whose priority was raised", got.ID)
	}
	checkEqual(r, "users in turn", r.claimUsers(3), []int{1, 2, 1})
	moved = r.enqueueFor(2, 3)
	r.must(r.edit(moved[0], func(j *queue.Job) error { j.Priority = 1; return nil }))
	checkEqual(r, "users in turn", r.claimUsers(4), []int{2, 1, 2, 1})
	checkEqual(r, "the job of a low priority comes last", r.getJob(moved[0].ID).Fence, moved[0].Fence)
}

func cancelledJobUsesUpNoTurn(r *rig) {
	r.enqueueFor(1, 10)
	other := r.enqueueFor(2, 3)
	r.claimUsers(2)
	r.must(r.s.Change(r.Context(), other[1].Seq, store.Change{Verb: queue.VerbCancel, UID: testUID}))
	r.enqueueFor(2, 1, withPriority(3))
	checkEqual(r, "users in turn", r.claimUsers(6), []int{1, 2, 1, 1, 1, 1})
}

// To find the next job of a user whose jobs have many different demands, a claim may have to read many lists of
// jobs. It reads each list once per claim, not once per job.
func claimReadsLanesOnce(r *rig) {
	others := func(firstJob, n int) {
		for i := range n {
			r.enqueueFor(firstJob+i, 1, withPriority(-1), withDemands(lockDemand("k", 1)))
		}
	}
	r.enqueueFor(1, 100)
	r.enqueueFor(2, 100)
	others(100, 60)
	r.checkAlternating("in turn among 60 lanes", r.claim(64), 64)
	others(200, 240)
	for range 2 {
		r.checkAlternating("in turn among 300 lanes", r.claim(20), 20)
	}
}

// Users take turns even if many jobs with different demands expire.
func expiringLanesKeepTurns(r *rig) {
	r.enqueueFor(1, 40)
	r.enqueueFor(2, 40)
	for i := range 200 {
		r.enqueueFor(100+i, 1, withPriority(-1), withExpiry(r.s.Now().Add(time.Hour)))
	}
	r.checkAlternating("in turn among jobs that expire", r.claim(30), 30)
}

// checkAlternating checks that n jobs were claimed, alternately of user 1 and user 2.
func (r *rig) checkAlternating(subject string, jobs []queue.Job, n int) {
	r.Helper()
	want := make([]int, n)
	for i := range want {
		want[i] = 1 + i%2
	}
	checkEqual(r, subject, mapJobs(jobs, func(j *queue.Job) int { return j.UID }), want)
}

func releasedJobUsesUpNoTurn(r *rig) {
	r.enqueueFor(1, 10)
	r.enqueueFor(2, 10)
	for range 3 {
		got := r.claim(4)
		checkEqual(r, "users in turn", mapJobs(got, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
		r.release(got...)
	}
	for range 3 { // a job of user 2 that was given back does not use up the turn
		got := r.claim(2)
		r.release(got[1])
		checkEqual(r, "user of the next claimed job", r.claimOne().UID, 2)
	}
}

// checkTurnsAtGate checks that users take turns if all their jobs need the same lock, rate or resource.
func checkTurnsAtGate(r *rig, demand queue.Demand) {
	r.setResources(map[string]int{"gpu": 1})
	r.enqueueFor(1, 10, withDemands(demand))
	r.enqueueFor(2, 3, withDemands(demand))
	var claimedUIDs []int
	for range 7 {
		jobs := r.claim(3)
		if len(jobs) != 1 {
			r.Fatalf("got %d jobs claimed, want 1", len(jobs))
		}
		claimedUIDs = append(claimedUIDs, jobs[0].UID)
		r.settle(jobs[0], exitOutcome(0))
	}
	checkEqual(r, "users in turn", claimedUIDs, []int{1, 2, 1, 2, 1, 2, 1})
}

// A job that waits for more units of a resource than are free is the next to get them. Jobs of other users do
// not overtake it, even if these users are next in turn.
func resourceWaiterKeepsTurn(r *rig) {
	r.setResources(map[string]int{"gpu": 4})
	running := r.claimExactly("a job that leaves one unit free",
		r.enqueueFor(3, 1, withDemands(resourceDemand("gpu", 3)))...)
	large := r.enqueueFor(1, 1, withDemands(resourceDemand("gpu", 4)))
	small := r.enqueueFor(2, 3, withDemands(resourceDemand("gpu", 1)))
	r.claimExactly("no job overtakes the large job")
	r.settle(running[0], exitOutcome(0))
	r.settle(r.claimExactly("only the large job", large...)[0], exitOutcome(0))
	r.claimExactly("the small jobs", small...)
}

// The runner starts claimed jobs in the order of their start positions. If a job is claimed early because its
// user is next in turn, it gets the start position of the job that it overtakes.
func overtakingJobGetsStartPosition(r *rig) {
	first := r.enqueueFor(1, 3)
	r.advance(time.Second)
	second := r.enqueueFor(2, 2)
	done, err := r.s.Exchange(r.Context(), store.Report{WantedJobs: 5})
	r.must(err)
	got := done.Jobs
	checkEqual(r, "jobs in turn", seqs(got), seqs([]queue.Job{first[0], second[0], first[1], second[1], first[2]}))
	checkEqual(r, "places", mapJobs(got, func(j *queue.Job) int64 { return j.StartPosition.Seq }),
		seqs([]queue.Job{first[0], first[1], first[1], first[2], first[2]}))
}

// Simulate predicts the turns of users, but does not change them.
func simulateFollowsTurns(r *rig) {
	r.enqueueFor(1, 5)
	r.enqueueFor(2, 5)
	for range 3 {
		next, err := r.s.Simulate(r.Context(), 4)
		r.must(err)
		checkEqual(r, "users in turn", mapJobs(next.Jobs, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
	}
	checkEqual(r, "users in turn", r.claimUsers(4), []int{1, 2, 1, 2})
}

// noteServed records that a claim returned job j.
func (t *servedTurns) noteServed(j *queue.Job) {
	t.claims++
	t.previousClaims[j.Seq], t.lastClaims[j.UID] = t.lastClaims[j.UID], t.claims
}

// noteGivenBack records that the claimed job j was given back, so its claim does not
// count as a turn of its user.
func (t *servedTurns) noteGivenBack(j *queue.Job) {
	t.lastClaims[j.UID] = min(t.lastClaims[j.UID], t.previousClaims[j.Seq])
}

// expectedClaim returns the jobs that a claim must return. It finds them with a scan of all jobs.
func (r *rig) expectedClaim(maxPerUser, wantedJobs int, leasedJobs map[int64]queue.Job, earlierTurns servedTurns) (
	claimedSeqs []int64) {
	leasedByUser := map[int]int{}
	for _, j := range leasedJobs {
		leasedByUser[j.UID]++
	}
	var ready []queue.Job
	for _, j := range r.listAll(store.Filter{States: []queue.State{queue.Pending, queue.Failed}}) {
		if _, isLeased := leasedJobs[j.Seq]; !isLeased && j.State.Runnable() && j.DueAt <= r.s.Now() {
			ready = append(ready, j)
		}
	}
	rank := func(j queue.Job) int64 { return r.order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber) }
	slices.SortFunc(ready, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Seq, b.Seq))
	})
	turns := servedTurns{earlierTurns.claims, maps.Clone(earlierTurns.lastClaims), maps.Clone(earlierTurns.previousClaims)}
	for len(claimedSeqs) < wantedJobs {
		best := -1
		first, served := 0, map[int]bool{}
		for i := range ready {
			j := &ready[i]
			if served[j.UID] || maxPerUser > 0 && leasedByUser[j.UID] >= maxPerUser {
				continue
			}
			if served[j.UID] = true; best < 0 {
				best, first = i, i
			} else if j.Priority == ready[first].Priority && turns.lastClaims[j.UID] < turns.lastClaims[ready[best].UID] {
				best = i
			}
		}
		if best < 0 {
			break
		}
		turns.noteServed(&ready[best])
		leasedByUser[ready[best].UID]++
		claimedSeqs = append(claimedSeqs, ready[best].Seq)
		ready = slices.Delete(ready, best, best+1)
	}
	return claimedSeqs
}
