package handlers

import (
	"context"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/service/access"
)

// lookUpDora simulates the program getent on a machine with a network directory of users. Its only user is
// dora.
func lookUpDora(database, key string) (string, error) {
	return map[string]string{
		"passwd dora": "dora:*:61400:61410::/home/dora:/bin/zsh", "passwd 61400": "dora:*:61400:61410::/home/dora:/bin/zsh",
		"passwd DORA":     "dora:*:61400:61410::/:/bin/sh",
		"initgroups dora": "dora 61410 61411", "group dirgroup": "dirgroup:*:61411:dora",
		"group 61411": "dirgroup:*:61411:dora",
	}[database+" "+key], nil
}

// A user that exists only in a network directory, such as LDAP, can be named wherever a local user can: in
// the settings access.*, as the account of all jobs, and in the option --user. Replies show that user's name.
func TestUsersOfADirectory(t *testing.T) {
	with := func(settings map[string]string) *rig {
		t.Helper()
		d := &access.Directory{}
		d.LookupFunc = lookUpDora
		return newRig(t, rigOptions{settings: settings, policyFile: "/etc/no.policy", directory: d})
	}
	s := with(map[string]string{"run_as": "submitter", "access.submit": "@dirgroup", "access.operate": "dora",
		"access.admin": "none"})
	if got := s.Rights.UnknownNamesMessage(); got != "" {
		t.Error(got)
	}
	for want, p := range map[control.Right]*control.Peer{control.RightSubmit: {UID: 61401, GID: 1, Groups: []int{61411}},
		control.RightOperate: {UID: 61400}, control.RightNone: {UID: 61402}} {
		if got := s.Rights.Right(p); got != want {
			t.Errorf("%+v: got %s, want %s", p, got, want)
		}
	}
	as, err := s.Guard.ResolveUser(peer(61300, control.RightAdmin), "dora")
	if f, failed := s.parseFilter(&control.Peer{}, control.List{User: "dora"}); err != nil || failed != nil ||
		as != (access.JobUser{UID: 61400, Name: "dora"}) || *f.UID != as.UID {
		t.Errorf("--user dora: %+v, %v; of a list %+v, %v", as, err, f, failed)
	}
	if w := s.Owners.UserName(61400); w != "dora" {
		t.Errorf("dora is called %s", w)
	}
	s = with(map[string]string{"run_as": "fixed:dora"})
	if a := s.Account; a.UID != 61400 || a.Home != "/home/dora" || a.Shell != "/bin/zsh" ||
		s.Guard.PeerJobUserName(peer(61300, control.RightSubmit)) != "dora" {
		t.Errorf("jobs run as %+v", a)
	}
	if _, err := s.Directory.AccountNamed("DORA"); err == nil {
		t.Error("all jobs can run as an account by another of its names")
	}
}

// blockDirectory makes every query for a user wait until waitForRelease returns. The query then finds no
// user.
func blockDirectory(d *accounts.Directory, waitForRelease func()) {
	d.LookupFunc = func(string, string) (string, error) { waitForRelease(); return "", nil }
}

// While a change of one setting waits for a directory of users that hangs, another setting can be changed.
func TestHangingDirectoryDelaysNoSetting(t *testing.T) {
	s := newStoreRig(t)
	called, answer := make(chan struct{}), make(chan struct{})
	blockDirectory(&s.Directory.Directory, func() {
		close(called)
		<-answer
	})
	admin := asPeer(t, 0, control.RightAdmin)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if v, err := s.ConfigSet(admin, control.ConfigSet{Key: "access.read", Value: "dora"}); err != nil ||
			v.Value != "dora" {
			t.Errorf("%+v, %v", v, err)
		}
	}()
	<-called
	ctx, cancel := context.WithTimeout(admin, 5*time.Second)
	defer cancel()
	if _, err := s.ConfigSet(ctx, control.ConfigSet{Key: "priority", Value: "7"}); err != nil {
		t.Error(err)
	}
	close(answer)
	<-done
}
