package rules

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// newHookFixture returns a queue whose settings create hooks for the given events. The id of a hook is
// EVENT-of-ID, where ID is the id of the job.
func newHookFixture(t *testing.T, events queue.HookEvents) *fixture {
	f := newFixture(t)
	f.hooks.TriggerEvents = events
	f.hooks.MakeHookDrafts = func(j *queue.Job, moments queue.HookEvents) (hooks []queue.Job) {
		for _, moment := range queue.AllHookEvents {
			if moments&moment != 0 {
				hook := draftWithDefaults(queue.Job{ID: moment.String() + "-of-" + j.ID, UID: j.UID, Queue: queue.HookQueue})
				hook.Command = "true"
				hooks = append(hooks, hook)
			}
		}
		return hooks
	}
	return f
}

// listHookIDs returns the ids of all hooks, separated by spaces.
func (f *fixture) listHookIDs() string {
	var ids []string
	for _, j := range f.sortedJobs(func(j *Job) bool { return j.HookEvents&queue.HookJobFlag != 0 }) {
		ids = append(ids, j.ID)
	}
	return strings.Join(ids, " ")
}

const allHookEvents = queue.HookCompleted | queue.HookFailed | queue.HookDead | queue.HookEnded

// The transaction that stores the new state of a job also stores the hooks for that state.
func TestStateChangeStoresItsHooks(t *testing.T) {
	cases := map[string]struct {
		do   func(*fixture)
		want string
	}{
		"completed": {func(f *fixture) { f.claimAndReportEnd("1", queue.Completed) }, "completed-of-1 ended-of-1"},
		"dead":      {func(f *fixture) { f.claimAndReportEnd("1", queue.Dead) }, "dead-of-1 ended-of-1"},
		"failed":    {func(f *fixture) { f.claimAndReportEnd("1", queue.Failed) }, "failed-of-1"},
		"cancelled": {func(f *fixture) { f.mustApplyVerb(queue.VerbCancel, "1") }, "ended-of-1"},
		"held":      {func(f *fixture) { f.mustApplyVerb(queue.VerbHold, "1") }, ""},
		"removed":   {func(f *fixture) { f.mustApplyVerb(queue.VerbRemove, "1") }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newHookFixture(t, allHookEvents)
			f.mustEnqueue(queue.Job{ID: "1"})
			c.do(f)
			if got := f.listHookIDs(); got != c.want {
				t.Errorf("the hooks are %q; want %q", got, c.want)
			}
		})
	}
}

// A job can request hooks for itself, without a setting.
func TestJobCanRequestItsOwnHooks(t *testing.T) {
	f := newHookFixture(t, 0)
	f.mustEnqueue(queue.Job{ID: "1", HookEvents: queue.HookDead}, queue.Job{ID: "2"})
	f.claimAndReportEnd("1", queue.Dead)
	f.claimAndReportEnd("2", queue.Dead)
	if got, want := f.listHookIDs(), "dead-of-1"; got != want {
		t.Errorf("the hooks are %q; want %q", got, want)
	}
}

// A hook has no hooks, even if the settings create hooks for its state.
func TestHookJobsCauseNoHooks(t *testing.T) {
	f := newHookFixture(t, queue.HookCompleted)
	f.mustEnqueue(queue.Job{ID: "1"})
	f.claimAndReportEnd("1", queue.Completed)
	f.claimAndReportEnd("completed-of-1", queue.Completed)
	if got, want := f.listHookIDs(), "completed-of-1"; got != want {
		t.Errorf("the hooks are %q; want %q", got, want)
	}
}

// If a hook cannot be created, the new state of its job is still stored, and an event reports the missing
// hook.
func TestDroppedHookIsRecordedAsEvent(t *testing.T) {
	cases := map[string]func(*fixture){
		"the user's bytes are used up": func(f *fixture) {
			f.hooks.MaxBytesPerUser = f.bytesByUID[userA].storedAndOutputBytes + 100
		},
		"the account was given to another":   func(f *fixture) { f.formerOwnerUIDs[userA] = -1001 },
		"the job's settings cannot be read":  func(f *fixture) { f.damageJob("1") },
		"the user has too many hooks queued": func(f *fixture) { f.insertHeldHooks(queue.MaxWaitingHookJobs) },
	}
	for name, given := range cases {
		t.Run(name, func(t *testing.T) {
			f := newHookFixture(t, queue.HookCompleted)
			f.mustEnqueue(queue.Job{ID: "1"})
			f.wantClaim(1, "1")
			given(f)
			hooks := f.listHookIDs()
			f.reportJobsCompleted("1")
			if got := f.listHookIDs(); got != hooks {
				t.Errorf("the hooks %q were created", strings.TrimPrefix(got, hooks))
			}
			f.wantStates("1", "completed")
			if got := f.eventKindsOf("1"); !strings.Contains(got, string(queue.EventHookDropped)) {
				t.Errorf("the events are %q; want %s among them", got, queue.EventHookDropped)
			}
		})
	}
}

// damageJob makes a job unreadable, as if its row were damaged.
func (f *fixture) damageJob(id string) {
	j := f.jobByID(id)
	j.IsDamaged = true
	f.jobs[j.Seq] = *j
}

// insertHeldHooks stores held hooks of userA directly, because enqueueing thousands of them takes long.
func (f *fixture) insertHeldHooks(n int) {
	for range n {
		seq := f.nextSeq
		f.nextSeq++
		j := queue.Job{Seq: seq, ID: "hook", UID: userA, HookUID: userA, HookEvents: queue.HookJobFlag, State: queue.Held}
		f.jobs[seq] = Job{Job: j}
		f.stateCounts[queue.Held]++
	}
}
