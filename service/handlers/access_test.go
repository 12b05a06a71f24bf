package handlers

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// newTestAPIWithSettings returns a rig (an API under test) with the given settings, as pairs of a key and a value. If
// the setting run_as requires it, the rig uses runners that run as root.
func newTestAPIWithSettings(t testing.TB, namesAndValues ...string) *testAPI {
	t.Helper()
	o := testAPIOptions{settingValues: map[string]string{}}
	for i := 0; i < len(namesAndValues); i += 2 {
		o.settingValues[namesAndValues[i]] = namesAndValues[i+1]
	}
	if runAs := o.settingValues["run_as"]; runAs != "" && runAs != config.RunAsService {
		o.runnerPolicyFile = filepath.Join(t.TempDir(), "runner.conf")
		if err := os.WriteFile(o.runnerPolicyFile, []byte("allow_root_jobs = true\naccounts = *\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return newTestAPI(t, o)
}

// newPeer returns a peer with a uid, a gid with the same number, and a right.
func newPeer(uid int, right control.Right) *control.Peer {
	return &control.Peer{UID: uid, GID: uid, Right: right}
}

// Only admins may choose the user that a job runs as. Other users may name only the user that the job would
// run as anyway. If a choice is rejected, the error names the setting that would allow it.
func TestOnlyAdminsChooseJobUser(t *testing.T) {
	self := newTestAPIWithSettings(t).JobAccount.UserName
	other := otherUserName(t)
	for _, c := range []struct {
		runAs string
		peer  *control.Peer
		name  string
		want  string // expected error; "" means success
		code  queue.ErrorCode
	}{
		{"service", newPeer(61300, control.RightSubmit), self, "", ""},
		{"service", newPeer(61300, control.RightAdmin), "61377", `there is no user "61377"`, queue.CodeInvalid},
		{"service", newPeer(61300, control.RightAdmin), other, "jobs of this service run as " + self + " and cannot run as ",
			queue.CodeDenied},
		{"submitter", newPeer(0, control.RightSubmit), "root", "", ""},
		{"submitter", newPeer(61300, control.RightAdmin), "0", "", ""},
		{"submitter", newPeer(61300, control.RightAdmin), "no.such.user", `there is no user "no.such.user"`,
			queue.CodeInvalid},
		{"submitter", newPeer(61300, control.RightOperate), "root",
			`a job that runs as another user (root) needs the right "admin", but you (61300) have "operate"`, queue.CodeDenied},
		{"fixed:" + self, newPeer(61300, control.RightSubmit), self, "", ""},
		{"fixed:daemon", newPeer(61300, control.RightAdmin), "root",
			`jobs of this service run as daemon and cannot run as root; to run each job as the user who enqueued it, set run_as = "submitter" in /etc/q.toml`, queue.CodeDenied},
	} {
		if !supportsRunAs(c.runAs) {
			continue
		}
		s := newTestAPIWithSettings(t, "run_as", c.runAs)
		as, err := s.Guard.ResolveJobUser(c.peer, c.name)
		var e *queue.Error
		switch {
		case c.want == "" && (err != nil || as.Name == ""):
			t.Errorf("%s for %s: %+v, %v", c.runAs, c.name, as, err)
		case c.want != "" && (!errors.As(err, &e) || e.Code != c.code || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s for %s: got %v, want %s: %s", c.runAs, c.name, err, c.code, c.want)
		}
	}
}

// If run_as is "submitter", a job that names a user runs as that user. If all jobs run as one account, a
// waiting job is shown with that account. An ended job is shown with the user that the job recorded.
func TestNamedJobUserAppliesWithRunAsSubmitter(t *testing.T) {
	self := accounts.CurrentUserID()
	job := queue.Job{UID: 61300, State: queue.Pending, ExecutionSettings: queue.ExecutionSettings{RunAsUID: new(61301),
		RunAsUser: "bob"}}
	ended := job
	ended.State = queue.Completed
	for _, c := range []struct {
		runAs string
		runs  int
		shown string
	}{{"submitter", 61301, "bob"}, {"service", self, newTestAPIWithSettings(t).JobAccount.UserName},
		{"fixed:daemon", 1, "daemon"}} {
		if !supportsRunAs(c.runAs) {
			continue
		}
		s := newTestAPIWithSettings(t, "run_as", c.runAs)
		if got := s.JobAccount.JobUID(&job); got != c.runs {
			t.Errorf("%s: it runs as %d, want %d", c.runAs, got, c.runs)
		}
		if user, owner := s.Guard.UserAndOwnerNames(&job); user != c.shown || owner != "61300" {
			t.Errorf("%s: shown as %s of %s, want %s", c.runAs, user, owner, c.shown)
		}
		if user, _ := s.Guard.UserAndOwnerNames(&ended); user != "bob" {
			t.Errorf("%s: it ran and is shown as %s", c.runAs, user)
		}
	}
}

// A user who edits another user's job cannot change what the job executes. Instead of values that are hidden from the
// user, replies show a placeholder. An edit that contains the placeholder as a value is rejected.
func TestEditsOfOthersJobsAreRestricted(t *testing.T) {
	theirs, named := &queue.Job{UID: 61301}, &queue.Job{UID: 61300,
		ExecutionSettings: queue.ExecutionSettings{RunAsUID: new(61301)}}
	for _, c := range []struct {
		runAs string
		right control.Right
		set   string
		want  error
	}{
		{"submitter", control.RightOperate, `{"priority":1,"timeout":5,"labels":{"a":"b"}}`, nil},
		{"submitter", control.RightOperate, `{"command":"id"}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"argv":["id"]}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"cwd":"/tmp"}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"env":{"LD_PRELOAD":"x"}}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"shell":"sh"}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"stdin":"x"}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"stdin_file":"/x"}`, queue.ErrDenied},
		{"submitter", control.RightOperate, `{"umask":"000"}`, queue.ErrDenied},
		{"submitter", control.RightAdmin, `{"command":"id"}`, nil}, {"service", control.RightOperate, `{"command":"id"}`,
			nil},
		{"fixed:daemon", control.RightOperate, `{"command":"id"}`, queue.ErrDenied},
		{"fixed:daemon", control.RightOperate, `{"priority":1}`, nil}, {"fixed:daemon", control.RightAdmin,
			`{"command":"id"}`, nil},
		{"service", control.RightOperate, `{"env":{"A":"***"}}`, queue.ErrInvalid},
		{"service", control.RightOperate, `{"env":{"A":"x"}}`, nil},
	} {
		if !supportsRunAs(c.runAs) {
			continue
		}
		s := newTestAPIWithSettings(t, "run_as", c.runAs)
		p := newPeer(61300, c.right)
		e, err := s.Guard.ParseEditScope(p, json.RawMessage(c.set))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Guard.CheckMayEdit(p, &e, theirs); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s by %s with %s: got %v, want %v", c.set, c.right, c.runAs, err, c.want)
		}
		if err := s.Guard.CheckMayEdit(p, &e, named); !errors.Is(err, c.want) && c.want == queue.ErrDenied {
			t.Errorf("%s by %s with %s, for the peer's own job that names another user: got %v, want %v", c.set, c.right,
				c.runAs, err, c.want)
		}
		if err := s.Guard.CheckMayEdit(newPeer(61301, control.RightSubmit), &e, theirs); err != nil {
			t.Errorf("%s for the peer's own job: %v", c.set, err)
		}
	}
}

// No user, not even an admin, sees the password in the URL of the database. This applies to the URL in use, and to a
// changed URL that takes effect at the next start.
func TestDatabaseURLPasswordIsHidden(t *testing.T) {
	s := newTestAPIWithSettings(t, "store", "postgres://q:one@h/d?password=tw;o&host=/run/x&sslpass%77ord=three")
	s.Settings.RecordConfigAtStart()
	if err := s.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile,
		ValuesBySetting: map[string]string{"store": "postgres://q:three@h2/d"}}); err != nil {
		t.Fatal(err)
	}
	for right, want := range map[control.Right]control.ConfigValue{
		control.RightOperate: {SettingName: "store", Value: "***", Origin: "file",
			Hint: "changes to *** when the service restarts; until then, the shown value stays in effect"},
		control.RightAdmin: {SettingName: "store",
			Value:  "postgres://q:xxxxx@h/d?password=xxxxx&host=/run/x&sslpass%77ord=xxxxx",
			Origin: "file",
			Hint:   "changes to postgres://q:xxxxx@h2/d when the service restarts; until then, the shown value stays in effect"},
	} {
		if got, err := s.ReadSetting(contextAsPeer(t, 3001, right),
			control.SettingNameParams{SettingName: "store"}); err != nil ||
			got != want {
			t.Errorf("to %v: %+v, %v; want %+v", right, got, err, want)
		}
	}
}
