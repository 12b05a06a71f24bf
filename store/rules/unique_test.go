package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// If another job already uses a new job's unique key, the new job's conflict action decides what happens.
func TestConflictActionDecidesUniqueKeyConflict(t *testing.T) {
	pending := func(*fixture) {}
	leased := func(f *fixture) { f.wantClaim(1, "old") }
	running := func(f *fixture) { f.wantClaim(1, "old"); f.reportJobsStarted("old") }
	ended := func(f *fixture) { f.claimAndReportEnd("old", queue.Completed) }
	endedLongAgo := func(f *fixture) { f.claimAndReportEnd("old", queue.Completed); f.advanceTime(time.Minute) }
	cases := []struct {
		on    queue.ConflictAction
		other string
		given func(*fixture)
		want  string // the id in the receipt and the state of the other job, or the text of the rejection
	}{
		{queue.ConflictReturnExisting, "pending", pending, "old pending"},
		{queue.ConflictReturnExisting, "running", running, "old processing"},
		{queue.ConflictReturnExisting, "ended within unique_for", ended, "old completed"},
		{queue.ConflictReturnExisting, "ended long ago", endedLongAgo, "new completed"},
		{queue.ConflictReject, "pending", pending, "already used by job old, which is pending"},
		{queue.ConflictReject, "ended within unique_for", ended, "keeps the key until"},
		{queue.ConflictReject, "ended long ago", endedLongAgo, "new completed"},
		{queue.ConflictReplaceExisting, "pending", pending, "new cancelled"},
		{queue.ConflictReplaceExisting, "leased", leased, "already used by job old, which is pending"},
		{queue.ConflictReplaceExisting, "running", running, "already used by job old, which is processing"},
		{queue.ConflictReplaceExisting, "ended within unique_for", ended, "keeps the key until"},
		{queue.ConflictReplaceExisting, "ended long ago", endedLongAgo, "new completed"},
	}
	names := []string{queue.ConflictReturnExisting: "return", queue.ConflictReject: "reject",
		queue.ConflictReplaceExisting: "replace"}
	for _, c := range cases {
		t.Run(names[c.on]+", the other job is "+c.other, func(t *testing.T) {
			f := newFixture(t)
			f.mustEnqueue(queue.Job{ID: "old", Unique: "k", UniqueFor: time.Minute})
			c.given(f)
			ids, err := f.enqueue(queue.Job{ID: "new", Unique: "k", OnConflict: c.on})
			if err != nil {
				wantRejection(t, err, queue.CodeExists, c.want)
				return
			}
			if got := ids[0] + " " + f.statesOf("old"); got != c.want {
				t.Errorf("the receipt and the other job are %q; want %q", got, c.want)
			}
		})
	}
}

// Jobs of different users may have the same unique key.
func TestUsersMayUseSameUniqueKey(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "a", UID: userA, Unique: "k"})
	f.mustEnqueue(queue.Job{ID: "b", UID: userB, Unique: "k", OnConflict: queue.ConflictReject})
	f.wantStates("a b", "pending pending")
}

// If two jobs of one request have the same unique key, the conflict action applies too.
func TestUniqueKeyConflictWithinOneRequest(t *testing.T) {
	cases := map[queue.ConflictAction]string{
		queue.ConflictReturnExisting:  "1 1 pending gone",
		queue.ConflictReplaceExisting: "1 2 cancelled pending",
		queue.ConflictReject:          "",
	}
	for on, want := range cases {
		f := newFixture(t)
		ids, err := f.enqueue(queue.Job{ID: "1", Unique: "k"}, queue.Job{ID: "2", Unique: "k", OnConflict: on})
		if want == "" {
			wantRejection(t, err, queue.CodeExists,
				`an earlier job of this request has the same unique key, "k"; give each job its own key`)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(ids[0], " ", ids[1], " ", f.statesOf("1 2")); got != want {
			t.Errorf("conflict %d: the receipt and the states are %q; want %q", on, got, want)
		}
	}
}

// A request is rejected if the replacement of one of its jobs by an existing job or an earlier one makes its
// jobs wait for each other.
func TestSubstituteCausingCycleIsRejected(t *testing.T) {
	f := newFixture(t)
	first := queue.Job{ID: "1", Unique: "k", DependsOn: []queue.Dependency{{ParentID: "3", Condition: queue.ParentEnded}}}
	same := queue.Job{ID: "2", Unique: "k", OnConflict: queue.ConflictReturnExisting}
	last := queue.Job{ID: "3", DependsOn: []queue.Dependency{{ParentID: "2", Condition: queue.ParentEnded}}}
	_, err := f.enqueue(first, same, last)
	wantRejection(t, err, queue.CodeInvalid, "1 waits for 3 waits for 1")
}

// An ended job cannot be retried while a later unfinished job has the same unique key.
func TestRetryRequiresFreeUniqueKey(t *testing.T) {
	f := newFixture(t)
	f.mustEnqueue(queue.Job{ID: "old", Unique: "k"})
	f.claimAndReportEnd("old", queue.Dead)
	f.mustEnqueue(queue.Job{ID: "new", Unique: "k"})
	wantRejection(t, f.applyVerb(queue.VerbRetry, "old"), queue.CodeExists,
		"job new was enqueued later with the same unique key")
	f.claimAndReportEnd("new", queue.Completed)
	f.mustApplyVerb(queue.VerbRetry, "old")
	f.wantStates("old", "pending")
}
