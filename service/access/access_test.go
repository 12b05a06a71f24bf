package access

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/worker"
)

// Uids that belong to no account.
const (
	ownerUID    = 61300
	strangerUID = 61301
)

// newGuard returns a guard of an empty queue, with the given settings.
func newGuard(t *testing.T, settingValues map[string]string) *Guard {
	t.Helper()
	k, err := settings.New(settings.Options{})
	if err == nil {
		err = k.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: settingValues})
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &UserDirectory{}
	rights := &Rights{Paths: config.Paths{SettingsFile: "/etc/q.toml"}, UserDirectory: d, Settings: k}
	rights.ResolveAccessSettings()
	s := memstore.New(queue.RankPolicy{})
	return &Guard{Owners: NewOwners(s, nil, d, worker.Account{}), Rights: rights}
}

// checkAccessError checks err. If wantAllowed is true, err must be nil. Otherwise err must say that a right is missing.
func checkAccessError(t *testing.T, caseName string, err error, wantAllowed bool) {
	t.Helper()
	if wantAllowed && err != nil || !wantAllowed && !errors.Is(err, queue.ErrDenied) {
		t.Errorf("%s: got %v, want allowed %t", caseName, err, wantAllowed)
	}
}

// What a peer may do with a job depends on the method, the right of the peer, and the owner of the job. Only
// admins may act on the jobs of former accounts.
func TestJobActionsDependOnRightAndOwner(t *testing.T) {
	g := newGuard(t, nil)
	for _, c := range []struct {
		method    string
		job, peer int
		// weakest is the weakest right that allows the method. tooWeak is the strongest right that does not allow it.
		weakest, tooWeak control.Right
	}{
		{"cancel", ownerUID, ownerUID, control.RightSubmit, control.RightRead},
		{"cancel", ownerUID, strangerUID, control.RightOperate, control.RightSubmit},
		{"cancel", -2, ownerUID, control.RightAdmin, control.RightOperate},
		{"edit", ownerUID, strangerUID, control.RightOperate, control.RightSubmit},
		{"logs", ownerUID, ownerUID, control.RightSubmit, control.RightRead},
		{"logs", ownerUID, strangerUID, control.RightOperate, control.RightSubmit},
		{"attach", ownerUID, ownerUID, control.RightSubmit, control.RightRead},
		{"attach", ownerUID, strangerUID, control.RightAdmin, control.RightOperate},
		{"show", ownerUID, strangerUID, control.RightRead, control.RightNone},
		{"clear", ownerUID, ownerUID, control.RightOperate, control.RightSubmit},
		{"no.such", ownerUID, ownerUID, "", control.RightAdmin},
	} {
		j := &queue.Job{ID: "j", UID: c.job}
		for _, right := range append([]control.Right{control.RightNone}, control.GrantableRights()...) {
			p := &control.Peer{UID: c.peer, Right: right}
			what := string(right) + " of uid: " + c.method
			switch {
			case c.weakest != "" && right.Covers(c.weakest):
				checkAccessError(t, what, g.CheckMayActOnObject(p, c.method, "job", j), true)
			case c.tooWeak.Covers(right):
				checkAccessError(t, what, g.CheckMayActOnObject(p, c.method, "job", j), false)
			default:
				t.Errorf("%s: the table has no row for %s", c.method, right)
			}
		}
	}
}

// Root and the service's own user have all rights. Other users have the rights that the settings give them.
// Anonymous clients of the web page have at most the right to read.
func TestUserRightsComeFromSettings(t *testing.T) {
	closed, open := newGuard(t, nil).Rights, newGuard(t, map[string]string{
		"web.anonymous": "read", "web.metrics_anonymous": "true"}).Rights
	for _, c := range []struct {
		who          string
		uid          int
		closed, open control.Right
	}{
		{"the service's user", accounts.CurrentUserID(), control.RightAdmin, control.RightAdmin},
		{"a user without a right", strangerUID, control.RightNone, control.RightNone},
		{"a client without a session", AnonymousUID, control.RightNone, control.RightRead},
		{"a client that reads the metrics", MetricsScraperUID, control.RightNone, control.RightRead},
	} {
		p := &control.Peer{UID: c.uid, GID: -1}
		if got := [2]control.Right{closed.CurrentRight(p), open.CurrentRight(p)}; got != [2]control.Right{c.closed, c.open} {
			t.Errorf("%s: got %v, want %v and %v", c.who, got, c.closed, c.open)
		}
	}
}

// Only operators, and the user that the hook runs for, can see the job of a hook in the settings. For all other users,
// the job seems not to exist.
func TestHiddenHookJobsLookMissing(t *testing.T) {
	g := newGuard(t, nil)
	hook := queue.Job{ID: "hook", UID: ownerUID, State: queue.Pending, ExitCode: -1, MaxAttempts: 1,
		Queue: queue.HookQueue, HookEvents: queue.HookJobFlag | queue.SettingsHookFlag,
		ExecutionSettings: queue.ExecutionSettings{Command: "true"}}
	if _, err := g.Owners.store.Enqueue(t.Context(), store.EnqueueRequest{UID: ownerUID,
		Drafts: []queue.Job{hook}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid   int
		right control.Right
		sees  bool
	}{
		{ownerUID, control.RightSubmit, true}, {strangerUID, control.RightSubmit, false},
		{strangerUID, control.RightOperate, true},
	} {
		p := &control.Peer{UID: c.uid, Right: c.right}
		_, err := g.GetVisibleJob(t.Context(), p, "hook")
		if c.sees != (err == nil) || MaySeeJobExists(p, hook.RestrictedToUID()) != c.sees || g.HidesJob(p, &hook) == c.sees {
			t.Errorf("uid %d with %s: got %v, want that it sees the hook: %t", c.uid, c.right, err, c.sees)
		}
		if !c.sees && (!errors.Is(err, queue.ErrNotFound) || err.Error() != queue.JobNotFoundError("hook").Error()) {
			t.Errorf("a hidden job: got %v, want the error about a missing job", err)
		}
	}
}

// If a user without the right "operate" selects jobs to change, only the user's own jobs are changed.
func TestSelectionsAreLimitedToOwnJobs(t *testing.T) {
	for right, own := range map[control.Right]bool{control.RightSubmit: true, control.RightOperate: false,
		control.RightAdmin: false} {
		uid := OwnerUIDFilter(&control.Peer{UID: ownerUID, Right: right}, "cancel")
		if (uid != nil) != own || own && *uid != ownerUID {
			t.Errorf("%s: limited to %v, want own jobs only: %t", right, uid, own)
		}
	}
}

// Only admins can change the user that a job runs as. With runners that run as root, only admins can change
// what another user's job executes. The text that is shown instead of a hidden value cannot be stored.
func TestOnlyAdminsEditExecutionOfOthersJobs(t *testing.T) {
	g := newGuard(t, nil)
	for _, c := range []struct {
		set     string
		root    bool // the jobs are started by runners that run as root
		peer    int
		right   control.Right
		allowed bool
	}{
		{`{"priority":1}`, true, strangerUID, control.RightOperate, true},
		{`{"command":"id"}`, true, ownerUID, control.RightSubmit, true},
		{`{"command":"id"}`, true, strangerUID, control.RightOperate, false},
		{`{"command":"id"}`, true, strangerUID, control.RightAdmin, true},
		{`{"command":"id"}`, false, strangerUID, control.RightOperate, true},
		{`{"env":{"A":"b"}}`, true, strangerUID, control.RightOperate, false},
		{`{"on_failed":"id"}`, true, strangerUID, control.RightOperate, false},
		{`{"user":null}`, false, ownerUID, control.RightSubmit, false},
		{`{"user":null}`, false, ownerUID, control.RightOperate, false},
		{`{"user":null}`, false, ownerUID, control.RightAdmin, true},
	} {
		r := &Guard{Owners: g.Owners, Rights: g.Rights}
		if c.root {
			r.RunnerLocation = runner.RunnersLocation{SpawnSocketPath: "/run/q/spawn.sock"}
		}
		p := &control.Peer{UID: c.peer, Right: c.right}
		scope, err := r.ParseEditScope(p, json.RawMessage(c.set))
		if err == nil {
			err = r.CheckMayEdit(p, &scope, &queue.Job{ID: "j", UID: ownerUID})
		}
		checkAccessError(t, c.set+" with "+string(c.right), err, c.allowed)
	}
	r := &Guard{Owners: g.Owners, Rights: g.Rights}
	p := &control.Peer{UID: strangerUID, Right: control.RightAdmin}
	scope, err := r.ParseEditScope(p, json.RawMessage(`{"env":{"A":"***"}}`))
	if err == nil {
		err = r.CheckMayEdit(p, &scope, &queue.Job{ID: "j", UID: ownerUID})
	}
	if !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("a hidden value: got %v, want an invalid field", err)
	}
}

// The audit record of an action names the peer that requested the action.
func TestAuditRecordNamesRequestingPeer(t *testing.T) {
	g := newGuard(t, nil)
	s := &auditRecordingStore{Store: g.Owners.store}
	g.Owners.store = s
	ctx := control.WithPeer(t.Context(), control.Peer{UID: ownerUID, PID: 7})
	err := g.RecordAudit(ctx, "kill", "SIGHUP", &queue.Job{Seq: 3, ID: "j"})
	want := store.AuditRecord{UID: ownerUID, PID: 7, Verb: "kill", Target: "SIGHUP", JobSeq: 3, JobID: "j"}
	if err != nil || len(s.auditRecords) != 1 || s.auditRecords[0] != want {
		t.Errorf("got %+v, %v, want %+v", s.auditRecords, err, want)
	}
}

// auditRecordingStore is a store that keeps the audit records in memory.
type auditRecordingStore struct {
	store.Store
	auditRecords []store.AuditRecord
}

// RecordAudit implements store.Store.
func (s *auditRecordingStore) RecordAudit(_ context.Context, a store.AuditRecord) error {
	s.auditRecords = append(s.auditRecords, a)
	return nil
}
