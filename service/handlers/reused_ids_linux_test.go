package handlers

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
)

// A right that [access] gives to a group by name does not go to the next group with this group's gid.
func TestReusedGIDGetsNoFormerRight(t *testing.T) {
	const gid = joblessUID
	d := &access.UserDirectory{}
	gidBelongsTo := func(name string) {
		d.GetentFunc = func(database, key string) (string, error) {
			if database != "group" || key != name && key != fmt.Sprint(gid) {
				return lookUpFakeOwners(database, key)
			}
			return fmt.Sprintf("%s:x:%d:", name, gid), nil
		}
	}
	gidBelongsTo("crew")
	s := newTestAPI(t, testAPIOptions{settingValues: map[string]string{"access.operate": "@crew"}, userDirectory: d})
	admit := func(uid int, want control.Right) {
		t.Helper()
		p := newPeer(uid, "")
		p.Groups = []int{gid}
		p.Right = s.Rights.CurrentRight(p)
		if err := s.admission.AdmitConnection(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := s.Rights.CurrentRight(p); got != want {
			t.Errorf("uid %d got the right %q, want %q", uid, got, want)
		}
	}
	admit(existingUID, control.RightOperate)
	admit(deletedUID, control.RightOperate)
	d.Resolver = accounts.Resolver{GetentFunc: d.GetentFunc} // drop the cached answers, as if they had expired
	d.GroupID("crew")                                        // cache the gid of crew again
	gidBelongsTo("guests")
	admit(deletedUID, control.RightNone) // a uid without an account
	admit(existingUID, control.RightNone)
}

// While the directory of users does not answer in time, an account owns only the jobs that were enqueued under the name
// that the account had at its last connection. If this name is unknown too, the account owns no job.
func TestSlowDirectoryGivesNoJobsToReusedUID(t *testing.T) {
	s := newOwnersTestAPI(t)
	var directoryHangs atomic.Bool
	unblock := make(chan struct{})
	defer close(unblock)
	s.UserDirectory.GetentFunc = func(database, key string) (string, error) {
		if directoryHangs.Load() {
			<-unblock
			return "", nil
		}
		return lookUpFakeOwners(database, key)
	}
	job := func(uid int, name string) *queue.Job {
		return &queue.Job{ID: "a", UID: uid, ExecutionSettings: queue.ExecutionSettings{RunAsUser: name}}
	}
	for _, uid := range []int{reusedUID, existingUID} {
		if err := s.admission.AdmitConnection(t.Context(), newPeer(uid, control.RightSubmit)); err != nil {
			t.Fatal(err)
		}
	}
	directoryHangs.Store(true)
	for _, c := range []struct {
		uid  int
		name string
		owns bool
	}{{reusedUID, "alice", false}, {reusedUID, "mallory", true}, {existingUID, "bob", true},
		{unansweredUID, "carol", false}, {unansweredUID, fmt.Sprint(unansweredUID), true}} {
		if got := s.Guard.PeerOwnsJob(newPeer(c.uid, control.RightSubmit), job(c.uid, c.name)); got != c.owns {
			t.Errorf("uid %d owns the job of %s: got %t, want %t", c.uid, c.name, got, c.owns)
		}
	}
}

// If the directory of users fails, the error for a user without the right to act on a job says that the job's owner is
// unknown.
func TestErrorSaysThatOwnerIsUnknown(t *testing.T) {
	s := newOwnersTestAPI(t)
	s.UserDirectory.GetentFunc = func(string, string) (string, error) { return "", errors.New("no answer") }
	job := &queue.Job{ID: "a", UID: unansweredUID, ExecutionSettings: queue.ExecutionSettings{RunAsUser: "carol"}}
	err := s.Guard.CheckMayActOnObject(newPeer(unansweredUID, control.RightSubmit), "cancel", "job", job)
	if want := "whose owner is unknown while the user database does not answer"; !errors.Is(err, queue.ErrDenied) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("cancel: got %v, want an error with %q", err, want)
	}
}

// If the directory of users fails, no former owner of a uid counts as its present user, for example in audit events.
func TestPresentUserNameExcludesFormerOwner(t *testing.T) {
	s := newOwnersTestAPI(t)
	s.UserDirectory.GetentFunc = func(string, string) (string, error) { return "", errors.New("no answer") }
	if s.admission.AdmitConnection(t.Context(), newPeer(reusedUID, control.RightAdmin)) != nil {
		t.Fatal("a connection was refused")
	}
	if got := s.Owners.PresentUserName(reusedUID); got != "" {
		t.Errorf("the present user is %q, want none, because the former owner was %s", got, s.Owners.UserName(reusedUID))
	}
}

// An audit event names the account that had the uid when the event was recorded, even if the uid now belongs to another
// account.
func TestAuditEventKeepsNameOfFormerAccount(t *testing.T) {
	s := newOwnersTestAPI(t)
	s.UserDirectory.GetentFunc = func(database, key string) (string, error) {
		if key == fmt.Sprint(reusedUID) {
			return fmt.Sprintf("alice:x:%d:1::/:/bin/sh", reusedUID), nil
		}
		return lookUpFakeOwners(database, key)
	}
	p := newPeer(reusedUID, control.RightAdmin)
	if err := s.admission.AdmitConnection(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := s.Guard.RecordAudit(control.WithPeer(t.Context(), *p), "backup", "", nil); err != nil {
		t.Fatal(err)
	}
	s.UserDirectory.Resolver = accounts.Resolver{GetentFunc: lookUpFakeOwners} // the uid belongs to mallory now
	if err := s.admission.AdmitConnection(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var users []string
	_, err := s.StreamEvents(control.WithPeer(t.Context(), *p), control.EventsParams{WithAuditFields: true,
		EventKinds: control.TextList{"audit"}}, func(e control.Event) error {
		users = append(users, e.User)
		return nil
	})
	if err != nil || len(users) != 1 || users[0] != "alice" {
		t.Errorf("the audit events name the users %q, %v, want alice", users, err)
	}
}
