//go:build unix

package service

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// set is a service with these settings, which runs nothing. It has root's runners where
// its run_as needs them.
func set(t *testing.T, pairs ...string) *Service {
	t.Helper()
	s := &Service{opt: Options{Places: config.Places{File: "/etc/q.toml"}}}
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	s.layers = []config.Layer{{Origin: config.FromFile, Values: values}}
	if err := s.merge(); err != nil {
		t.Fatal(err)
	}
	if s.config.Load().RunAs != config.RunAsService {
		s.opt.Runners = Runners{Socket: "/run/q/spawn.sock", Policy: filepath.Join(t.TempDir(), "runner.conf")}
		if err := os.WriteFile(s.opt.Runners.Policy, []byte("allow_root_jobs = true\naccounts = *\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.lookUp()
	if err := s.settleAccount(); err != nil {
		t.Fatal(err)
	}
	return s
}

func peer(uid int, right control.Right) *control.Peer {
	return &control.Peer{UID: uid, GID: uid, Right: right}
}

// Names of [access] are looked up when the settings are read; the strongest right of a
// name holds, numbers need nobody behind them, and who is not here is told. Root and
// the service's own user may do everything, whatever is written.
func TestNamesAreResolved(t *testing.T) {
	s := set(t, "access.read", "root daemon 61300 @61310 no.such.user", "access.submit", "61301 @no.such.group", "access.operate", "daemon", "access.admin", "none")
	daemon, ok := s.directory.UserID("daemon")
	if !ok {
		daemon = 61377 // this machine has none
	}
	for _, c := range []struct {
		peer control.Peer
		want control.Right
	}{
		{control.Peer{UID: 61300}, control.Read}, {control.Peer{UID: 61301}, control.Submit}, {control.Peer{UID: 61302, Groups: []int{61310}}, control.Read},
		{control.Peer{UID: 61303}, control.None}, {control.Peer{UID: os.Geteuid()}, control.Admin}, {control.Peer{}, control.Admin},
	} {
		if got := s.Right(&c.peer); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.peer, got, c.want)
		}
	}
	if got := s.Right(&control.Peer{UID: daemon}); ok && got != control.Operate {
		t.Errorf("daemon: got %s, want the strongest", got)
	}
	for _, name := range []string{"no.such.user", "@no.such.group"} {
		if !strings.Contains(s.unknownNames(), name) {
			t.Errorf("%s is not told: %s", name, s.unknownNames())
		}
	}
	if finding := s.examineAccess(); len(finding) != 1 {
		t.Errorf("doctor finds %+v", finding)
	}
	if got := set(t, "access.read", "61300").unknownNames(); got != "" {
		t.Errorf("a number without a name: %s", got)
	}
}

// Who is refused is told the right that is needed, the one they have, and who could let
// them: the group that has it, or an admin with the file.
func TestRefusalsHelp(t *testing.T) {
	s := set(t, "run_as", "submitter", "access.operate", "alice @ops")
	for _, c := range []struct {
		right, needs control.Right
		what, want   string
	}{
		{control.Submit, control.Operate, "cancel of another user's job", `cancel of another user's job needs the right operate; you (61300) have submit; the group ops has operate, or an admin can grant it in [access] of /etc/q.toml`},
		{control.Operate, control.Admin, "drain", `drain needs the right admin; you (61300) have operate; the group queuectl-admin has admin, or an admin can grant it in [access] of /etc/q.toml`},
		{control.None, control.Read, "list", `you (61300) have no right on this service, which is ` + new(accounts.Directory).UserName(os.Geteuid()) + `'s; the group queuectl has submit (sudo usermod -aG queuectl 61300, then log in again), or an admin can grant one in [access] of /etc/q.toml`},
	} {
		var e *queue.Error
		if err := s.Refuse(peer(61300, c.right), c.what, c.needs); !errors.As(err, &e) || e.Code != queue.CodeDenied || e.Message != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	own := set(t)
	if err := own.Refuse(peer(61300, control.None), "", control.Read); !strings.Contains(err.Error(), "which is "+new(accounts.Directory).UserName(os.Geteuid())+"'s; an admin can grant one in [access]") {
		t.Errorf("of a service of one's own: %v", err)
	}
}

// Whom a job runs as is named by admins, or where it changes nothing; the refusal says
// which setting would allow it.
func TestUserIsNamedByAdmins(t *testing.T) {
	self := new(accounts.Directory).UserName(os.Geteuid())
	for _, c := range []struct {
		runAs string
		peer  *control.Peer
		name  string
		want  string // of the refusal; "" if there is none
		code  queue.Code
	}{
		{"service", peer(61300, control.Submit), self, "", ""},
		{"service", peer(61300, control.Admin), "61377", `there is no user "61377"`, queue.CodeInvalid},
		{"submitter", peer(0, control.Submit), "root", "", ""},
		{"submitter", peer(61300, control.Admin), "0", "", ""},
		{"submitter", peer(61300, control.Admin), "no.such.user", `there is no user "no.such.user"`, queue.CodeInvalid},
		{"submitter", peer(61300, control.Operate), "root", "a job that runs as another user (root) needs the right admin; you (61300) have operate", queue.CodeDenied},
		{"fixed:" + self, peer(61300, control.Submit), self, "", ""},
		{"fixed:daemon", peer(61300, control.Admin), "root", `jobs of this service run as, which is daemon; with run_as = "submitter" in /etc/q.toml`, queue.CodeDenied},
	} {
		s := set(t, "run_as", c.runAs)
		a := users{s: s, peer: c.peer}
		as, err := a.of(c.name)
		var e *queue.Error
		switch {
		case c.want == "" && (err != nil || as.name == ""):
			t.Errorf("%s for %s: %+v, %v", c.runAs, c.name, as, err)
		case c.want != "" && (!errors.As(err, &e) || e.Code != c.code || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s for %s: got %v, want %s: %s", c.runAs, c.name, err, c.code, c.want)
		}
	}
	if os.Geteuid() == 0 { // else root is another user
		s := set(t)
		a := users{s: s, peer: peer(0, control.Admin)}
		if u, ok := s.directory.UserID("daemon"); ok && u != 0 {
			if _, err := a.of("daemon"); !errors.Is(err, queue.ErrDenied) || !strings.Contains(err.Error(), `run_as = "submitter"`) {
				t.Errorf("another user, with run_as service: %v", err)
			}
		}
	}
}

// A job keeps the user that was asked for, by number and name, and shows it; others
// have their submitter.
func TestJobsKeepTheirUser(t *testing.T) {
	s := set(t, "run_as", "submitter")
	a := &users{s: s, peer: peer(61300, control.Admin)}
	spec := queue.Spec{Command: new("true"), User: new("root")}
	j, err := s.draft(&spec, s.config.Load().Defaults(), "61300", a)
	if err != nil || j.User != "root" || j.AsUID == nil || *j.AsUID != 0 {
		t.Fatalf("got %+v, %v", j, err)
	}
	if got := queue.SpecOf(&j).User; got == nil || *got != "root" {
		t.Error("the spec of the job names another user")
	}
	plain := queue.Spec{Command: new("true")}
	if j, err := s.draft(&plain, s.config.Load().Defaults(), "61300", a); err != nil || j.User != "61300" || j.AsUID != nil || queue.SpecOf(&j).User != nil {
		t.Errorf("without a user: %+v, %v", j, err)
	}
	if err := j.Edit(json.RawMessage(`{"priority":7}`), s.config.Load().Defaults()); err != nil || j.User != "root" || j.AsUID == nil {
		t.Errorf("after an edit of something else: %+v, %v", j, err)
	}
	for set, want := range map[string]struct {
		as   *int
		name string
	}{`{"user":null}`: {nil, ""}, `{"user":"0"}`: {new(0), "root"}, `{"priority":8}`: {j.AsUID, "root"}} {
		e, err := s.editing(a.peer, json.RawMessage(set))
		if err != nil {
			t.Fatal(err)
		}
		edited := j
		if err := edited.Edit(json.RawMessage(set), s.config.Load().Defaults()); err != nil {
			t.Fatal(err)
		}
		if e.apply(&edited); !reflect.DeepEqual(edited.AsUID, want.as) || edited.User != want.name {
			t.Errorf("%s: got %v %q, want %v %q", set, edited.AsUID, edited.User, want.as, want.name)
		}
	}
	if _, err := s.editing(peer(0, control.Operate), json.RawMessage(`{"user":"root"}`)); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("the user edited by an operator: %v", err)
	}
}

// A user that a job names holds where each job has its own account, and no longer once
// all run as one: it is shown as what it will run as then. What has run keeps it.
func TestNamedUserHoldsUnderSubmitter(t *testing.T) {
	self := os.Geteuid()
	job := queue.Job{UID: 61300, State: queue.Pending, Terms: queue.Terms{AsUID: new(61301), User: "bob"}}
	ended := job
	ended.State = queue.Completed
	for _, c := range []struct {
		runAs string
		runs  int
		shown string
	}{{"submitter", 61301, "bob"}, {"service", self, new(accounts.Directory).UserName(self)}, {"fixed:daemon", 1, "daemon"}} {
		s := set(t, "run_as", c.runAs)
		if got := s.account.RunsAs(&job); got != c.runs {
			t.Errorf("%s: it runs as %d, want %d", c.runAs, got, c.runs)
		}
		if user, owner := s.names(&job); user != c.shown || owner != "61300" {
			t.Errorf("%s: shown as %s of %s, want %s", c.runAs, user, owner, c.shown)
		}
		if user, _ := s.names(&ended); user != "bob" {
			t.Errorf("%s: it ran and is shown as %s", c.runAs, user)
		}
	}
}

// Who edits another's job cannot have that user run something else, nor write what
// stands for a value that is hidden.
func TestEditsOfOthersJobs(t *testing.T) {
	theirs, named := &queue.Job{UID: 61301}, &queue.Job{UID: 61300, Terms: queue.Terms{AsUID: new(61301)}}
	for _, c := range []struct {
		runAs string
		right control.Right
		set   string
		want  error
	}{
		{"submitter", control.Operate, `{"priority":1,"timeout":5,"labels":{"a":"b"}}`, nil},
		{"submitter", control.Operate, `{"command":"id"}`, queue.ErrDenied}, {"submitter", control.Operate, `{"argv":["id"]}`, queue.ErrDenied},
		{"submitter", control.Operate, `{"cwd":"/tmp"}`, queue.ErrDenied}, {"submitter", control.Operate, `{"env":{"LD_PRELOAD":"x"}}`, queue.ErrDenied},
		{"submitter", control.Operate, `{"shell":"sh"}`, queue.ErrDenied}, {"submitter", control.Operate, `{"stdin":"x"}`, queue.ErrDenied},
		{"submitter", control.Operate, `{"stdin_file":"/x"}`, queue.ErrDenied}, {"submitter", control.Operate, `{"umask":"000"}`, queue.ErrDenied},
		{"submitter", control.Admin, `{"command":"id"}`, nil}, {"service", control.Operate, `{"command":"id"}`, nil},
		{"fixed:daemon", control.Operate, `{"command":"id"}`, queue.ErrDenied}, {"fixed:daemon", control.Operate, `{"priority":1}`, nil}, {"fixed:daemon", control.Admin, `{"command":"id"}`, nil},
		{"service", control.Operate, `{"env":{"A":"***"}}`, queue.ErrInvalid}, {"service", control.Operate, `{"env":{"A":"x"}}`, nil},
	} {
		s := set(t, "run_as", c.runAs)
		p := peer(61300, c.right)
		e, err := s.editing(p, json.RawMessage(c.set))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.mayEdit(p, &e, theirs); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s by %s with %s: got %v, want %v", c.set, c.right, c.runAs, err, c.want)
		}
		if err := s.mayEdit(p, &e, named); !errors.Is(err, c.want) && c.want == queue.ErrDenied {
			t.Errorf("%s by %s with %s, of one's own job that names another user: got %v, want %v", c.set, c.right, c.runAs, err, c.want)
		}
		if err := s.mayEdit(peer(61301, control.Submit), &e, theirs); err != nil {
			t.Errorf("%s of one's own job: %v", c.set, err)
		}
	}
}

// The socket may be as open as the settings, or its unit, have it, and no more.
func TestDoctorKnowsTheSocketsMode(t *testing.T) {
	p := config.In(t.TempDir())
	if err := errors.Join(os.WriteFile(p.Socket, nil, 0o600), os.Chmod(p.Socket, 0o660)); err != nil {
		t.Fatal(err)
	}
	for wanted, found := range map[fs.FileMode]int{0o600: 1, 0o660: 0, 0o666: 0, 0o777: 0} {
		if list := examinePlaces(p, wanted); len(list) != found {
			t.Errorf("a socket of mode 660 that is to have %o: %+v", wanted, list)
		}
	}
}
