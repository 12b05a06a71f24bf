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
// have enqueued jobs, under the names in ownerNames.
const (
	reusedUID     = 61400 + iota // uid of a former account; it now belongs to mallory
	existingUID                  // uid of an account that still exists
	unansweredUID                // the directory does not answer for this uid
	deletedUID                   // the directory answers that this uid does not exist
	joblessUID                   // uid of an account that has never enqueued a job
)

// ownerNames contains the names under which uids have enqueued jobs.
var ownerNames = map[int]string{reusedUID: "alice", existingUID: "bob", unansweredUID: "carol", deletedUID: "dave"}

// lookUpOwners simulates the program getent on a machine with these uids.
func lookUpOwners(database, key string) (string, error) {
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

// newOwnersRig returns a rig (an API under test) in which each owner has two jobs: NAME-done, which has
// ended, and NAME-waits.
func newOwnersRig(t *testing.T) *rig {
	t.Helper()
	return newOwnersRigWith(t, rigOptions{})
}

// newOwnersRigWith returns a rig with the given options and the same jobs as newOwnersRig.
func newOwnersRigWith(t *testing.T, o rigOptions) *rig {
	t.Helper()
	s := newStoreRigWith(t, o)
	// Without AlwaysQueryRemote, one look-up without an answer would make all look-ups fail for a minute.
	s.Directory.LookupFunc, s.Directory.AlwaysQueryRemote = lookUpOwners, true
	for _, then := range []string{"-done", "-waits"} {
		for uid, name := range ownerNames {
			j := jobNamed(name + then)
			j.UID, j.User, j.Queue, j.Env = uid, name, "default", []string{"SECRET=canary"}
			if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: uid, Owner: name, Drafts: []queue.Job{j}}); err != nil {
				t.Fatal(err)
			}
		}
		if then == "-done" {
			s.endJobs(t, s.claimJobs(t, len(ownerNames)), queue.Completed,
				queue.Attempt{Output: []byte{0, 0, 6, 'c', 'a', 'n', 'a', 'r', 'y'}})
		}
	}
	if err := s.Owners.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// clusterWithOthers is a store that this node shares with other nodes.
type clusterWithOthers struct{ store.Cluster }

// HasOthers implements store.Cluster.
func (clusterWithOthers) HasOthers() bool { return true }

// A node does not claim jobs of users that exist only on other nodes. Once such a user exists on this node
// too, the node claims the user's jobs.
func TestJobsOfUnknownUsersWaitForOtherNodes(t *testing.T) {
	s := newOwnersRigWith(t, rigOptions{cluster: clusterWithOthers{}, runAsSubmitters: true})
	for _, known := range []struct {
		names string
		ask   func(database, key string) (string, error)
		want  []string
	}{
		{"bob", lookUpOwners, []string{"bob-waits"}},
		{"bob and carol", func(database, key string) (string, error) {
			if key == fmt.Sprint(unansweredUID) {
				return fmt.Sprintf("carol:x:%d:1::/:/bin/sh", unansweredUID), nil
			}
			return lookUpOwners(database, key)
		}, []string{"carol-waits"}},
	} {
		s.Directory.LookupFunc = known.ask
		s.Owners.NameLookups = nil // drop the cached names, as if they had expired
		s.admission.UpdateUnknownUIDs(t.Context())
		var names []string
		for _, j := range s.claimJobs(t, len(known.want)) {
			names = append(names, j.ID)
		}
		if slices.Sort(names); !slices.Equal(names, known.want) {
			t.Errorf("where it has %s it claims %v, want %v", known.names, names, known.want)
		}
	}
}

// jobState returns the uid, the state and the reason of a job as one text.
func (s *rig) jobState(t *testing.T, id string) string {
	t.Helper()
	j, err := s.Store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s %s", j.UID, j.State, j.Reason)
}

// A new account does not get the jobs of an earlier account with the same uid. Before the first reply to the
// new account, these jobs are moved to a negative uid: then only admins see them, and waiting jobs are held.
// If the name of a uid has not changed, or is unknown, its jobs are not moved.
func TestUIDIsUsedAgain(t *testing.T) {
	s := newOwnersRig(t)
	var spec queue.Spec
	if err := spec.UnmarshalJSON([]byte(`{"command":"true"}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // before the second round, all jobs of former accounts have been moved
		for uid := range ownerNames {
			if err := s.admission.Admit(t.Context(), peer(uid, control.RightSubmit)); err != nil {
				t.Fatal(err)
			}
		}
		for id, want := range map[string]string{
			"alice-done": "-1 completed ", "alice-waits": "-1 held disowned", "bob-done": fmt.Sprint(existingUID, " completed "),
			"bob-waits":   fmt.Sprint(existingUID, " pending "),
			"carol-waits": fmt.Sprint(unansweredUID, " pending "), "dave-waits": fmt.Sprint(deletedUID, " pending "),
		} {
			if got := s.jobState(t, id); got != want {
				t.Errorf("%s: got %q, want %q", id, got, want)
			}
		}
		if _, err := s.Enqueue(asPeer(t, reusedUID, control.RightSubmit), control.Enqueue{Spec: spec}); err != nil {
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
		ctx := asPeer(t, c.uid, c.right)
		for _, id := range []control.JobID{"alice-done", "alice-waits"} {
			d, err := s.Show(ctx, control.Show{ID: id})
			if shown := fmt.Sprintf("%+v", d); err != nil || strings.Contains(shown, "canary") != c.all || d.User != "alice" {
				t.Errorf("show %s to %s: %s, %v", id, c.right, shown, err)
			}
		}
		_, err := s.Logs(ctx, control.Logs{ID: "alice-done"}, func(control.OutputPiece) error { return nil })
		if errors.Is(err, queue.ErrDenied) == c.all {
			t.Errorf("logs to %s: %v", c.right, err)
		}
		v, err := s.Hold(ctx, control.Selection{ID: "alice-waits"})
		if errors.Is(err, queue.ErrDenied) == c.all && len(v.Refusals) != 1 {
			t.Errorf("hold by %s: %+v, %v", c.right, v, err)
		}
		if f, err := s.parseFilter(&control.Peer{}, control.List{User: "alice"}); err != nil || *f.UID != -1 {
			t.Errorf("list of alice's: %+v, %v", f, err)
		}
	}
	found := s.examiner.ExamineOwners(t.Context())
	if len(found) != 1 || !strings.Contains(found[0].Message, ": alice") || found[0].Level != store.LevelWarning {
		t.Errorf("doctor finds %+v", found)
	}
	for _, id := range []string{"alice-done", "alice-waits"} {
		if _, err := s.Remove(asPeer(t, existingUID, control.RightAdmin),
			control.Remove{Selection: control.Selection{ID: control.JobID(id)}}); err != nil {
			t.Fatal(err)
		}
	}
	if found := s.examiner.ExamineOwners(t.Context()); len(found) != 0 {
		t.Errorf("without jobs of the former account, doctor finds %+v", found)
	}
}

// A uid's jobs are separated from its former owner before the new owner gets a reply, even if the service was
// restarted in between. After that, admitting the new owner again, or a peer without jobs, writes nothing to
// the store: this test closes the store, so any write would fail.
func TestDisowningIsFinishedOnce(t *testing.T) {
	s := newOwnersRig(t)
	drafts := namedJobs("more", 600)
	for i := range drafts {
		drafts[i].UID = reusedUID
	}
	if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: reusedUID, Owner: "alice", Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	if more, err := s.Store.Disown(t.Context(), reusedUID, "alice"); err != nil || !more {
		t.Fatalf("more jobs are left: %t, %v", more, err)
	}
	// Load the owners from the store, as after a restart.
	s = newRig(t, rigOptions{store: s.Store, runnerLocation: s.RunnerLocation, directory: s.Directory})
	if err := s.Owners.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.admission.Admit(t.Context(), peer(reusedUID, control.RightSubmit)); err != nil {
		t.Fatal(err)
	}
	if got := s.jobState(t, "more599"); got != "-1 held disowned" {
		t.Errorf("the last job of the former account: %s", got)
	}
	s.Store.Close()
	for _, uid := range []int{reusedUID, joblessUID} {
		if err := s.admission.Admit(t.Context(), peer(uid, control.RightSubmit)); err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// Doctor finds the jobs of a former account, however many newer jobs exist.
func TestJobsOfAFormerAccountAreFound(t *testing.T) {
	s := newOwnersRig(t)
	if err := s.admission.Admit(t.Context(), peer(reusedUID, control.RightSubmit)); err != nil {
		t.Fatal(err)
	}
	s.enqueueJobs(t, namedJobs("newer", 20_001)...)
	if found := s.examiner.ExamineOwners(t.Context()); len(found) != 1 || !strings.Contains(found[0].Message, ": alice") {
		t.Errorf("doctor finds %+v", found)
	}
}

// A running job keeps its uid until it ends, even if the uid now belongs to another account. That account sees no
// more of the job than other users do, and cannot change it.
func TestRunningJobOfAFormerAccount(t *testing.T) {
	s := newOwnersRig(t)
	leased := s.claimJobs(t, 4)
	var starts []store.AttemptStart
	for i := range leased {
		starts = append(starts, store.AttemptStart{Lease: leased[i].Lease(), StartedAt: s.Store.Now(), Worker: "w1", PID: 1})
	}
	if _, err := s.Store.Exchange(t.Context(), store.Report{Starts: starts}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // two connections of the new account
		if err := s.admission.Admit(t.Context(), peer(reusedUID, control.RightSubmit)); err != nil {
			t.Fatal(err)
		}
	}
	before := s.jobState(t, "alice-waits")
	d, err := s.Show(asPeer(t, reusedUID, control.RightSubmit), control.Show{ID: "alice-waits"})
	if shown := fmt.Sprintf("%+v", d); err != nil || d.State == "held" || strings.Contains(shown, "canary") {
		t.Errorf("show: %s, %v", shown, err)
	}
	if d, err := s.Show(asPeer(t, existingUID, control.RightSubmit), control.Show{ID: "bob-waits"}); err != nil ||
		!strings.Contains(fmt.Sprintf("%+v", d), "canary") {
		t.Errorf("the user's own jobs: %+v, %v", d, err)
	}
	s.checkDenied(t, reusedUID, "alice-waits")
	if got := s.jobState(t, "alice-waits"); got != before {
		t.Errorf("after the requests of the new account: %s, want %s", got, before)
	}
	asBob := &queue.Job{UID: reusedUID, Execution: queue.Execution{User: "bob", AsUID: new(existingUID)}}
	if s.Guard.IsOwner(peer(reusedUID, control.RightSubmit), asBob) {
		t.Error("the new account owns a job that runs as another user and may belong to the former account")
	}
	s.endJobs(t, leased, queue.Completed, queue.Attempt{})
	if got := s.jobState(t, "alice-waits"); got != "-1 completed " {
		t.Errorf("after the job has ended: %s", got)
	}
	_, err = s.Store.Promote(t.Context())
	if err == nil {
		err = s.admission.Admit(t.Context(), peer(reusedUID, control.RightSubmit))
	}
	if err != nil || !s.Guard.IsOwner(peer(reusedUID, control.RightSubmit), asBob) {
		t.Errorf("after all jobs of the former account have ended, the new account does not own its job: %v", err)
	}
}

// checkDenied checks that a user with the right "submit" can neither read the output of a running job nor change
// the job. The job must be the only running job with this uid.
func (s *rig) checkDenied(t *testing.T, uid int, id control.JobID) {
	t.Helper()
	// Without the deadline, a change that is not denied would wait for the pool, which does not know the lease.
	ctx, cancel := context.WithTimeout(asPeer(t, uid, control.RightSubmit), 5*time.Second)
	defer cancel()
	if _, err := s.Logs(ctx, control.Logs{ID: id}, func(control.OutputPiece) error { return nil }); !errors.Is(err,
		queue.ErrDenied) {
		t.Errorf("logs: got %v, want denied", err)
	}
	if _, err := s.Attach(ctx, control.Attach{ID: id}); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("attach: got %v, want denied", err)
	}
	type change func(control.Selection) (control.BulkResult, error)
	for name, apply := range map[string]change{
		"cancel":  func(p control.Selection) (control.BulkResult, error) { return s.Cancel(ctx, p) },
		"kill":    func(p control.Selection) (control.BulkResult, error) { return s.Kill(ctx, control.Kill{Selection: p}) },
		"pause":   func(p control.Selection) (control.BulkResult, error) { return s.Pause(ctx, p) },
		"requeue": func(p control.Selection) (control.BulkResult, error) { return s.Requeue(ctx, p) },
		"rm": func(p control.Selection) (control.BulkResult, error) {
			return s.Remove(ctx, control.Remove{Selection: p, Force: true})
		},
	} {
		for how, selection := range map[string]control.Selection{
			"by id": {ID: id}, "by state": {State: control.TextList{"processing"}}} {
			v, err := apply(selection)
			if err != nil || len(v.DoneIDs) != 0 || len(v.Refusals) != 1 || v.Refusals[0].Code != queue.CodeDenied {
				t.Errorf("%s %s: got %+v, %v, want one refusal", name, how, v, err)
			}
		}
	}
}

// A right that [access] gives to a user by name does not go to the next account with this user's uid, even if
// the user has never enqueued a job.
func TestRightOfAFormerAccount(t *testing.T) {
	d := &access.Directory{}
	uidBelongsTo := func(name string) {
		d.LookupFunc = func(database, key string) (string, error) {
			if database != "passwd" || key != name && key != fmt.Sprint(joblessUID) {
				return "", nil
			}
			return fmt.Sprintf("%s:x:%d:1::/:/bin/sh", name, joblessUID), nil
		}
	}
	uidBelongsTo("alice")
	s := newRig(t, rigOptions{settings: map[string]string{"access.admin": "alice"}, directory: d})
	p := peer(joblessUID, "")
	admit := func(want control.Right) {
		t.Helper()
		p.Right = s.Rights.Right(p)
		if err := s.admission.Admit(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := s.Rights.Right(p); got != want {
			t.Errorf("got the right %q, want %q", got, want)
		}
	}
	admit(control.RightAdmin)
	d.Directory = accounts.Directory{LookupFunc: d.LookupFunc} // drop the cached answers, as if they had expired
	d.UserID("alice")                                          // cache the uid of alice again
	uidBelongsTo("mallory")
	admit(control.RightNone)
}

// The service checks the names of all uids when it starts and when a check is requested. The check does not
// depend on a user connecting.
func TestAllUIDsAreChecked(t *testing.T) {
	s := newOwnersRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.admission.SeparateOwners(ctx)
	}()
	defer func() { cancel(); <-ended }()
	until := func(id, want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); s.jobState(t, id) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %s, want %s", id, s.jobState(t, id), want)
			}
		}
	}
	until("alice-waits", "-1 held disowned")
	if got := s.jobState(t, "bob-waits"); got != fmt.Sprint(existingUID, " pending ") {
		t.Errorf("bob's: %s", got)
	}
	j := jobNamed("again")
	j.UID, j.User = reusedUID, "alicia"
	if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: reusedUID, Owner: "alicia",
		Drafts: []queue.Job{j}}); err != nil {
		t.Fatal(err)
	}
	s.Owners.RememberName(reusedUID, "alicia")
	s.Owners.RequestOwnerCheck()
	until("again", "-2 held disowned")
}

// A job does not start if the uid that submitted it, or that it runs as, now belongs to another account. If
// the directory of users does not respond in time, the job starts.
func TestDisownedJobsDoNotStart(t *testing.T) {
	s := newOwnersRig(t)
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
		{accounts.CurrentUser(), "other", nil, true}, {-1, "alice", new(existingUID), false},
		{existingUID, "alice", new(reusedUID), false}, {existingUID, "mallory", new(reusedUID), true},
		{reusedUID, "bob", new(existingUID), false}, {0, "alice", new(reusedUID), false}, {-1, "bob", new(existingUID), true},
	} {
		if err := s.Owners.CheckOwner(&queue.Job{UID: c.uid,
			Execution: queue.Execution{User: c.user, AsUID: c.as}}); (err == nil) != c.may {
			t.Errorf("of %d, who was %q, as %v: %v, want it started: %t", c.uid, c.user, c.as, err, c.may)
		}
	}
	s.Owners.NameLookups[existingUID] = &access.NameLookup{Done: closedChannel(), Name: "who was bob a moment ago",
		DoneAt: time.Now()}
	if err := s.Owners.CheckOwner(&queue.Job{UID: existingUID, Execution: queue.Execution{User: "bob"}}); err != nil {
		t.Errorf("by a name that has just changed: %v", err)
	}
	unblock := make(chan struct{})
	s.Directory.LookupFunc = func(string, string) (string, error) { <-unblock; return "", nil }
	began := time.Now()
	for range 100 {
		if err := s.Owners.CheckOwner(&queue.Job{UID: 61499, Execution: queue.Execution{User: "eve"}}); err != nil {
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

// Lists and events get the names of submitters from a cache. Otherwise a slow directory of users would delay
// them while they hold a read slot, and so delay the reads of other requests.
func TestNamesOfOwnersAreKnown(t *testing.T) {
	s := newOwnersRig(t)
	s.Directory.LookupFunc = func(_, key string) (string, error) {
		t.Errorf("the system was queried for %s", key)
		return "", nil
	}
	for uid, want := range ownerNames {
		if got := s.Owners.UserName(uid); got != want {
			t.Errorf("uid %d: got %q, want %q", uid, got, want)
		}
	}
}
