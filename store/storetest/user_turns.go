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

var userTurnTests = []contractTest{
	{name: "users with jobs of the same priority take turns", run: usersTakeTurns},
	{name: "users take turns within one claim", run: usersTakeTurnsInOneClaim},
	{name: "three users take turns", run: threeUsersTakeTurns},
	{name: "with order by arrival, users take no turns", run: arrivalOrderGivesUsersNoTurns, rankOrder: arrivalRankOrder},
	{name: "with order by priority, users take turns", run: usersTakeTurns, rankOrder: priorityRankOrder},
	{name: "users take turns only within a priority", run: usersTakeTurnsWithinPriority},
	{name: "a better rank gained by waiting precedes turns", run: ageingOverridesUserTurns},
	{name: "a user without waiting jobs saves up no turns", run: idleUserSavesNoTurns},
	{name: "a user with many lanes gets no extra turns", run: manyLanesGrantNoExtraTurns},
	{name: "an edited priority changes the user's turn", run: editedPriorityChangesTurn},
	{name: "a cancelled job uses up no turn", run: cancelledJobUsesUpNoTurn},
	{name: "users take turns in one claim despite many lanes of another priority", run: claimReadsEachLaneOnce},
	{name: "users take turns despite many lanes whose jobs expire", run: expiringJobsKeepUserTurns},
	{name: "a released job uses up no turn", run: releasedJobUsesUpNoTurn},
	{name: "users take turns at a resource", run: func(r *storeTest) { checkTurnsAtGate(r, resourceDemand("gpu", 1)) }},
	{name: "users take turns at a shared lock", run: func(r *storeTest) { checkTurnsAtGate(r, lockDemand("@k", 1)) }},
	{name: "a user's turn does not overtake a job that waits for a resource", run: resourceWaiterKeepsTurn},
	{name: "a job that overtakes another one gets its place in the start order",
		run: overtakingJobGetsOvertakenStartPosition},
	{name: "Screen shows the next jobs in the order of turns", run: screenShowsJobsInTurnOrder},
	{name: "Screen shows a claimed job before a more urgent new job", run: screenShowsClaimedJobBeforeUrgentJob},
	{name: "Screen shows a claimed job before an earlier job that was given back",
		run: screenShowsClaimedJobBeforeReleasedJob},
	{name: "Simulate respects turns and does not change them", run: simulateClaimsFollowsUserTurns},
}

// Users take turns. The status screen shows the next jobs in the order in which the users' turns will start them, even
// if some of these jobs are already claimed.
func screenShowsJobsInTurnOrder(r *storeTest) {
	first := r.enqueueUserJobs(1, 30)
	second := r.enqueueUserJobs(2, 3)
	next := func(subject string, want ...queue.Job) {
		r.Helper()
		screen, err := r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: 6})
		r.must(err)
		checkEqual(r, subject, seqsOf(screen.Ready), seqsOf(want))
	}
	next("next", first[0], second[0], first[1], second[1], first[2], second[2])
	r.startJob(r.claimOne())
	next("next after a start", second[0], first[1], second[1], first[2], second[2], first[3])
	claimed := r.claimJobs(3)
	next("next with claimed jobs", first[1], second[0], second[1], first[2], second[2], first[3])
	r.releaseClaimedJobs(claimed...)
	next("next after they were given back", second[0], first[1], second[1], first[2], second[2], first[3])
}

// On the status screen, a claimed job comes before a more urgent job that its user enqueues later.
func screenShowsClaimedJobBeforeUrgentJob(r *storeTest) {
	jobs := r.enqueueUserJobs(1, 2)
	other := r.enqueueUserJobs(2, 2)
	checkEqual(r, "claimed job", r.claimOne().Seq, jobs[0].Seq)
	urgent := r.enqueueUserJobs(1, 1, withPriority(9))
	r.checkScreenReadyJobs("ready jobs", jobs[0], urgent[0], other[0], jobs[1], other[1])
}

func screenShowsClaimedJobBeforeReleasedJob(r *storeTest) {
	jobs := r.enqueueUserJobs(1, 4)
	claimed := r.claimJobs(2)
	r.releaseClaimedJobs(claimed[0])
	r.checkScreenReadyJobs("ready jobs", jobs[1], jobs[0], jobs[2], jobs[3])
}

// checkScreenReadyJobs checks that the status screen shows the given jobs, in this order, as the jobs that will start
// next.
func (r *storeTest) checkScreenReadyJobs(description string, want ...queue.Job) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), maxReceiveWait)
	defer cancel()
	screen, err := r.store.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: store.MaxScreenRowsPerPart})
	r.must(err)
	checkEqual(r, description, seqsOf(screen.Ready), seqsOf(want))
}

// enqueueUserJobs enqueues n jobs of the user uid.
func (r *storeTest) enqueueUserJobs(uid, jobCount int, options ...func(*queue.Job)) []queue.Job {
	r.Helper()
	drafts := make([]queue.Job, jobCount)
	for i := range drafts {
		drafts[i] = newDraft(append([]func(*queue.Job){withUID(uid)}, options...)...)
	}
	receipt := r.enqueueJobs(uid, drafts...)
	jobs := make([]queue.Job, jobCount)
	for i, id := range receipt.IDs {
		jobs[i] = r.getJob(id)
	}
	return jobs
}

// claimAndListUIDs claims n jobs one by one, and returns their users.
func (r *storeTest) claimAndListUIDs(jobCount int) (uids []int) {
	r.Helper()
	for range jobCount {
		uids = append(uids, r.claimOne().UID)
	}
	return uids
}

// Users with jobs of the same priority take turns: a claim takes their jobs alternately.
func usersTakeTurns(r *storeTest) {
	const jobCount = 1000
	r.enqueueUserJobs(1, jobCount)
	r.advanceClock(time.Second)
	small := r.enqueueUserJobs(2, 3)
	checkEqual(r, "users in turn", r.claimAndListUIDs(8), []int{1, 2, 1, 2, 1, 2, 1, 1})
	for _, j := range small {
		if r.getJob(j.ID).Fence == j.Fence {
			r.Errorf("job %s was not among the first 8 claimed jobs", j.ID)
		}
	}
}

func usersTakeTurnsInOneClaim(r *storeTest) {
	first := r.enqueueUserJobs(1, 100)
	r.advanceClock(time.Second)
	second := r.enqueueUserJobs(2, 3)
	got := r.claimJobs(8)
	want := []queue.Job{first[0], second[0], first[1], second[1], first[2], second[2], first[3], first[4]}
	checkEqual(r, "jobs in turn", seqsOf(got), seqsOf(want))
}

func threeUsersTakeTurns(r *storeTest) {
	r.enqueueUserJobs(1, 50)
	r.enqueueUserJobs(2, 50)
	r.advanceClock(time.Minute)
	r.enqueueUserJobs(3, 4)
	checkEqual(r, "users in turn", r.claimAndListUIDs(14), []int{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2})
}

// If jobs start in order of arrival, users do not take turns.
func arrivalOrderGivesUsersNoTurns(r *storeTest) {
	r.enqueueUserJobs(1, 4)
	r.advanceClock(time.Second)
	r.enqueueUserJobs(2, 2)
	checkEqual(r, "users in order of arrival", r.claimAndListUIDs(6), []int{1, 1, 1, 1, 2, 2})
}

// Users take turns only among jobs of the same priority.
func usersTakeTurnsWithinPriority(r *storeTest) {
	r.enqueueUserJobs(1, 3, withPriority(9))
	r.enqueueUserJobs(2, 3)
	r.enqueueUserJobs(3, 2, withPriority(9))
	checkEqual(r, "users", r.claimAndListUIDs(8), []int{1, 3, 1, 3, 1, 2, 2, 2})
}

// A job that has waited for long enough starts before jobs of other users, even if these users are next in turn,
// because its rank has improved by waiting.
func ageingOverridesUserTurns(r *storeTest) {
	old := r.enqueueUserJobs(3, 1, withPriority(4))
	// two minutes of waiting are worth two points of priority, so the old job now ranks first
	r.advanceClock(2 * time.Minute)
	r.enqueueUserJobs(1, 3)
	r.enqueueUserJobs(2, 3)
	if got := r.claimOne(); got.Seq != old[0].Seq {
		r.Errorf("claimed job %s of user %d, want the job that has waited long", got.ID, got.UID)
	}
	checkEqual(r, "users in turn", r.claimAndListUIDs(4), []int{1, 2, 1, 2})
}

// If a user has no waiting jobs for a while, the user does not get several turns in a row afterwards as compensation.
func idleUserSavesNoTurns(r *storeTest) {
	r.enqueueUserJobs(1, 30)
	r.enqueueUserJobs(2, 30)
	r.enqueueUserJobs(3, 1)
	checkEqual(r, "users in turn", r.claimAndListUIDs(3), []int{1, 2, 3})
	r.claimAndListUIDs(20) // user 3 has no waiting jobs during these claims
	r.enqueueUserJobs(3, 5)
	checkEqual(r, "users in turn", r.claimAndListUIDs(6), []int{3, 1, 2, 3, 1, 2})
}

// A user's jobs with different demands are in different lanes (lists of waiting jobs). A user with many lanes gets no
// extra turns.
func manyLanesGrantNoExtraTurns(r *storeTest) {
	r.enqueueUserJobs(1, 20)
	for i := range 20 {
		r.enqueueUserJobs(2, 1, withDemands(lockDemand(fmt.Sprint("k", i), 1)))
	}
	checkEqual(r, "users in turn", r.claimAndListUIDs(8), []int{1, 2, 1, 2, 1, 2, 1, 2})
}

func editedPriorityChangesTurn(r *storeTest) {
	r.enqueueUserJobs(1, 10)
	moved := r.enqueueUserJobs(2, 2)
	r.must(r.editJob(moved[1], func(j *queue.Job) error { j.Priority = 9; return nil }))
	if got := r.claimOne(); got.Seq != moved[1].Seq {
		r.Errorf("claimed job %s, want the job whose priority was raised", got.ID)
	}
	checkEqual(r, "users in turn", r.claimAndListUIDs(3), []int{1, 2, 1})
	moved = r.enqueueUserJobs(2, 3)
	r.must(r.editJob(moved[0], func(j *queue.Job) error { j.Priority = 1; return nil }))
	checkEqual(r, "users in turn", r.claimAndListUIDs(4), []int{2, 1, 2, 1})
	checkEqual(r, "the job of a low priority comes last", r.getJob(moved[0].ID).Fence, moved[0].Fence)
}

func cancelledJobUsesUpNoTurn(r *storeTest) {
	r.enqueueUserJobs(1, 10)
	other := r.enqueueUserJobs(2, 3)
	r.claimAndListUIDs(2)
	r.must(r.store.ChangeJob(r.Context(), other[1].Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
	r.enqueueUserJobs(2, 1, withPriority(3))
	checkEqual(r, "users in turn", r.claimAndListUIDs(6), []int{1, 2, 1, 1, 1, 1})
}

// To find the next job of a user, a claim may have to read many lanes: lists of waiting jobs, one for each combination
// of queue, user and demands. The claim reads each lane once, not once per job that it takes.
func claimReadsEachLaneOnce(r *storeTest) {
	others := func(firstJob, n int) {
		for i := range n {
			r.enqueueUserJobs(firstJob+i, 1, withPriority(-1), withDemands(lockDemand("k", 1)))
		}
	}
	r.enqueueUserJobs(1, 100)
	r.enqueueUserJobs(2, 100)
	others(100, 60)
	r.checkUsersAlternate("in turn among 60 lanes", r.claimJobs(64), 64)
	others(200, 240)
	for range 2 {
		r.checkUsersAlternate("in turn among 300 lanes", r.claimJobs(20), 20)
	}
}

// Users take turns even if there are many other lanes (lists of waiting jobs) with jobs that expire.
func expiringJobsKeepUserTurns(r *storeTest) {
	r.enqueueUserJobs(1, 40)
	r.enqueueUserJobs(2, 40)
	for i := range 200 {
		r.enqueueUserJobs(100+i, 1, withPriority(-1), withExpiry(r.store.Now().Add(time.Hour)))
	}
	r.checkUsersAlternate("in turn among jobs that expire", r.claimJobs(30), 30)
}

// checkUsersAlternate checks that n jobs were claimed, alternately of user 1 and user 2.
func (r *storeTest) checkUsersAlternate(description string, jobs []queue.Job, jobCount int) {
	r.Helper()
	want := make([]int, jobCount)
	for i := range want {
		want[i] = 1 + i%2
	}
	checkEqual(r, description, mapJobs(jobs, func(j *queue.Job) int { return j.UID }), want)
}

func releasedJobUsesUpNoTurn(r *storeTest) {
	r.enqueueUserJobs(1, 10)
	r.enqueueUserJobs(2, 10)
	for range 3 {
		got := r.claimJobs(4)
		checkEqual(r, "users in turn", mapJobs(got, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
		r.releaseClaimedJobs(got...)
	}
	for range 3 { // if a job is given back, its claim does not use up the turn of user 2
		got := r.claimJobs(2)
		r.releaseClaimedJobs(got[1])
		checkEqual(r, "user of the next claimed job", r.claimOne().UID, 2)
	}
}

// checkTurnsAtGate checks that users take turns if all their jobs need the same lock, rate or resource.
func checkTurnsAtGate(r *storeTest, demand queue.Demand) {
	r.setResourceUnits(map[string]int{"gpu": 1})
	r.enqueueUserJobs(1, 10, withDemands(demand))
	r.enqueueUserJobs(2, 3, withDemands(demand))
	var claimedUIDs []int
	for range 7 {
		jobs := r.claimJobs(3)
		if len(jobs) != 1 {
			r.Fatalf("got %d jobs claimed, want 1", len(jobs))
		}
		claimedUIDs = append(claimedUIDs, jobs[0].UID)
		r.settleJob(jobs[0], exitOutcome(0))
	}
	checkEqual(r, "users in turn", claimedUIDs, []int{1, 2, 1, 2, 1, 2, 1})
}

// If a job waits for more units of a resource than are free, the next units are kept for that job. Jobs of other users
// that need the resource do not overtake it, even if these users are next in turn.
func resourceWaiterKeepsTurn(r *storeTest) {
	r.setResourceUnits(map[string]int{"gpu": 4})
	running := r.claimAndExpect("a job that leaves one unit free",
		r.enqueueUserJobs(3, 1, withDemands(resourceDemand("gpu", 3)))...)
	large := r.enqueueUserJobs(1, 1, withDemands(resourceDemand("gpu", 4)))
	small := r.enqueueUserJobs(2, 3, withDemands(resourceDemand("gpu", 1)))
	r.claimAndExpect("no job overtakes the large job")
	r.settleJob(running[0], exitOutcome(0))
	r.settleJob(r.claimAndExpect("only the large job", large...)[0], exitOutcome(0))
	r.claimAndExpect("the small jobs", small...)
}

// The runner starts claimed jobs in the order of their start positions. If a job overtakes another job in a claim
// because its user is next in turn, it gets the start position of the other job.
func overtakingJobGetsOvertakenStartPosition(r *storeTest) {
	first := r.enqueueUserJobs(1, 3)
	r.advanceClock(time.Second)
	second := r.enqueueUserJobs(2, 2)
	done, err := r.store.ReportAndClaim(r.Context(), store.LeaseReport{MaxJobsToClaim: 5})
	r.must(err)
	got := done.ClaimedJobs
	checkEqual(r, "jobs in turn", seqsOf(got), seqsOf([]queue.Job{first[0], second[0], first[1], second[1], first[2]}))
	checkEqual(r, "places", mapJobs(got, func(j *queue.Job) int64 { return j.StartPosition.Seq }),
		seqsOf([]queue.Job{first[0], first[1], first[1], first[2], first[2]}))
}

// SimulateClaims predicts the turns of users, but does not change them.
func simulateClaimsFollowsUserTurns(r *storeTest) {
	r.enqueueUserJobs(1, 5)
	r.enqueueUserJobs(2, 5)
	for range 3 {
		next, err := r.store.SimulateClaims(r.Context(), 4)
		r.must(err)
		checkEqual(r, "users in turn", mapJobs(next.StartingJobs, func(j *queue.Job) int { return j.UID }), []int{1, 2, 1, 2})
	}
	checkEqual(r, "users in turn", r.claimAndListUIDs(4), []int{1, 2, 1, 2})
}

// recordClaimedTurn records that job j was claimed, which counts as a turn of the job's user.
func (t *servedTurns) recordClaimedTurn(j *queue.Job) {
	t.claimCount++
	t.previousClaimNumberBySeq[j.Seq], t.lastClaimNumberByUID[j.UID] = t.lastClaimNumberByUID[j.UID], t.claimCount
}

// undoReleasedTurn records that the claimed job j was given back, so its claim does not
// count as a turn of its user.
func (t *servedTurns) undoReleasedTurn(j *queue.Job) {
	t.lastClaimNumberByUID[j.UID] = min(t.lastClaimNumberByUID[j.UID], t.previousClaimNumberBySeq[j.Seq])
}

// expectedClaimSeqs returns the numbers (seqs) of the jobs that a claim must take. It scans all jobs to find them.
func (r *storeTest) expectedClaimSeqs(maxRunningPerUser, wantedJobs int, leasedJobs map[int64]queue.Job,
	earlierTurns servedTurns) (
	claimedSeqs []int64) {
	leasedByUser := map[int]int{}
	for _, j := range leasedJobs {
		leasedByUser[j.UID]++
	}
	var ready []queue.Job
	for _, j := range r.listAllJobs(store.JobFilter{States: []queue.State{queue.Pending, queue.Failed}}) {
		if _, isLeased := leasedJobs[j.Seq]; !isLeased && j.State.IsRunnable() && j.DueAt <= r.store.Now() {
			ready = append(ready, j)
		}
	}
	rank := func(j queue.Job) int64 { return r.rankOrder.Rank(j.Priority, j.AgingSince, j.ArrivalNumber) }
	slices.SortFunc(ready, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Seq, b.Seq))
	})
	turns := servedTurns{earlierTurns.claimCount, maps.Clone(earlierTurns.lastClaimNumberByUID),
		maps.Clone(earlierTurns.previousClaimNumberBySeq)}
	for len(claimedSeqs) < wantedJobs {
		best := -1
		first, served := 0, map[int]bool{}
		for i := range ready {
			j := &ready[i]
			if served[j.UID] || maxRunningPerUser > 0 && leasedByUser[j.UID] >= maxRunningPerUser {
				continue
			}
			if served[j.UID] = true; best < 0 {
				best, first = i, i
			} else if j.Priority == ready[first].Priority &&
				turns.lastClaimNumberByUID[j.UID] < turns.lastClaimNumberByUID[ready[best].UID] {
				best = i
			}
		}
		if best < 0 {
			break
		}
		turns.recordClaimedTurn(&ready[best])
		leasedByUser[ready[best].UID]++
		claimedSeqs = append(claimedSeqs, ready[best].Seq)
		ready = slices.Delete(ready, best, best+1)
	}
	return claimedSeqs
}
