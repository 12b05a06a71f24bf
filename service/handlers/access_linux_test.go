package handlers

import (
	"context"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/service/access"
)

// lookUpFakeUser simulates the program getent on a machine with a network directory of users. The only user in this
// directory is dora.
func lookUpFakeUser(database, key string) (string, error) {
	return map[string]string{
		"passwd dora": "dora:*:61400:61410::/home/dora:/bin/zsh", "passwd 61400": "dora:*:61400:61410::/home/dora:/bin/zsh",
		"passwd DORA":     "dora:*:61400:61410::/:/bin/sh",
		"initgroups dora": "dora 61410 61411", "group dirgroup": "dirgroup:*:61411:dora",
		"group 61411": "dirgroup:*:61411:dora",
	}[database+" "+key], nil
}

// A user that exists only in a network directory, such as LDAP, can be named wherever a local user can be named: in the
// settings access.*, as the account of all jobs, and in the option --user. Replies show that user's name.
func TestNetworkDirectoryUsersCanBeNamed(t *testing.T) {
	with := func(settings map[string]string) *testAPI {
		t.Helper()
		d := &access.UserDirectory{}
		d.GetentFunc = lookUpFakeUser
		return newTestAPI(t, testAPIOptions{settingValues: settings, runnerPolicyFile: "/etc/no.policy", userDirectory: d})
	}
	s := with(map[string]string{"run_as": "submitter", "access.submit": "@dirgroup", "access.operate": "dora",
		"access.admin": "none"})
	if got := s.Rights.UnknownAccessNamesMessage(); got != "" {
		t.Error(got)
	}
	for want, p := range map[control.Right]*control.Peer{control.RightSubmit: {UID: 61401, GID: 1, Groups: []int{61411}},
		control.RightOperate: {UID: 61400}, control.RightNone: {UID: 61402}} {
		if got := s.Rights.CurrentRight(p); got != want {
			t.Errorf("%+v: got %s, want %s", p, got, want)
		}
	}
	as, err := s.Guard.ResolveJobUser(newPeer(61300, control.RightAdmin), "dora")
	if f, failed := s.parseListFilter(&control.Peer{}, control.JobListParams{Submitter: "dora"}); err != nil ||
		failed != nil ||
		as != (access.JobUser{UID: 61400, Name: "dora"}) || *f.UID != as.UID {
		t.Errorf("--user dora: %+v, %v; of a list %+v, %v", as, err, f, failed)
	}
	if w := s.Owners.UserName(61400); w != "dora" {
		t.Errorf("dora is called %s", w)
	}
	s = with(map[string]string{"run_as": "fixed:dora"})
	if a := s.JobAccount; a.UID != 61400 || a.HomeDir != "/home/dora" || a.ShellPath != "/bin/zsh" ||
		s.Guard.JobUserNameOfPeer(newPeer(61300, control.RightSubmit)) != "dora" {
		t.Errorf("jobs run as %+v", a)
	}
	if _, err := s.UserDirectory.AccountByName("DORA"); err == nil {
		t.Error("all jobs can run as an account by another of its names")
	}
}

// blockUserLookups makes every query for a user wait until waitForRelease returns. The query then finds no
// user.
func blockUserLookups(d *accounts.Resolver, waitForRelease func()) {
	d.GetentFunc = func(string, string) (string, error) { waitForRelease(); return "", nil }
}

// While a change of one setting waits for a directory of users that hangs, another setting can be changed.
func TestHangingUserDirectoryDelaysNoSettingChange(t *testing.T) {
	s := newSQLiteTestAPI(t)
	called, answer := make(chan struct{}), make(chan struct{})
	blockUserLookups(&s.UserDirectory.Resolver, func() {
		close(called)
		<-answer
	})
	admin := contextAsPeer(t, 0, control.RightAdmin)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if v, err := s.ChangeSetting(admin, control.ConfigSetParams{SettingName: "access.read", Value: "dora"}); err != nil ||
			v.Value != "dora" {
			t.Errorf("%+v, %v", v, err)
		}
	}()
	<-called
	ctx, cancel := context.WithTimeout(admin, 5*time.Second)
	defer cancel()
	if _, err := s.ChangeSetting(ctx, control.ConfigSetParams{SettingName: "priority", Value: "7"}); err != nil {
		t.Error(err)
	}
	close(answer)
	<-done
}
