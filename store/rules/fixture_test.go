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

// fixture is a queue in memory. Each operation is one transaction, which ends with the same steps as in an engine.
type fixture struct {
	t *testing.T
	*fakeData
	rechecks RecheckState
	rules    *Rules // the rules of the current or the last transaction
}

// newFixture returns an empty queue in which jobs gain one point of priority per second.
func newFixture(t *testing.T) *fixture { return &fixture{t: t, fakeData: newFakeData()} }

// tx returns the transaction of the current rules.
func (f *fixture) tx() Tx {
	d := f.fakeData
	return fakeTx{
		fakeClock{d}, fakeSettings{d}, fakeJobs{d}, fakeHistory{d}, fakeCounters{d}, fakeLeases{d}, fakeQueues{d},
		fakeLanes{d}, fakeUserTurns{d}, fakeGates{d}, fakeDependencies{d}, fakeSchedules{d},
		fakeSavepoints{d, f.rules, &f.rechecks},
	}
}

// runTx runs an operation in a transaction. If the operation returns an error, nothing changes.
func (f *fixture) runTx(operation func(*Rules) error) error {
	f.t.Helper()
	f.rules = &Rules{}
	f.rules.Init(f.tx(), &f.rechecks)
	before, restoreGates := f.clone(), f.rechecks.SaveDirtyGates()
	err := operation(f.rules)
	if err == nil {
		_, err = f.rules.DecideDependants()
	}
	if err == nil {
		err = f.rules.OpenLanes()
	}
	if err != nil {
		*f.fakeData = before
		restoreGates()
	}
	f.checkData()
	return err
}

// mustRunTx runs an operation that must succeed.
func (f *fixture) mustRunTx(operation func(*Rules) error) {
	f.t.Helper()
	if err := f.runTx(operation); err != nil {
		f.t.Fatal(err)
	}
}

// checkData checks that the counts reported by the rules match the jobs, and that no claim can overlook a job.
func (f *fixture) checkData() {
	f.t.Helper()
	states, kept := map[queue.State]int{}, 0
	for _, j := range f.jobs {
		states[j.State]++
		kept += boolToInt(j.OwnRetention)
		l := f.lanes[j.Lane]
		overlooked := l.ClosedBy == Empty || l.Head.After(j.Position())
		if j.Slot == Ready && f.leases[j.Seq] == nil && overlooked {
			f.t.Errorf("job %s is ready, but its lane begins after it", j.ID)
		}
	}
	for _, s := range queue.States() {
		if states[s] != f.states[s] {
			f.t.Errorf("the rules count %d %v jobs; %d are stored", f.states[s], s, states[s])
		}
	}
	if kept != f.retainedCount {
		f.t.Errorf("the rules count %d jobs with a retention of their queue; %d are stored", f.retainedCount, kept)
	}
}

// enqueue makes a request with drafts, and returns the ids that its receipt would contain.
func (f *fixture) enqueue(drafts ...queue.Job) (ids []string, err error) {
	f.t.Helper()
	err = f.runTx(func(r *Rules) error {
		ids, err = f.insert(r, drafts)
		return err
	})
	return ids, err
}

// insert carries out a request as an engine does.
func (f *fixture) insert(r *Rules, drafts []queue.Job) (ids []string, err error) {
	for i := range drafts {
		drafts[i] = withDefaults(drafts[i])
	}
	if err := r.CheckDrafts(drafts, drafts[0].UID); err != nil {
		return nil, err
	}
	substitutes, err := r.CheckUnique(drafts)
	if err != nil {
		return nil, err
	}
	seqs := make([]int64, len(drafts))
	for i := range drafts {
		if s, found := substitutes[i]; found && s.Job != nil {
			seqs[i], ids = s.Job.Seq, append(ids, s.Job.ID)
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
			if d := &draft.DependsOn[k]; d.DraftNumber != 0 {
				d.JobSeq = seqs[d.DraftNumber-1]
			}
		}
		if _, err := r.CancelReplacedJob(&draft); err != nil {
			return nil, err
		}
		if err := r.Insert(&draft, i, draft.UID, seqs[i], ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// withDefaults returns a draft with the fields that queue.Resolve would fill in.
func withDefaults(draft queue.Job) queue.Job {
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

// mustEnqueue enqueues jobs, and checks that they are accepted.
func (f *fixture) mustEnqueue(drafts ...queue.Job) {
	f.t.Helper()
	if _, err := f.enqueue(drafts...); err != nil {
		f.t.Fatal(err)
	}
}

// job returns a copy of the job with an id.
func (f *fixture) job(id string) *Job {
	f.t.Helper()
	for _, j := range f.jobs {
		if j.ID == id {
			return &j
		}
	}
	f.t.Fatalf("there is no job %q", id)
	return nil
}

// claim claims up to n jobs and returns their ids, separated by spaces.
func (f *fixture) claim(n int) string {
	f.t.Helper()
	var ids []string
	f.mustRunTx(func(r *Rules) error {
		jobs, _, err := r.Claim(n)
		for i := range jobs {
			ids = append(ids, jobs[i].ID)
		}
		return err
	})
	return strings.Join(ids, " ")
}

// wantClaim claims up to n jobs and checks which ones it gets.
func (f *fixture) wantClaim(n int, want string) {
	f.t.Helper()
	if got := f.claim(n); got != want {
		f.t.Fatalf("a claim of up to %d jobs got %q; want %q", n, got, want)
	}
}

// exchange passes a report of the worker pool to the rules.
func (f *fixture) exchange(report store.Report) (g store.Grant) {
	f.t.Helper()
	f.mustRunTx(func(r *Rules) (err error) {
		g, err = r.Exchange(&report)
		return err
	})
	return g
}

// lease returns the current lease of a job.
func (f *fixture) lease(id string) queue.Lease {
	f.t.Helper()
	l := f.leases[f.job(id).Seq]
	if l == nil {
		f.t.Fatalf("job %q is not leased", id)
	}
	return queue.Lease{Seq: l.Job.Seq, Fence: l.Job.Fence}
}

// startJobs reports that leased jobs have started.
func (f *fixture) startJobs(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.exchange(store.Report{Starts: []store.AttemptStart{{Lease: f.lease(id), StartedAt: f.currentTime, Worker: "w",
			PID: 7}}})
	}
}

// newSettlement returns the settlement of an attempt that began and ended at the current time. state is the
// job's new state.
func (f *fixture) newSettlement(lease queue.Lease, state queue.State) store.Settlement {
	e := store.Settlement{Lease: lease}
	e.Attempt = queue.Attempt{Fence: lease.Fence, StartedAt: f.currentTime, EndedAt: f.currentTime}
	e.Decision = queue.Decision{State: state, RecordsAttempt: true, UsesAttempt: true}
	return e
}

// completeJobs reports that the attempts of leased jobs have ended, and their jobs are completed.
func (f *fixture) completeJobs(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.endWithState(id, queue.Completed)
	}
}

// endWithState reports the end of an attempt, after which the job has the given state.
func (f *fixture) endWithState(id string, state queue.State) {
	f.t.Helper()
	f.exchange(store.Report{Settlements: []store.Settlement{f.newSettlement(f.lease(id), state)}})
}

// holdLock makes a job of another user hold a shared lock. The id of this job is the name of the lock.
func (f *fixture) holdLock(lock string) {
	f.t.Helper()
	f.mustEnqueue(queue.Job{ID: lock, UID: userC, Queue: "holders", Demands: parseDemands("lock:" + lock),
		Priority: 1_000_000})
	f.wantClaim(1, lock)
}

// claimAndEnd claims a job, which must be the next one, and ends its attempt.
func (f *fixture) claimAndEnd(id string, state queue.State) {
	f.t.Helper()
	f.wantClaim(1, id)
	f.endWithState(id, state)
}

// releaseLeases gives back the leases of jobs that have not started.
func (f *fixture) releaseLeases(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		f.exchange(store.Report{Releases: []queue.Lease{f.lease(id)}})
	}
}

// change applies a verb to a job.
func (f *fixture) change(verb queue.Verb, id string) error {
	f.t.Helper()
	seq := f.job(id).Seq
	return f.runTx(func(r *Rules) error { return r.Change(seq, store.Change{Verb: verb, UID: userA}) })
}

// mustChange applies a verb to jobs, and checks that no change is rejected.
func (f *fixture) mustChange(verb queue.Verb, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		if err := f.change(verb, id); err != nil {
			f.t.Fatal(err)
		}
	}
}

// advanceTime lets time pass, then carries out what is due, like an engine's Promote.
func (f *fixture) advanceTime(d time.Duration) {
	f.t.Helper()
	f.currentTime = f.currentTime.Add(d)
	f.mustRunTx(func(r *Rules) error {
		due := f.sortedJobs(func(j *Job) bool { return j.Slot == Timed && j.DueAt <= f.currentTime })
		for i := range due {
			if err := r.MarkDue(&due[i]); err != nil {
				return err
			}
		}
		expired := f.sortedJobs(func(j *Job) bool { return r.hasExpired(j) && j.State.Waiting() && f.leases[j.Seq] == nil })
		for i := range expired {
			if err := r.Expire(&expired[i]); err != nil {
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

// statesOf returns the states of jobs, separated by spaces. A removed job has the state "gone".
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

// wantStates checks the states of jobs.
func (f *fixture) wantStates(ids, want string) {
	f.t.Helper()
	if got := f.statesOf(ids); got != want {
		f.t.Fatalf("the jobs %s are %s; want %s", ids, got, want)
	}
}

// describeLane describes the lane of a job: "open", "empty", or "closed by" its gate.
func (f *fixture) describeLane(id string) string {
	f.t.Helper()
	switch l := f.lanes[f.job(id).Lane]; {
	case l.ClosedBy == Open:
		return "open"
	case l.ClosedBy == Empty:
		return "empty"
	case l.ClosedBy == UserGate(l.UID):
		return "closed by quota"
	default:
		return "closed by " + f.gates[l.ClosedBy].Key
	}
}

// wantLane checks the lane of a job.
func (f *fixture) wantLane(id, want string) {
	f.t.Helper()
	if got := f.describeLane(id); got != want {
		f.t.Fatalf("the lane of job %s is %s; want %s", id, got, want)
	}
}

// eventsOf lists the kinds of the events about a job.
func (f *fixture) eventsOf(id string) string {
	seq := f.job(id).Seq
	var list []string
	for _, e := range f.events {
		if e.seq == seq {
			list = append(list, string(e.kind))
		}
	}
	return strings.Join(list, " ")
}

// wantRejection checks that an error is the rejection of an operation, with this code and text.
func wantRejection(t *testing.T, err error, code queue.Code, text string) {
	t.Helper()
	var rejection *queue.Error
	if !errors.As(err, &rejection) || rejection.Code != code || !strings.Contains(err.Error(), text) {
		t.Fatalf("got the error %v; want %s with the text %q", err, code, text)
	}
}

// parseDemands returns the demands that a text describes: words of the form KIND:KEY or KIND:KEY:N, in the order
// in which claims check gates.
func parseDemands(demandText string) (demandList []queue.Demand) {
	kinds := map[string]queue.GateKind{
		"node": queue.GateNode, "lock": queue.GateLock, "rate": queue.GateRate, "resource": queue.GateResource,
	}
	for word := range strings.FieldsSeq(demandText) {
		kind, rest, _ := strings.Cut(word, ":")
		d := queue.Demand{Kind: kinds[kind], Amount: 1}
		key, n, counted := strings.Cut(rest, ":")
		if d.Key = key; counted {
			fmt.Sscan(n, &d.Amount)
		}
		if d.Kind == queue.GateRate {
			d.Period = time.Minute
		}
		demandList = append(demandList, d)
	}
	return demandList
}

// draftWithDemands returns a draft with an id and demands.
func draftWithDemands(id, demandText string) queue.Job {
	return queue.Job{ID: id, Demands: parseDemands(demandText)}
}
