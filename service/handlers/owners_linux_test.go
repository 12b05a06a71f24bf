package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/store"
)

// The simulated directory has these uids in addition to those in /etc/passwd. All of them except joblessUID
// have enqueued jobs, under the names in ownerNameByUID.
const (
	reusedUID     = 61400 + iota // uid of a former account; it now belongs to mallory
	existingUID                  // uid of an account that still exists
	unansweredUID                // the directory does not answer for this uid
	deletedUID                   // the directory answers that this uid does not exist
	joblessUID                   // uid of an account that has never enqueued a job
)

// ownerNameByUID contains the names under which uids have enqueued jobs.
var ownerNameByUID = map[int]string{reusedUID: "alice", existingUID: "bob", unansweredUID: "carol", deletedUID: "dave"}

// lookUpFakeOwners simulates the program getent on a machine with the uids above.
func lookUpFakeOwners(database, key string) (string, error) {
	switch key {
	case fmt.Sprint(reusedUID):
		return fmt.Sprintf("mallory:x:%d:1::/:/bin/sh", reusedUID), nil
	case fmt.Sprint(existingUID):
		return fmt.Sprintf("bob:x:%d:1::/:/bin/sh", existingUID), nil
	case fmt.Sprint(joblessUID):
		return fmt.Sprintf("eve:x:%d:1::/:/bin/sh", joblessUID), nil
	case fmt.Sprint(unansweredUID):
		return "", errors.New("no answer")
	}
	return "", nil
}

// newOwnersTestAPI returns an API under test. Each owner has two jobs: NAME-done, which has ended, and NAME-waits.
func newOwnersTestAPI(t *testing.T) *testAPI {
	t.Helper()
	return newOwnersTestAPIWith(t, testAPIOptions{})
}

// newOwnersTestAPIWith returns an API under test with the given options and the same jobs as newOwnersTestAPI.
func newOwnersTestAPIWith(t *testing.T, o testAPIOptions) *testAPI {
	t.Helper()
	s := newSQLiteTestAPIWith(t, o)
	// Without AlwaysQueryRemote, one look-up without an answer would make all look-ups fail for a minute.
	s.UserDirectory.GetentFunc, s.UserDirectory.AlwaysQueryRemote = lookUpFakeOwners, true
	for _, then := range []string{"-done", "-waits"} {
		for uid, name := range ownerNameByUID {
			j := draftWithID(name + then)
			j.UID, j.RunAsUser, j.Queue, j.Env = uid, name, "default", []string{"SECRET=canary"}
			if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: uid, OwnerName: name,
				Drafts: []queue.Job{j}}); err != nil {
				t.Fatal(err)
			}
		}
		if then == "-done" {
			s.endJobs(t, s.claimJobs(t, len(ownerNameByUID)), queue.Completed,
				queue.Attempt{Output: []byte{0, 0, 6, 'c', 'a', 'n', 'a', 'r', 'y'}})
		}
	}
	if err := s.Owners.LoadOwnerNames(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// clusterWithOtherNodes is a store that this node shares with other nodes.
type clusterWithOtherNodes struct{ store.Cluster }

// HasOtherActiveNodes implements store.Cluster.
func (clusterWithOtherNodes) HasOtherActiveNodes() bool { return true }

// A node does not claim jobs of users that exist only on other nodes. Once such a user exists on this node
// too, the node claims the user's jobs.
func TestJobsOfUnknownUsersWaitForOtherNodes(t *testing.T) {
	s := newOwnersTestAPIWith(t, testAPIOptions{cluster: clusterWithOtherNodes{}, runAsSubmitters: true})
	for _, known := range []struct {
		names string
		ask   func(database, key string) (string, error)
		want  []string
	}{
		{"bob", lookUpFakeOwners, []string{"bob-waits"}},
		{"bob and carol", func(database, key string) (string, error) {
			if key == fmt.Sprint(unansweredUID) {
				return fmt.Sprintf("carol:x:%d:1::/:/bin/sh", unansweredUID), nil
			}
			return lookUpFakeOwners(database, key)
		}, []string{"carol-waits"}},
	} {
		s.UserDirectory.GetentFunc = known.ask
		s.Owners.NameLookupByUID = nil // drop the cached names, as if they had expired
		s.admission.UpdateUIDsWithoutAccount(t.Context())
		var names []string
		for _, j := range s.claimJobs(t, len(known.want)) {
			names = append(names, j.ID)
		}
		if slices.Sort(names); !slices.Equal(names, known.want) {
			t.Errorf("where it has %s it claims %v, want %v", known.names, names, known.want)
		}
	}
}

// describeOwnerAndState returns the uid, the state and the reason of a job as one text.
func (s *testAPI) describeOwnerAndState(t *testing.T, id string) string {
	t.Helper()
	j, err := s.Store.GetJob(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s %s", j.UID, j.State, j.Reason)
}

// A new account does not get the jobs of an earlier account with the same uid. Before the first reply to the new
// account, these jobs are moved to a negative uid. After that, only admins see the jobs, and the waiting ones among
// them are held. If the name of a uid has not changed, or is unknown, its jobs are not moved.
func TestReusedUIDGetsNoFormerOwnersJobs(t *testing.T) {
	s := newOwnersTestAPI(t)
	var spec queue.Spec
	if err := spec.UnmarshalJSON([]byte(`{"command":"true"}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // before the second round, all jobs of former accounts have been moved
		for uid := range ownerNameByUID {
			if err := s.admission.AdmitConnection(t.Context(), newPeer(uid, control.RightSubmit)); err != nil {
				t.Fatal(err)
			}
		}
		for id, want := range map[string]string{
			"alice-done": "-1 completed ", "alice-waits": "-1 held disowned", "bob-done": fmt.Sprint(existingUID, " completed "),
			"bob-waits":   fmt.Sprint(existingUID, " pending "),
			"carol-waits": fmt.Sprint(unansweredUID, " pending "), "dave-waits": fmt.Sprint(deletedUID, " pending "),
		} {
			if got := s.describeOwnerAndState(t, id); got != want {
				t.Errorf("%s: got %q, want %q", id, got, want)
			}
		}
		if _, err := s.Enqueue(contextAsPeer(t, reusedUID, control.RightSubmit),
			control.EnqueueParams{JobSpec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		uid   int
		right control.Right
		all   bool
	}{{reusedUID, control.RightSubmit, false}, {existingUID, control.RightOperate, false},
		{existingUID, control.RightAdmin,
			true}} {
		ctx := contextAsPeer(t, c.uid, c.right)
		for _, id := range []control.JobID{"alice-done", "alice-waits"} {
			d, err := s.ShowJob(ctx, control.JobShowParams{ID: id})
			if shown := fmt.Sprintf("%+v", d); err != nil || strings.Contains(shown, "canary") != c.all || d.User != "alice" {
				t.Errorf("show %s to %s: %s, %v", id, c.right, shown, err)
			}
		}
		_, err := s.StreamOutput(ctx, control.JobOutputParams{ID: "alice-done"},
			func(control.OutputPiece) error { return nil })
		if errors.Is(err, queue.ErrDenied) == c.all {
			t.Errorf("logs to %s: %v", c.right, err)
		}
		v, err := s.HoldJobs(ctx, control.JobSelection{ID: "alice-waits"})
		if errors.Is(err, queue.ErrDenied) == c.all && len(v.Refusals) != 1 {
			t.Errorf("hold by %s: %+v, %v", c.right, v, err)
		}
		if f, err := s.parseListFilter(&control.Peer{}, control.JobListParams{Submitter: "alice"}); err != nil ||
			*f.UID != -1 {
			t.Errorf("list of alice's: %+v, %v", f, err)
		}
	}
	found := s.ExamineFormerOwners(t.Context())
	if len(found) != 1 || !strings.Contains(found[0].Message, ": alice") || found[0].Level != store.LevelWarning {
		t.Errorf("doctor finds %+v", found)
	}
	for _, id := range []string{"alice-done", "alice-waits"} {
		if _, err := s.RemoveJobs(contextAsPeer(t, existingUID, control.RightAdmin),
			control.JobRemoveParams{JobSelection: control.JobSelection{ID: control.JobID(id)}}); err != nil {
			t.Fatal(err)
		}
	}
	if found := s.ExamineFormerOwners(t.Context()); len(found) != 0 {
		t.Errorf("without jobs of the former account, doctor finds %+v", found)
	}
}

// A uid's jobs are separated from the uid before its new owner gets a reply, even if the service was restarted in
// between. After that, admitting the new owner again, or a peer without jobs, writes nothing to the store. To check
// this, the test closes the store, so that any write would fail.
func TestFormerOwnersJobsAreDisownedOnce(t *testing.T) {
	s := newOwnersTestAPI(t)
	drafts := draftsWithPrefix("more", 600)
	for i := range drafts {
		drafts[i].UID = reusedUID
	}
	if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: reusedUID, OwnerName: "alice",
		Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	if more, err := s.Store.DisownJobs(t.Context(), reusedUID, "alice"); err != nil || !more {
		t.Fatalf("more jobs are left: %t, %v", more, err)
	}
	// Load the owners from the store, as after a restart.
	s = newTestAPI(t, testAPIOptions{store: s.Store, runnerLocation: s.RunnerLocation, userDirectory: s.UserDirectory})
	if err := s.Owners.LoadOwnerNames(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.admission.AdmitConnection(t.Context(), newPeer(reusedUID, control.RightSubmit)); err != nil {
		t.Fatal(err)
	}
	if got := s.describeOwnerAndState(t, "more599"); got != "-1 held disowned" {
		t.Errorf("the last job of the former account: %s", got)
	}
	s.Store.Close()
	for _, uid := range []int{reusedUID, joblessUID} {
		if err := s.admission.AdmitConnection(t.Context(), newPeer(uid, control.RightSubmit)); err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// Doctor finds the jobs of a former account, however many newer jobs exist.
func TestDoctorFindsJobsOfFormerAccount(t *testing.T) {
	s := newOwnersTestAPI(t)
	if err := s.admission.AdmitConnection(t.Context(), newPeer(reusedUID, control.RightSubmit)); err != nil {
		t.Fatal(err)
	}
	s.enqueueJobs(t, draftsWithPrefix("newer", 20_001)...)
	if found := s.ExamineFormerOwners(t.Context()); len(found) != 1 ||
		!strings.Contains(found[0].Message, ": alice") {
		t.Errorf("doctor finds %+v", found)
	}
}

// A running job keeps its uid until it ends, even if the uid now belongs to another account. That account sees no more
// of the job than users without a right to it, and cannot change it.
func TestReusedUIDCannotAccessRunningJob(t *testing.T) {
	s := newOwnersTestAPI(t)
	leased := s.claimJobs(t, 4)
	var starts []store.AttemptStart
	for i := range leased {
		starts = append(starts, store.AttemptStart{Lease: leased[i].Lease(), StartedAt: s.Store.Now(), WorkerID: "w1",
			PID: 1})
	}
	if _, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: starts}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // two connections of the new account
		if err := s.admission.AdmitConnection(t.Context(), newPeer(reusedUID, control.RightSubmit)); err != nil {
			t.Fatal(err)
		}
	}
	before := s.describeOwnerAndState(t, "alice-waits")
	d, err := s.ShowJob(contextAsPeer(t, reusedUID, control.RightSubmit), control.JobShowParams{ID: "alice-waits"})
	if shown := fmt.Sprintf("%+v", d); err != nil || d.State == "held" || strings.Contains(shown, "canary") {
		t.Errorf("show: %s, %v", shown, err)
	}
	if d, err := s.ShowJob(contextAsPeer(t, existingUID, control.RightSubmit),
		control.JobShowParams{ID: "bob-waits"}); err != nil ||
		!strings.Contains(fmt.Sprintf("%+v", d), "canary") {
		t.Errorf("the user's own jobs: %+v, %v", d, err)
	}
	s.checkAccessDenied(t, reusedUID, "alice-waits")
	if got := s.describeOwnerAndState(t, "alice-waits"); got != before {
		t.Errorf("after the requests of the new account: %s, want %s", got, before)
	}
	asBob := &queue.Job{UID: reusedUID, ExecutionSettings: queue.ExecutionSettings{RunAsUser: "bob",
		RunAsUID: new(existingUID)}}
	if s.Guard.PeerOwnsJob(newPeer(reusedUID, control.RightSubmit), asBob) {
		t.Error("the new account owns a job that runs as another user and may belong to the former account")
	}
	s.endJobs(t, leased, queue.Completed, queue.Attempt{})
	if got := s.describeOwnerAndState(t, "alice-waits"); got != "-1 completed " {
		t.Errorf("after the job has ended: %s", got)
	}
	_, err = s.Store.ApplyDueChanges(t.Context())
	if err == nil {
		err = s.admission.AdmitConnection(t.Context(), newPeer(reusedUID, control.RightSubmit))
	}
	if err != nil || !s.Guard.PeerOwnsJob(newPeer(reusedUID, control.RightSubmit), asBob) {
		t.Errorf("after all jobs of the former account have ended, the new account does not own its job: %v", err)
	}
}

// checkAccessDenied checks that a user with the right "submit" can neither read the output of a running job nor change
// the job. The job must be the only running job with this uid.
func (s *testAPI) checkAccessDenied(t *testing.T, uid int, id control.JobID) {
	t.Helper()
	// Without the deadline, a change that is not denied would wait for the pool, which does not know the lease.
	ctx, cancel := context.WithTimeout(contextAsPeer(t, uid, control.RightSubmit), 5*time.Second)
	defer cancel()
	if _, err := s.StreamOutput(ctx, control.JobOutputParams{ID: id},
		func(control.OutputPiece) error { return nil }); !errors.Is(err,
		queue.ErrDenied) {
		t.Errorf("logs: got %v, want denied", err)
	}
	if _, err := s.AttachTerminal(ctx, control.AttachTerminalParams{ID: id}); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("attach: got %v, want denied", err)
	}
	type change func(control.JobSelection) (control.BulkResult, error)
	for name, apply := range map[string]change{
		"cancel": func(p control.JobSelection) (control.BulkResult, error) { return s.CancelJobs(ctx, p) },
		"kill": func(p control.JobSelection) (control.BulkResult, error) {
			return s.KillJobs(ctx, control.JobKillParams{JobSelection: p})
		},
		"pause":   func(p control.JobSelection) (control.BulkResult, error) { return s.PauseJobs(ctx, p) },
		"requeue": func(p control.JobSelection) (control.BulkResult, error) { return s.RequeueJobs(ctx, p) },
		"rm": func(p control.JobSelection) (control.BulkResult, error) {
			return s.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: p, EndRunningJobs: true})
		},
	} {
		for how, selection := range map[string]control.JobSelection{
			"by id": {ID: id}, "by state": {States: control.TextList{"processing"}}} {
			v, err := apply(selection)
			if err != nil || len(v.ChangedJobIDs) != 0 || len(v.Refusals) != 1 || v.Refusals[0].Code != queue.CodeDenied {
				t.Errorf("%s %s: got %+v, %v, want one refusal", name, how, v, err)
			}
		}
	}
}

// A right that [access] gives to a user by name does not go to the next account with this user's uid, even if
// the user has never enqueued a job.
func TestReusedUIDGetsNoFormerOwnersRight(t *testing.T) {
	d := &access.UserDirectory{}
	uidBelongsTo := func(name string) {
		d.GetentFunc = func(database, key string) (string, error) {
			if database != "passwd" || key != name && key != fmt.Sprint(joblessUID) {
				return "", nil
			}
			return fmt.Sprintf("%s:x:%d:1::/:/bin/sh", name, joblessUID), nil
		}
	}
	uidBelongsTo("alice")
	s := newTestAPI(t, testAPIOptions{settingValues: map[string]string{"access.admin": "alice"}, userDirectory: d})
	p := newPeer(joblessUID, "")
	admit := func(want control.Right) {
		t.Helper()
		p.Right = s.Rights.CurrentRight(p)
		if err := s.admission.AdmitConnection(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := s.Rights.CurrentRight(p); got != want {
			t.Errorf("got the right %q, want %q", got, want)
		}
	}
	admit(control.RightAdmin)
	d.Resolver = accounts.Resolver{GetentFunc: d.GetentFunc} // drop the cached answers, as if they had expired
	d.UserID("alice")                                        // cache the uid of alice again
	uidBelongsTo("mallory")
	admit(control.RightNone)
}

// The service checks the names of all uids when it starts and when a check is requested. The check does not
// depend on a user connecting.
func TestServiceChecksOwnerNamesOfAllUIDs(t *testing.T) {
	s := newOwnersTestAPI(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.admission.RunFormerOwnerSeparation(ctx)
	}()
	defer func() { cancel(); <-ended }()
	until := func(id, want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); s.describeOwnerAndState(t, id) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %s, want %s", id, s.describeOwnerAndState(t, id), want)
			}
		}
	}
	until("alice-waits", "-1 held disowned")
	if got := s.describeOwnerAndState(t, "bob-waits"); got != fmt.Sprint(existingUID, " pending ") {
		t.Errorf("bob's: %s", got)
	}
	j := draftWithID("again")
	j.UID, j.RunAsUser = reusedUID, "alicia"
	if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: reusedUID, OwnerName: "alicia",
		Drafts: []queue.Job{j}}); err != nil {
		t.Fatal(err)
	}
	s.Owners.CacheOwnerName(reusedUID, "alicia")
	s.Owners.RequestOwnerNameCheck()
	until("again", "-2 held disowned")
}

// A job does not start if the uid that submitted it, or that it runs as, now belongs to another account. If
// the directory of users does not respond in time, the job starts.
func TestJobsOfReusedUIDDoNotStart(t *testing.T) {
	s := newOwnersTestAPI(t)
	for _, c := range []struct {
		uid  int
		user string
		as   *int
		may  bool
	}{
		{reusedUID, "alice", nil, false}, {reusedUID, "mallory", nil, true}, {reusedUID, fmt.Sprint(reusedUID), nil, true},
		{reusedUID, "", nil, true},
		{existingUID, "bob", nil, true}, {unansweredUID, "carol", nil, true}, {deletedUID, "dave", nil, true},
		{0, "toor", nil, true},
		{accounts.CurrentUserID(), "other", nil, true}, {-1, "alice", new(existingUID), false},
		{existingUID, "alice", new(reusedUID), false}, {existingUID, "mallory", new(reusedUID), true},
		{reusedUID, "bob", new(existingUID), false}, {0, "alice", new(reusedUID), false}, {-1, "bob", new(existingUID), true},
	} {
		if err := s.Owners.CheckJobAccountsUnchanged(&queue.Job{UID: c.uid,
			ExecutionSettings: queue.ExecutionSettings{RunAsUser: c.user, RunAsUID: c.as}}); (err == nil) != c.may {
			t.Errorf("of %d, who was %q, as %v: %v, want it started: %t", c.uid, c.user, c.as, err, c.may)
		}
	}
	s.Owners.NameLookupByUID[existingUID] = &access.NameLookup{Done: closedChannel(),
		AccountName: "who was bob a moment ago", DoneAt: time.Now()}
	if err := s.Owners.CheckJobAccountsUnchanged(&queue.Job{UID: existingUID,
		ExecutionSettings: queue.ExecutionSettings{RunAsUser: "bob"}}); err != nil {
		t.Errorf("by a name that has just changed: %v", err)
	}
	unblock := make(chan struct{})
	s.UserDirectory.GetentFunc = func(string, string) (string, error) { <-unblock; return "", nil }
	began := time.Now()
	for range 100 {
		if err := s.Owners.CheckJobAccountsUnchanged(&queue.Job{UID: 61499,
			ExecutionSettings: queue.ExecutionSettings{RunAsUser: "eve"}}); err != nil {
			t.Error(err)
		}
	}
	close(unblock)
	if took := time.Since(began); took > 20*access.NameLookupTimeout {
		t.Errorf("100 jobs waited %v for a directory that hangs", took)
	}
}

// closedChannel returns a closed channel.
func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Lists and events get the names of submitters from a cache. A list holds a read slot, so waiting for a slow directory
// of users would also delay the reads of other requests.
func TestJobListsUseCachedOwnerNames(t *testing.T) {
	s := newOwnersTestAPI(t)
	s.UserDirectory.GetentFunc = func(_, key string) (string, error) {
		t.Errorf("the system was queried for %s", key)
		return "", nil
	}
	for uid, want := range ownerNameByUID {
		if got := s.Owners.UserName(uid); got != want {
			t.Errorf("uid %d: got %q, want %q", uid, got, want)
		}
	}
}
