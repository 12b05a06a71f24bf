package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// The users of the tests. userA owns all jobs that name no user.
const (
	userA = 1001
	userB = 1002
	userC = 1003
)

// fixture is a queue in memory. Each operation is a transaction, which ends with the same steps as a
// transaction of package store/engine.
type fixture struct {
	t *testing.T
	*fakeData
	rechecks GateRecheckState
	rules    *Rules // the rules of the current or the last transaction
}

// newFixture returns an empty queue in which jobs gain one point of priority per second.
func newFixture(t *testing.T) *fixture { return &fixture{t: t, fakeData: newFakeData()} }

// newTx returns a new transaction on the data of the fixture.
func (f *fixture) newTx() Tx {
	d := f.fakeData
	return fakeTx{
		fakeClock{d}, fakeSettings{d}, fakeJobs{d}, fakeHistory{d}, fakeCounters{d}, fakeLeases{d}, fakeQueues{d},
		fakeLanes{d}, fakeUserTurns{d}, fakeGates{d}, fakeDependencies{d}, fakeSchedules{d},
		fakeSavepoints{d, f.rules, &f.rechecks},
	}
}

// runTx runs an operation in a transaction. If the operation returns an error, the transaction changes
// nothing.
func (f *fixture) runTx(operation func(*Rules) error) error {
	f.t.Helper()
	f.rules = &Rules{}
	f.rules.Init(f.newTx(), &f.rechecks)
	before, restoreGates := f.clone(), f.rechecks.SaveDirtyGates()
	err := operation(f.rules)
	if err == nil {
		_, err = f.rules.ResolveChangedDependencies()
	}
	if err == nil {
		err = f.rules.OpenLanes()
	}
	if err != nil {
		*f.fakeData = before
		restoreGates()
	}
	f.checkCountsAndLanes()
	return err
}

func (f *fixture) mustRunTx(operation func(*Rules) error) {
	f.t.Helper()
	if err := f.runTx(operation); err != nil {
		f.t.Fatal(err)
	}
}

// checkCountsAndLanes checks that the counts that the rules have reported match the jobs, and that claims can find each
// ready job.
func (f *fixture) checkCountsAndLanes() {
	f.t.Helper()
	states, kept := map[queue.State]int{}, 0
	for _, j := range f.jobs {
		states[j.State]++
		kept += boolToInt(j.UsesQueueRetention)
		l := f.lanes[j.LaneID]
		overlooked := l.ClosedBy == Empty || l.Head.After(j.Position())
		if j.Slot == SlotReady && f.leases[j.Seq] == nil && overlooked {
			f.t.Errorf("job %s is ready, but its lane begins after it", j.ID)
		}
	}
	for _, s := range queue.States() {
		if states[s] != f.stateCounts[s] {
			f.t.Errorf("the rules count %d %v jobs; %d are stored", f.stateCounts[s], s, states[s])
		}
	}
	if kept != f.retainedJobCount {
		f.t.Errorf("the rules count %d jobs with a retention of their queue; %d are stored", f.retainedJobCount, kept)
	}
}

// enqueue enqueues drafts with one request, and returns the ids of the jobs.
func (f *fixture) enqueue(drafts ...queue.Job) (ids []string, err error) {
	f.t.Helper()
	err = f.runTx(func(r *Rules) error {
		ids, err = f.insertDrafts(r, drafts)
		return err
	})
	return ids, err
}

// insertDrafts carries out an enqueue request in the same steps as package store/engine.
func (f *fixture) insertDrafts(r *Rules, drafts []queue.Job) (ids []string, err error) {
	for i := range drafts {
		drafts[i] = draftWithDefaults(drafts[i])
	}
	if err := r.CheckDraftDependencies(drafts, drafts[0].UID); err != nil {
		return nil, err
	}
	substitutes, err := r.CheckUniqueKeys(drafts)
	if err != nil {
		return nil, err
	}
	seqs := make([]int64, len(drafts))
	for i := range drafts {
		if s, found := substitutes[i]; found && s.ExistingJob != nil {
			seqs[i], ids = s.ExistingJob.Seq, append(ids, s.ExistingJob.ID)
			continue
		} else if found {
			seqs[i], ids = seqs[s.DraftIndex], append(ids, ids[s.DraftIndex])
			continue
		}
		_, seq, id, _ := fakeJobs{f.fakeData}.RegisterDraft(&drafts[i])
		seqs[i], ids = seq, append(ids, id)
	}
	for i := range drafts {
		if _, found := substitutes[i]; found {
			continue
		}
		draft := drafts[i]
		draft.DependsOn = slices.Clone(draft.DependsOn)
		for k := range draft.DependsOn {
			if d := &draft.DependsOn[k]; d.ParentDraftNumber != 0 {
				d.ParentSeq = seqs[d.ParentDraftNumber-1]
			}
		}
		if _, err := r.CancelReplacedJob(&draft); err != nil {
			return nil, err
		}
		if err := r.InsertJob(&draft, i, draft.UID, seqs[i], ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// draftWithDefaults returns a draft with the values that queue.ResolveSpec sets for missing fields.
func draftWithDefaults(draft queue.Job) queue.Job {
	if draft.Queue == "" {
		draft.Queue = "default"
	}
	if draft.UID == 0 {
		draft.UID = userA
	}
	if draft.MaxAttempts == 0 {
		draft.MaxAttempts = 3
	}
	draft.ExitCode = -1
	return draft
}

// mustEnqueue enqueues jobs. The test fails if a job is rejected.
func (f *fixture) mustEnqueue(drafts ...queue.Job) {
	f.t.Helper()
	if _, err := f.enqueue(drafts...); err != nil {
		f.t.Fatal(err)
	}
}

// jobByID returns a copy of the job with an id.
func (f *fixture) jobByID(id string) *Job {
	f.t.Helper()
	for _, j := range f.jobs {
		if j.ID == id {
			return &j
		}
	}
	f.t.Fatalf("there is no job %q", id)
	return nil
}

// claimJobIDs claims up to maxJobs jobs and returns their ids, separated by spaces.
func (f *fixture) claimJobIDs(maxJobs int) string {
	f.t.Helper()
	var ids []string
	f.mustRunTx(func(r *Rules) error {
		jobs, _, err := r.Claim(maxJobs)
		for i := range jobs {
			ids = append(ids, jobs[i].ID)
		}
		return err
	})
	return strings.Join(ids, " ")
}

// wantClaim claims up to maxJobs jobs and checks that these are the jobs with the ids in wantIDs, in this order.
func (f *fixture) wantClaim(maxJobs int, wantIDs string) {
	f.t.Helper()
	if got := f.claimJobIDs(maxJobs); got != wantIDs {
		f.t.Fatalf("a claim of up to %d jobs got %q; want %q", maxJobs, got, wantIDs)
	}
}

// reportAndClaim passes a report of the worker pool to the rules.
func (f *fixture) reportAndClaim(report store.LeaseReport) (result store.ReportAndClaimResult) {
	f.t.Helper()
	f.mustRunTx(func(r *Rules) (err error) {
		result, err = r.ReportAndClaim(&report)
		return err
	})
	return result
}

// leaseOf returns the current lease of a job.
func (f *fixture) leaseOf(id string) queue.Lease {
	f.t.Helper()
	l := f.leases[f.jobByID(id).Seq]
	if l == nil {
		f.t.Fatalf("job %q is not leased", id)
	}
	return queue.Lease{Seq: l.Job.Seq, Fence: l.Job.Fence}
}

func (f *fixture) reportJobsStarted(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.reportAndClaim(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: f.leaseOf(id),
			StartedAt: f.currentTime, WorkerID: "w",
			PID: 7}}})
	}
}

// newSettlement returns the settlement of an attempt that started and ended at the current time. state is the
// state that the job gets.
func (f *fixture) newSettlement(lease queue.Lease, state queue.State) store.Settlement {
	e := store.Settlement{Lease: lease}
	e.Attempt = queue.Attempt{Fence: lease.Fence, StartedAt: f.currentTime, EndedAt: f.currentTime}
	e.Decision = queue.AttemptDecision{NextState: state, RecordsAttempt: true, CountsTowardMaxAttempts: true}
	return e
}

func (f *fixture) reportJobsCompleted(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.reportAttemptEnd(id, queue.Completed)
	}
}

// reportAttemptEnd reports the end of a job's attempt. The job then has the given state.
func (f *fixture) reportAttemptEnd(id string, state queue.State) {
	f.t.Helper()
	f.reportAndClaim(store.LeaseReport{Settlements: []store.Settlement{f.newSettlement(f.leaseOf(id), state)}})
}

// occupySharedLock makes a job of userC hold a shared lock. The job has the name of the lock as its id.
func (f *fixture) occupySharedLock(lockName string) {
	f.t.Helper()
	f.mustEnqueue(queue.Job{ID: lockName, UID: userC, Queue: "holders", Demands: parseDemands("lock:" + lockName),
		Priority: 1_000_000})
	f.wantClaim(1, lockName)
}

// claimAndReportEnd claims one job, checks that it is the job with this id, and ends its attempt.
func (f *fixture) claimAndReportEnd(id string, state queue.State) {
	f.t.Helper()
	f.wantClaim(1, id)
	f.reportAttemptEnd(id, state)
}

// releaseLeases returns leased jobs that have not started to the queue.
func (f *fixture) releaseLeases(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.reportAndClaim(store.LeaseReport{ReleasedLeases: []queue.Lease{f.leaseOf(id)}})
	}
}

func (f *fixture) applyVerb(verb queue.Verb, id string) error {
	f.t.Helper()
	seq := f.jobByID(id).Seq
	return f.runTx(func(r *Rules) error { return r.ChangeJob(seq, store.JobChange{Verb: verb, UID: userA}) })
}

// mustApplyVerb applies a verb to jobs. The test fails if a change is rejected.
func (f *fixture) mustApplyVerb(verb queue.Verb, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		if err := f.applyVerb(verb, id); err != nil {
			f.t.Fatal(err)
		}
	}
}

// advanceTime lets time pass, and then carries out what is due, like the engine's method ApplyDueChanges.
func (f *fixture) advanceTime(d time.Duration) {
	f.t.Helper()
	f.currentTime = f.currentTime.Add(d)
	f.mustRunTx(func(r *Rules) error {
		due := f.sortedJobs(func(j *Job) bool { return j.Slot == SlotWaitingUntilDue && j.DueAt <= f.currentTime })
		for i := range due {
			if err := r.AddDueJobToLane(&due[i]); err != nil {
				return err
			}
		}
		expired := f.sortedJobs(func(j *Job) bool {
			return r.jobHasExpired(j) && j.State.IsWaiting() &&
				f.leases[j.Seq] == nil
		})
		for i := range expired {
			if err := r.CancelExpiredJob(&expired[i]); err != nil {
				return err
			}
		}
		for id, g := range f.gates {
			if g.recheckAt != 0 && g.recheckAt <= f.currentTime {
				r.MarkGateDirty(id)
			}
		}
		return nil
	})
}

// statesOf returns the states of the jobs whose ids are in a text, separated by spaces. A removed job has the
// state "gone".
func (f *fixture) statesOf(ids string) string {
	var list []string
	for id := range strings.FieldsSeq(ids) {
		state := "gone"
		for _, j := range f.jobs {
			if j.ID == id {
				state = j.State.String()
			}
		}
		list = append(list, state)
	}
	return strings.Join(list, " ")
}

// wantStates checks that the jobs have the states in want.
func (f *fixture) wantStates(ids, want string) {
	f.t.Helper()
	if got := f.statesOf(ids); got != want {
		f.t.Fatalf("the jobs %s are %s; want %s", ids, got, want)
	}
}

// laneStateOf returns the state of a job's lane: "open", "empty", or "closed by" and the gate.
func (f *fixture) laneStateOf(id string) string {
	f.t.Helper()
	switch l := f.lanes[f.jobByID(id).LaneID]; {
	case l.ClosedBy == Open:
		return "open"
	case l.ClosedBy == Empty:
		return "empty"
	case l.ClosedBy == UserQuotaGateID(l.UID):
		return "closed by quota"
	default:
		return "closed by " + f.gates[l.ClosedBy].GateKey
	}
}

// wantLaneState checks the state of a job's lane; see laneStateOf.
func (f *fixture) wantLaneState(id, want string) {
	f.t.Helper()
	if got := f.laneStateOf(id); got != want {
		f.t.Fatalf("the lane of job %s is %s; want %s", id, got, want)
	}
}

// eventKindsOf returns the kinds of the events about a job, oldest first, separated by spaces.
func (f *fixture) eventKindsOf(id string) string {
	seq := f.jobByID(id).Seq
	var list []string
	for _, e := range f.events {
		if e.seq == seq {
			list = append(list, string(e.kind))
		}
	}
	return strings.Join(list, " ")
}

// wantRejection checks that err is a *queue.Error with this code and text.
func wantRejection(t *testing.T, err error, code queue.ErrorCode, wantText string) {
	t.Helper()
	var rejection *queue.Error
	if !errors.As(err, &rejection) || rejection.Code != code || !strings.Contains(err.Error(), wantText) {
		t.Fatalf("got the error %v; want %s with the text %q", err, code, wantText)
	}
}

// parseDemands parses a list of demands: words of the form KIND:KEY or KIND:KEY:N. It returns the demands in
// the order in which claims check them.
func parseDemands(demandText string) (demandList []queue.Demand) {
	kinds := map[string]queue.GateKind{
		"node": queue.GateNode, "lock": queue.GateLock, "rate": queue.GateRate, "resource": queue.GateResource,
	}
	for word := range strings.FieldsSeq(demandText) {
		kind, rest, _ := strings.Cut(word, ":")
		d := queue.Demand{Kind: kinds[kind], Amount: 1}
		key, n, counted := strings.Cut(rest, ":")
		if d.GateKey = key; counted {
			fmt.Sscan(n, &d.Amount)
		}
		if d.Kind == queue.GateRate {
			d.RatePeriod = time.Minute
		}
		demandList = append(demandList, d)
	}
	return demandList
}

// draftWithDemands returns a draft with an id and demands.
func draftWithDemands(id, demandText string) queue.Job {
	return queue.Job{ID: id, Demands: parseDemands(demandText)}
}
