package service

import (
	"reflect"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A status shows the bytes of the caller's jobs and their limit, and to admins alone the users from 90 % of it on.
func TestStatusShowsBytesOfUsers(t *testing.T) {
	s := stored(t)
	draft := jobNamed("large")
	draft.Stdin = strings.Repeat("x", 10_000)
	s.stores(t, draft)
	used := s.store.UserBytes(owner)
	limit := func(n int64) {
		c := *s.config.Load()
		c.MaxBytesUser = n
		s.config.Store(&c)
	}
	status := func(uid int, right control.Right) control.Status {
		t.Helper()
		st, err := s.Status(by(t, uid, right), control.Nothing{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	limit(100_000)
	if st := status(owner, control.Submit); st.UserBytes != used || used < 10_000 || st.MaxBytesUser != 100_000 {
		t.Errorf("the owner sees %d of %d bytes, want %d of 100000", st.UserBytes, st.MaxBytesUser, used)
	}
	if st := status(owner+1, control.Admin); st.UserBytes != 0 || st.NearQuota != nil {
		t.Errorf("another user sees %d bytes, and %v near the quota; want none", st.UserBytes, st.NearQuota)
	}
	near := []control.UserBytes{{UID: owner, User: s.userName(owner), Bytes: used}}
	for _, c := range []struct {
		most int64
		want []control.UserBytes
	}{{used * 10 / 9, near}, {used*10/9 + 10, nil}, {0, nil}} {
		limit(c.most)
		if st := status(owner+1, control.Admin); !reflect.DeepEqual(st.NearQuota, c.want) {
			t.Errorf("%d of %d bytes: an admin sees %v near the quota, want %v", used, c.most, st.NearQuota, c.want)
		}
		if st := status(owner, control.Operate); st.NearQuota != nil {
			t.Errorf("%d of %d bytes: an operator sees %v near the quota, want nothing", used, c.most, st.NearQuota)
		}
	}
	limit(-1)
	if st := status(owner, control.Submit); st.MaxBytesUser <= 0 || st.MaxBytesUser > autoBytes {
		t.Errorf("with auto the limit is %d bytes", st.MaxBytesUser)
	}
}

// The users near their quota that a status lists are bounded: those that use most.
func TestStatusBoundsUsersNearQuota(t *testing.T) {
	s := stored(t)
	for uid := range maxNearQuota + 1 {
		draft := jobNamed("")
		draft.UID, draft.Stdin = owner+uid, strings.Repeat("x", 1000+uid)
		if _, err := s.store.Enqueue(t.Context(), store.Request{UID: owner + uid, Drafts: []queue.Job{draft}}); err != nil {
			t.Fatal(err)
		}
	}
	c := *s.config.Load()
	c.MaxBytesUser = 1
	s.config.Store(&c)
	st, err := s.Status(by(t, 0, control.Admin), control.Nothing{})
	if err != nil || len(st.NearQuota) != maxNearQuota || st.NearQuota[0].UID != owner+maxNearQuota {
		t.Errorf("%d users are near the quota, %v; want %d, and first the one that uses most", len(st.NearQuota), err, maxNearQuota)
	}
}
