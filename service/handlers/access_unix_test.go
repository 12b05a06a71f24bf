//go:build unix

package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/store"
)

// supportsRunAs reports whether this system supports a value of the setting run_as.
func supportsRunAs(string) bool { return true }

// otherUserName returns the name of a user other than this process's user.
func otherUserName(*testing.T) string {
	if os.Geteuid() == 0 {
		return "daemon"
	}
	return "root"
}

// The names of users and groups in the settings access.* are resolved when the settings are read. Unknown names are
// reported. A user or group that is given as a number need not exist. A user with several rights gets the strongest
// one. Root and the service's own user always have all rights.
func TestAccessSettingNamesAreResolved(t *testing.T) {
	s := newTestAPIWithSettings(t, "access.read", "root daemon 61300 @61310 no.such.user", "access.submit",
		"61301 @no.such.group",
		"access.operate", "daemon", "access.admin", "none")
	daemon, ok := s.UserDirectory.UserID("daemon")
	if !ok {
		daemon = 61377 // this machine has no user named daemon, so use any uid
	}
	for _, c := range []struct {
		peer control.Peer
		want control.Right
	}{
		{control.Peer{UID: 61300}, control.RightRead}, {control.Peer{UID: 61301}, control.RightSubmit},
		{control.Peer{UID: 61302, Groups: []int{61310}}, control.RightRead},
		{control.Peer{UID: 61303}, control.RightNone}, {control.Peer{UID: os.Geteuid()}, control.RightAdmin},
		{control.Peer{}, control.RightAdmin},
	} {
		if got := s.Rights.CurrentRight(&c.peer); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.peer, got, c.want)
		}
	}
	if got := s.Rights.CurrentRight(&control.Peer{UID: daemon}); ok && got != control.RightOperate {
		t.Errorf("daemon: got %s, want the strongest", got)
	}
	for _, name := range []string{"no.such.user", "@no.such.group"} {
		if !strings.Contains(s.Rights.UnknownAccessNamesMessage(), name) {
			t.Errorf("%s is not reported: %s", name, s.Rights.UnknownAccessNamesMessage())
		}
	}
	if finding := s.ExamineAccessSettings(); len(finding) != 1 {
		t.Errorf("doctor finds %+v", finding)
	}
	if got := newTestAPIWithSettings(t, "access.read", "61300").Rights.UnknownAccessNamesMessage(); got != "" {
		t.Errorf("a number without a name: %s", got)
	}
}

// The error about a missing right names the required right and the user's right. It says how to get the required right:
// from a group that has it, or from an admin who edits the settings file.
func TestRefusalErrorExplainsMissingRight(t *testing.T) {
	s := newTestAPIWithSettings(t, "run_as", "submitter", "access.operate", "alice @ops")
	for _, c := range []struct {
		right, needs control.Right
		what, want   string
	}{
		{control.RightSubmit, control.RightOperate, "cancel on another user's job",
			`cancel on another user's job needs the right "operate", but you (61300) have "submit"; join the group ops, which has the right "operate", or ask an admin to grant it in the section [access] of /etc/q.toml`},
		{control.RightOperate, control.RightAdmin, "drain",
			`drain needs the right "admin", but you (61300) have "operate"; join the group queuectl-admin, which has the right "admin", or ask an admin to grant it in the section [access] of /etc/q.toml`},
		{control.RightNone, control.RightRead, "list", `you (61300) have no rights on this service, which belongs to ` +
			new(accounts.Resolver).UserName(os.Geteuid()) +
			`; members of the group queuectl have the right "submit"; join this group (sudo usermod -aG queuectl 61300, then log in again), or ask an admin to grant you a right in the section [access] of /etc/q.toml`},
	} {
		var e *queue.Error
		if err := s.Rights.MissingRightError(newPeer(61300, c.right), c.what, c.needs); !errors.As(err, &e) ||
			e.Code != queue.CodeDenied ||
			e.Message != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	own := newTestAPIWithSettings(t)
	if err := own.Rights.MissingRightError(newPeer(61300, control.RightNone), "",
		control.RightRead); !strings.Contains(err.Error(),
		"which belongs to "+new(accounts.Resolver).UserName(os.Geteuid())+
			"; ask an admin to grant you a right in the section [access]") {
		t.Errorf("for a user's own service: %v", err)
	}
}

// A job that names a user is stored and shown with that user's uid and name. Any other job is shown with the
// user who submitted it.
func TestJobsAreStoredWithTheirUser(t *testing.T) {
	s := newTestAPIWithSettings(t, "run_as", "submitter")
	a := newPeer(61300, control.RightAdmin)
	resolveUser := s.Guard.JobUserResolver(a)
	spec := queue.Spec{Command: new("true"), User: new("root")}
	j, err := s.buildJobDraft(&spec, s.Settings.CurrentConfig().JobDefaults(), "61300", resolveUser)
	if err != nil || j.RunAsUser != "root" || j.RunAsUID == nil || *j.RunAsUID != 0 {
		t.Fatalf("got %+v, %v", j, err)
	}
	if got := queue.SpecOfJob(&j).User; got == nil || *got != "root" {
		t.Error("the spec of the job names another user")
	}
	plain := queue.Spec{Command: new("true")}
	if j, err := s.buildJobDraft(&plain, s.Settings.CurrentConfig().JobDefaults(), "61300", resolveUser); err != nil ||
		j.RunAsUser != "61300" ||
		j.RunAsUID != nil || queue.SpecOfJob(&j).User != nil {
		t.Errorf("without a user: %+v, %v", j, err)
	}
	if err := j.Edit(json.RawMessage(`{"priority":7}`), s.Settings.CurrentConfig().JobDefaults()); err != nil ||
		j.RunAsUser != "root" ||
		j.RunAsUID == nil {
		t.Errorf("after an edit of another field: %+v, %v", j, err)
	}
	for set, want := range map[string]struct {
		as   *int
		name string
	}{`{"user":null}`: {nil, ""}, `{"user":"0"}`: {new(0), "root"}, `{"priority":8}`: {j.RunAsUID, "root"}} {
		e, err := s.Guard.ParseEditScope(a, json.RawMessage(set))
		if err != nil {
			t.Fatal(err)
		}
		edited := j
		if err := edited.Edit(json.RawMessage(set), s.Settings.CurrentConfig().JobDefaults()); err != nil {
			t.Fatal(err)
		}
		if e.ApplyUserChange(&edited); !reflect.DeepEqual(edited.RunAsUID, want.as) || edited.RunAsUser != want.name {
			t.Errorf("%s: got %v %q, want %v %q", set, edited.RunAsUID, edited.RunAsUser, want.as, want.name)
		}
	}
	if _, err := s.Guard.ParseEditScope(newPeer(0, control.RightOperate),
		json.RawMessage(`{"user":"root"}`)); !errors.Is(err,
		queue.ErrDenied) {
		t.Errorf("the user edited by an operator: %v", err)
	}
}

// Doctor warns if the socket's mode allows more access than the settings or the systemd unit define.
func TestDoctorWarnsOfPermissiveSocketMode(t *testing.T) {
	p := config.PathsInDir(t.TempDir())
	if err := errors.Join(os.Chmod(p.StateDir, 0o711), os.WriteFile(p.SocketPath, nil, 0o600),
		os.Chmod(p.SocketPath, 0o660)); err != nil {
		t.Fatal(err)
	}
	for wanted, found := range map[fs.FileMode]int{0o600: 1, 0o660: 0, 0o666: 0, 0o777: 0} {
		if list := doctor.ExaminePathPermissions(p, wanted); len(list) != found {
			t.Errorf("a socket of mode 660 that should have %o: %+v", wanted, list)
		}
	}
}

// If other accounts can list the state directory, doctor warns and suggests a stricter mode for the directory. With
// that mode, other accounts can still reach a socket in the directory if the mode of the socket allows it.
func TestDoctorWarnsOfListableStateDirectory(t *testing.T) {
	p := config.PathsInDir(filepath.Join(t.TempDir(), "a b"))
	if err := os.Mkdir(p.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, socket fs.FileMode
		advice      string // the mode in the advice; "" if there must be no warning
	}{
		{0o700, 0o600, ""}, {0o711, 0o600, ""}, {0o755, 0o600, "700"}, {0o750, 0o600, "700"}, {0o704, 0o600, "700"},
		{0o755, 0o666, "711"}, {0o750, 0o660, "710"}, {0o711, 0o666, ""},
	} {
		if err := errors.Join(os.WriteFile(p.SocketPath, nil, 0o600), os.Chmod(p.SocketPath, c.socket),
			os.Chmod(p.StateDir, c.dir)); err != nil {
			t.Fatal(err)
		}
		want := []store.Finding{{CheckName: "permissions", Level: store.LevelWarning,
			Message: fmt.Sprintf("other users can list %s (mode %o)", p.StateDir, c.dir), Advice: "run: chmod " + c.advice +
				" '" +
				p.StateDir + "'"}}
		if c.advice == "" {
			want = nil
		}
		if got := doctor.ExaminePathPermissions(p, c.socket); !reflect.DeepEqual(got, want) {
			t.Errorf("mode %o with a socket of mode %o: got %+v, want %+v", c.dir, c.socket, got, want)
		}
	}
}
