package handlers

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// A status shows how many bytes the caller's jobs use, and the quota. For admins it also lists the users
// that use 90 % of their quota or more.
func TestStatusShowsUserQuotaUsage(t *testing.T) {
	s := newSQLiteTestAPI(t)
	draft := draftWithID("large")
	draft.Stdin = strings.Repeat("x", 10_000)
	s.enqueueJobs(t, draft)
	used := s.Store.StoredBytesOfUser(ownerUID)
	limit := func(n int64) { s.setUserQuota(t, n) }
	status := func(uid int, right control.Right) control.Status {
		t.Helper()
		st, err := s.Status(contextAsPeer(t, uid, right), control.NoParams{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	limit(100_000)
	if st := status(ownerUID, control.RightSubmit); st.CallerStoredBytes != used || used < 10_000 ||
		st.MaxBytesPerUser != 100_000 {
		t.Errorf("the owner sees %d of %d bytes, want %d of 100000", st.CallerStoredBytes, st.MaxBytesPerUser, used)
	}
	if st := status(ownerUID+1, control.RightAdmin); st.CallerStoredBytes != 0 || st.UsersNearQuota != nil {
		t.Errorf("another user sees %d bytes, and %v near the quota; want none", st.CallerStoredBytes, st.UsersNearQuota)
	}
	near := []control.UserBytes{{UID: ownerUID, User: s.Owners.UserName(ownerUID), StoredBytes: used}}
	for _, c := range []struct {
		most int64
		want []control.UserBytes
	}{{used * 10 / 9, near}, {used*10/9 + 10, nil}, {0, nil}} {
		limit(c.most)
		if st := status(ownerUID+1, control.RightAdmin); !reflect.DeepEqual(st.UsersNearQuota, c.want) {
			t.Errorf("%d of %d bytes: an admin sees %v near the quota, want %v", used, c.most, st.UsersNearQuota, c.want)
		}
		if st := status(ownerUID, control.RightOperate); st.UsersNearQuota != nil {
			t.Errorf("%d of %d bytes: an operator sees %v near the quota, want nothing", used, c.most, st.UsersNearQuota)
		}
	}
	limit(-1)
	if st := status(ownerUID, control.RightSubmit); st.MaxBytesPerUser <= 0 ||
		st.MaxBytesPerUser > settings.MaxAutoQuotaBytes {
		t.Errorf("with auto the limit is %d bytes", st.MaxBytesPerUser)
	}
}

// If many users are near their quota, a status lists only the users whose jobs use the most bytes.
func TestStatusListsFewUsersNearQuota(t *testing.T) {
	s := newSQLiteTestAPI(t)
	for uid := range maxListedUsersNearQuota + 1 {
		draft := draftWithID("")
		draft.UID, draft.Stdin = ownerUID+uid, strings.Repeat("x", 1000+uid)
		if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: ownerUID + uid,
			Drafts: []queue.Job{draft}}); err != nil {
			t.Fatal(err)
		}
	}
	s.setUserQuota(t, 1)
	st, err := s.Status(contextAsPeer(t, 0, control.RightAdmin), control.NoParams{})
	if err != nil || len(st.UsersNearQuota) != maxListedUsersNearQuota || st.UsersNearQuota[0].UID != ownerUID+
		maxListedUsersNearQuota {
		t.Errorf("%d users are near the quota, %v; want %d, and first the one that uses most", len(st.UsersNearQuota), err,
			maxListedUsersNearQuota)
	}
}

// fillQuota enqueues 8 large jobs of the user ownerUID, and sets the quota so that no other job fits.
func fillQuota(t *testing.T, s *testAPI, stdin string) {
	t.Helper()
	drafts := draftsWithPrefix("old", 8)
	for i := range drafts {
		drafts[i].Stdin = stdin
	}
	s.enqueueJobs(t, drafts...)
	s.setUserQuota(t, s.Store.StoredBytesOfUser(ownerUID)+100)
}

// If a new schedule exceeds the user's quota, the service removes inputs of the user's ended jobs, as for a new job. If
// this does not free enough space, the schedule is rejected.
func TestScheduleAddFreesQuotaSpace(t *testing.T) {
	s := newSQLiteTestAPI(t)
	large := strings.Repeat("x", 10_000)
	fillQuota(t, s, large)
	ownerCtx := contextAsPeer(t, ownerUID, control.RightSubmit)
	add := control.ScheduleAddParams{Name: "nightly", Cron: "0 2 * * *",
		JobSpec: queue.Spec{Command: new("cat"), Stdin: new(large)}}
	_, err := s.AddSchedule(ownerCtx, add)
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != queue.CodeQueueFull || e.Field != store.QuotaErrorField {
		t.Fatalf("while all jobs wait: %v, want %s refused as full", err, store.QuotaErrorField)
	}
	before := s.Store.StoredBytesOfUser(ownerUID)
	all := control.JobIDs{"old0", "old1", "old2", "old3", "old4", "old5", "old6", "old7"}
	if got, err := s.CancelJobs(ownerCtx, control.JobSelection{IDs: all}); err != nil || len(got.Refusals) > 0 {
		t.Fatal(got, err)
	}
	if _, err := s.AddSchedule(ownerCtx, add); err != nil {
		t.Fatalf("after all jobs were cancelled: %v", err)
	}
	if now := s.Store.StoredBytesOfUser(ownerUID); now > s.UserQuota.MaxBytesPerUser() || now < before-30_000 {
		t.Errorf("%d bytes are used, before: %d, allowed: %d", now, before, s.UserQuota.MaxBytesPerUser())
	}
}

// If a batch exceeds the quota, each request of the batch frees the space that it needs. The bytes of the earlier
// requests of the batch count as used.
func TestEachBatchRequestFreesQuotaSpace(t *testing.T) {
	s := newSQLiteTestAPI(t)
	large := strings.Repeat("x", 10_000)
	fillQuota(t, s, large)
	ownerCtx := contextAsPeer(t, ownerUID, control.RightSubmit)
	all := control.JobIDs{"old0", "old1", "old2", "old3", "old4", "old5", "old6", "old7"}
	if got, err := s.CancelJobs(ownerCtx, control.JobSelection{IDs: all}); err != nil || len(got.Refusals) > 0 {
		t.Fatal(got, err)
	}
	frame := []queue.Spec{{Command: new("cat"), Stdin: new(large)}}
	for n := range 6 {
		last := n == 5
		if _, err := s.EnqueueBatch(ownerCtx,
			control.EnqueueBatchParams{BatchName: "b", Jobs: frame, Commit: last}); err != nil {
			t.Fatalf("frame %d: %v", n, err)
		}
		if used := s.Store.StoredBytesOfUser(ownerUID); used > s.UserQuota.MaxBytesPerUser() {
			t.Errorf("after frame %d %d bytes are used, %d allowed", n, used, s.UserQuota.MaxBytesPerUser())
		}
	}
}

// If a request exceeds the user's quota, the service removes inputs of that user's ended jobs, in the order in which
// the jobs ended, until the request fits. Jobs that can still run keep their input. If the inputs of these jobs use the
// whole quota, the request is rejected.
func TestEnqueueFreesQuotaSpace(t *testing.T) {
	s := newSQLiteTestAPI(t)
	large := strings.Repeat("x", 10_000)
	spec := func(id string) control.EnqueueParams {
		return control.EnqueueParams{JobSpec: queue.Spec{ID: new(id), Command: new("cat"), Stdin: new(large)}}
	}
	fillQuota(t, s, large)
	ownerCtx := contextAsPeer(t, ownerUID, control.RightSubmit)
	_, err := s.Enqueue(ownerCtx, spec("refused"))
	var e *queue.Error
	if !errors.As(err, &e) || e.Code != queue.CodeQueueFull || e.Field != store.QuotaErrorField {
		t.Fatalf("while all jobs wait: %v, want %s refused as full", err, store.QuotaErrorField)
	}
	if got, err := s.CancelJobs(ownerCtx, control.JobSelection{ID: "old0"}); err != nil || len(got.Refusals) > 0 {
		t.Fatal(got, err)
	}
	time.Sleep(2 * time.Millisecond) // make sure that old0 ends first
	if got, err := s.CancelJobs(ownerCtx, control.JobSelection{IDs: control.JobIDs{"old1", "old2", "old3", "old4", "old5",
		"old6", "old7"}}); err != nil || len(got.Refusals) > 0 {
		t.Fatal(got, err)
	}
	if _, err := s.Enqueue(ownerCtx, spec("new")); err != nil {
		t.Fatalf("after all jobs were cancelled: %v", err)
	}
	removed := map[string][]string{}
	page, err := s.ListJobs(ownerCtx, control.JobListParams{})
	for _, j := range page.Jobs {
		if len(j.RemovedInputParts) > 0 {
			removed[j.ID] = j.RemovedInputParts
		}
	}
	if err != nil || len(removed) != 2 || !slices.Equal(removed["old0"], []string{"stdin"}) || removed["new"] != nil {
		t.Errorf("removed for one job: %q, %v; want the inputs of old0 and of one more", removed, err)
	}
	got, err := s.RetryJobs(ownerCtx, control.JobRetryParams{JobSelection: control.JobSelection{ID: "old0"}})
	if err != nil || len(got.Refusals) != 1 || got.Refusals[0].Field != "stdin" ||
		!strings.HasPrefix(got.Refusals[0].Message, "job old0 cannot run again") {
		t.Errorf("retry of a job without its input: %+v, %v", got, err)
	}
	why, err := s.ExplainWaiting(ownerCtx, control.ExplainWaitingParams{ID: "old0"})
	if err != nil || len(why.Reasons) != 1 || why.Reasons[0].Kind != "input" ||
		!strings.Contains(why.Reasons[0].Text, store.QuotaErrorField) {
		t.Errorf("why of a job without its input: %+v, %v", why, err)
	}
}

// cancelAllJobs cancels the jobs of fillQuota.
func cancelAllJobs(t *testing.T, s *testAPI) {
	t.Helper()
	all := control.JobIDs{"old0", "old1", "old2", "old3", "old4", "old5", "old6", "old7"}
	if got, err := s.CancelJobs(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.JobSelection{IDs: all}); err != nil ||
		len(got.Refusals) > 0 {
		t.Fatal(got, err)
	}
}

// If a request would exceed the quota even after all inputs and outputs of ended jobs were removed, none of them are
// removed.
func TestOversizedRequestKeepsInputsAndOutputs(t *testing.T) {
	s := newSQLiteTestAPI(t)
	large := strings.Repeat("x", 10_000)
	fillQuota(t, s, large)
	ownerCtx := contextAsPeer(t, ownerUID, control.RightSubmit)
	cancelAllJobs(t, s)
	before := s.Store.StoredBytesOfUser(ownerUID)
	refused := func(size int) {
		t.Helper()
		spec := queue.Spec{Command: new("cat"), Stdin: new(strings.Repeat("x", size))}
		if _, err := s.Enqueue(ownerCtx, control.EnqueueParams{JobSpec: spec}); !errors.Is(err, queue.ErrQueueFull) {
			t.Errorf("a job of %d bytes: %v, want it refused as full", size, err)
		}
		if now := s.Store.StoredBytesOfUser(ownerUID); now != before {
			t.Errorf("a job of %d bytes was refused, and %d of %d bytes are left", size, now, before)
		}
	}
	refused(2 * int(s.UserQuota.MaxBytesPerUser())) // this request alone is larger than the whole quota
	// this request fits into the quota, but not even the removal of all ended jobs' data frees enough space for it
	refused(int(before) - 1000)
}

// If an operator edits another user's job, no data of that user's jobs is removed to make room. If the edit exceeds
// that user's quota, the edit fails.
func TestOperatorEditRemovesNoOwnerData(t *testing.T) {
	s := newSQLiteTestAPI(t)
	waiting := queue.Spec{ID: new("waiting"), Command: new("cat"), Delay: new(time.Hour)}
	if _, err := s.Enqueue(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.EnqueueParams{JobSpec: waiting}); err != nil {
		t.Fatal(err)
	}
	fillQuota(t, s, strings.Repeat("x", 10_000))
	cancelAllJobs(t, s)
	before := s.Store.StoredBytesOfUser(ownerUID)
	edit := control.JobEditParams{
		JobSelection: control.JobSelection{ID: "waiting"},
		FieldsToSet:  []byte(`{"stdin":"` + strings.Repeat("y", 5000) + `"}`),
	}
	got, err := s.EditJobs(contextAsPeer(t, ownerUID+1, control.RightOperate), edit)
	if now := s.Store.StoredBytesOfUser(ownerUID); !strings.Contains(fmt.Sprint(got, err), store.QuotaErrorField) ||
		now != before {
		t.Errorf("an edit by an operator: %+v, %v, and %d of %d bytes are left; want it refused as full", got, err, now,
			before)
	}
	if got, err := s.EditJobs(contextAsPeer(t, ownerUID, control.RightSubmit), edit); err != nil || len(got.Refusals) > 0 {
		t.Errorf("the owner's edit: %+v, %v", got, err)
	}
}

// A request frees all the space that it needs, even if it must remove the inputs of many ended jobs.
func TestEnqueueFreesInputsOfManyJobs(t *testing.T) {
	s := newSQLiteTestAPI(t)
	drafts := draftsWithPrefix("old", 120)
	for i := range drafts {
		drafts[i].Stdin = strings.Repeat("x", 2000)
	}
	s.enqueueJobs(t, drafts...)
	s.setUserQuota(t, s.Store.StoredBytesOfUser(ownerUID)+100)
	ownerCtx := contextAsPeer(t, ownerUID, control.RightSubmit)
	for i := range drafts {
		if got, err := s.CancelJobs(ownerCtx, control.JobSelection{ID: control.JobID(drafts[i].ID)}); err != nil ||
			len(got.Refusals) > 0 {
			t.Fatal(got, err)
		}
	}
	spec := queue.Spec{Command: new("cat"), Stdin: new(strings.Repeat("x", 220_000))}
	if _, err := s.Enqueue(ownerCtx, control.EnqueueParams{JobSpec: spec}); err != nil {
		t.Errorf("a job for which the inputs of 110 jobs are removed: %v", err)
	}
}

// Even with a quota of 1 byte, NearQuotaThresholdBytes is not 0, because 0 means unlimited.
func TestNearQuotaBytesIsPositiveForSmallQuota(t *testing.T) {
	s := newSQLiteTestAPI(t)
	for _, c := range [][2]int64{{0, 0}, {1, 1}, {2, 1}, {10, 8}, {100, 89}} {
		s.setUserQuota(t, c[0])
		if got := s.UserQuota.NearQuotaThresholdBytes(); got != c[1] {
			t.Errorf("of %d bytes %d leave enough room, want %d", c[0], got, c[1])
		}
	}
}
