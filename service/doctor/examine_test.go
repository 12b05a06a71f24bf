package doctor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/worker"
)

// fakeStore is a store whose checks return the findings and errors in its fields. It implements store.Maintainer, which
// only a store in files implements.
type fakeStore struct {
	store.Store
	store.Maintainer
	quickFindings, thoroughFindings            []store.Finding
	verifyErr                                  error
	diskSpaceErr, slowCommitErr, checkpointErr error
	verifyCount                                int // number of calls of VerifyData
}

func (s *fakeStore) Examine(context.Context) []store.Finding { return s.quickFindings }
func (s *fakeStore) DiskSpaceError() error                   { return s.diskSpaceErr }
func (s *fakeStore) SlowCommitError() error                  { return s.slowCommitErr }
func (s *fakeStore) CheckpointError() error                  { return s.checkpointErr }

// VerifyData implements store.Maintainer.
func (s *fakeStore) VerifyData(_ context.Context, _ store.OutputDirs, reportProgress func(done, total int64) error) (
	[]store.Finding, error) {
	s.verifyCount++
	return s.thoroughFindings, errors.Join(s.verifyErr, reportProgress(1, 2))
}

// newExaminer returns an Examiner for a service whose queue is in s. The service has no workers and runs no
// jobs.
func newExaminer(t *testing.T, s *fakeStore) *Examiner {
	t.Helper()
	s.Store = memstore.New(queue.RankPolicy{})
	k, err := settings.New(settings.Options{FlagValues: map[string]string{"workers": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	log, d, home := slog.New(slog.DiscardHandler), &access.UserDirectory{}, runner.RunnersLocation{RunnersDir: t.TempDir()}
	pool := worker.New(s.Store, worker.Config{RunnerLocation: home, Log: log, StoreTime: s.Store.Now,
		RetryPolicy: func() queue.RetryPolicy { return k.CurrentConfig().RetryPolicy() }}, 0)
	owners := access.NewOwners(s.Store, nil, d, worker.Account{})
	rights := &access.Rights{UserDirectory: d, Settings: k}
	rights.ResolveAccessSettings()
	nodes := &cluster.NodeRegistry{Store: s.Store, Settings: k, Pool: pool}
	drains := &cluster.DrainState{}
	return &Examiner{
		Dependencies: &parts.Dependencies{
			ServiceInfo: parts.ServiceInfo{Version: "1", Paths: config.Paths{StateDir: t.TempDir()}},
			CoreParts: parts.CoreParts{
				UserLimits: control.NewUserLimits(), StoreMaintainer: s, RunnerLocation: home, Pool: pool, Store: s,
				OutputFiles: &cluster.OutputFiles{RunnerLocation: home},
			},
			SettingsParts: parts.SettingsParts{
				PauseOfAllJobs: &settings.PauseOfAllJobs{}, Settings: k, UserQuota: &settings.UserQuota{Store: s, Settings: k},
				QueueRules: &settings.QueueRules{Store: s, Settings: k},
			},
			AccessParts: parts.AccessParts{Owners: owners, Rights: rights},
			NodeParts: parts.NodeParts{
				NodeRegistry: nodes, DrainState: drains,
				NodeLeaseKeeper: cluster.NewNodeLeaseKeeper(log, &cluster.Drainer{Pool: pool, DrainState: drains}, nodes),
			},
			ExamineStateDir: func(string) []store.Finding { return nil },
		},
	}
}

// diagnose runs the Examiner, and returns the level of the diagnosis and the findings of one check.
func diagnose(t *testing.T, d *Examiner, verifyData bool, checkName string) (level string, findings []control.Finding) {
	t.Helper()
	got, err := d.RunDoctor(t.Context(), control.DoctorParams{VerifyDatabase: verifyData},
		func(control.DoctorProgress) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return got.WorstLevel,
		slices.DeleteFunc(got.Findings, func(f control.Finding) bool { return f.CheckName != checkName })
}

// The level of a diagnosis is that of its worst finding. Equal findings appear once.
func TestDiagnosisLevelIsWorstFindingLevel(t *testing.T) {
	ok, warning, failure := store.Finding{CheckName: "a", Level: store.LevelOK, Message: "fine"},
		store.Finding{CheckName: "b", Level: store.LevelWarning, Message: "odd", Advice: "look"},
		store.Finding{CheckName: "b", Level: store.LevelFailure, Message: "broken"}
	for _, c := range []struct {
		list  []store.Finding
		level store.FindingLevel
		count int
	}{
		{nil, store.LevelOK, 0}, {[]store.Finding{ok}, store.LevelOK, 1},
		{[]store.Finding{warning, ok}, store.LevelWarning, 2}, {[]store.Finding{failure, warning, ok}, store.LevelFailure, 3},
		{[]store.Finding{warning, failure, warning, ok, ok}, store.LevelFailure, 3},
	} {
		if d := SummarizeFindings(c.list); d.WorstLevel != string(c.level) || len(d.Findings) != c.count {
			t.Errorf("%+v: got the level %s and %+v, want %s and %d findings", c.list, d.WorstLevel, d.Findings, c.level,
				c.count)
		}
	}
	want := control.Finding{CheckName: "b", Level: "warning", Message: "odd", Advice: "look"}
	if got := SummarizeFindings([]store.Finding{warning}).Findings[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A diagnosis contains the findings of the store's quick check. If the user requests a check of all data, the diagnosis
// also contains the findings of that check. A finding that both checks return appears once.
func TestDoctorReportsStoreCheckFindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{quickFindings: []store.Finding{{CheckName: "data", Level: store.LevelWarning, Message: "one"}},
			thoroughFindings: []store.Finding{{CheckName: "data", Level: store.LevelWarning, Message: "one"},
				{CheckName: "data", Level: store.LevelFailure, Message: "two"}}}
		d := newExaminer(t, s)
		if _, list := diagnose(t, d, false, "data"); len(list) != 1 || s.verifyCount != 0 {
			t.Errorf("the quick check found %+v", list)
		}
		if level, list := diagnose(t, d, true, "data"); len(list) != 2 || s.verifyCount != 1 || level != "failure" {
			t.Errorf("the thorough check found %+v and the level %s", list, level)
		}
	})
}

// If the store cannot check all its data now, the diagnosis says so and still contains the findings of the
// other checks. If the disk does not respond, the check of all data is not tried.
func TestDoctorReportsUnavailableStoreCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{quickFindings: []store.Finding{{CheckName: "data", Level: store.LevelOK, Message: "one"}},
			verifyErr: queue.Errorf(queue.CodeNoSpace, "the disk is full")}
		d := newExaminer(t, s)
		_, list := diagnose(t, d, true, "integrity")
		if len(list) != 1 || list[0].Level != "warning" || list[0].Message != "the queue was not checked: the disk is full" {
			t.Errorf("got %+v, want a warning", list)
		}
		s.slowCommitErr = errors.New("a commit takes 20s")
		if _, list := diagnose(t, d, true, "integrity"); len(list) != 0 || s.verifyCount != 1 {
			t.Errorf("on a slow disk: got %+v after %d checks", list, s.verifyCount)
		}
		s.slowCommitErr, s.verifyErr = nil, errors.New("broken")
		if _, err := d.RunDoctor(t.Context(), control.DoctorParams{VerifyDatabase: true},
			func(control.DoctorProgress) error { return nil }); err == nil {
			t.Error("the check drops another error")
		}
	})
}

// A queue on a server has no files to check. Its state directory is checked instead.
func TestDoctorChecksStateDirOfServerQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newExaminer(t, &fakeStore{})
		d.StoreMaintainer = nil
		d.ExamineStateDir = func(string) []store.Finding { return []store.Finding{{CheckName: "dir", Level: store.LevelOK}} }
		if _, list := diagnose(t, d, false, "dir"); len(list) != 1 {
			t.Errorf("got %+v, want the finding about the directory", list)
		}
		if _, err := d.RunDoctor(t.Context(), control.DoctorParams{VerifyDatabase: true}, nil); !errors.Is(err,
			queue.ErrUnsupported) {
			t.Errorf("a check of files that do not exist: got %v", err)
		}
	})
}

// All problems that a status shows appear as one finding. The finding is a failure if the queue cannot work at
// all.
func TestDoctorReportsStatusProblemsAsOneFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{checkpointErr: errors.New("the log grows")}
		d := newExaminer(t, s)
		d.Pool.SetDraining(true)
		_, list := diagnose(t, d, false, "work")
		if len(list) != 1 || list[0].Level != "warning" || !strings.HasPrefix(list[0].Message, "the log grows; ") ||
			!strings.Contains(list[0].Message, "the service is draining") || list[0].Advice != "see: queuectl status" {
			t.Errorf("got %+v, want one warning", list)
		}
		s.diskSpaceErr = errors.New("no space")
		if _, list = diagnose(t, d, false, "work"); len(list) != 1 || list[0].Level != "failure" ||
			!strings.HasPrefix(list[0].Message, "no space; the log grows; ") {
			t.Errorf("without space: got %+v, want one failure", list)
		}
	})
}

// A diagnosis contains findings about each part of the service.
func TestDoctorReportsFindingsOfEachPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		program := filepath.Join(t.TempDir(), "queuectld")
		if err := os.WriteFile(program, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		d := newExaminer(t, &fakeStore{})
		d.ProgramFiles = ProgramFiles(program)
		d.InheritedRestrictions = []string{"the umask is 077"}
		d.StartAtBootAdvice = func() string { return "queuectl service install" }
		for check, want := range map[string]string{"program": "ok", "start": "warning", "boot": "warning", "runner": "ok"} {
			if _, list := diagnose(t, d, false, check); len(list) != 1 || list[0].Level != want {
				t.Errorf("%s: got %+v, want one finding with the level %s", check, list, want)
			}
		}
		if err := os.Remove(program); err != nil {
			t.Fatal(err)
		}
		if _, list := diagnose(t, d, false, "program"); len(list) != 1 || list[0].Level != "failure" {
			t.Errorf("without its program: got %+v, want one failure", list)
		}
	})
}

// The health text begins with the worst level, and lists at most maxListedProblems problems.
func TestHealthTextIsOneBoundedLine(t *testing.T) {
	many := make([]string, maxListedProblems+2)
	for i := range many {
		many[i] = "p"
	}
	for _, c := range []struct {
		problems []string
		failing  bool
		want     string
	}{
		{nil, false, "ok"}, {[]string{"a", "b"}, false, "degraded: a; b"}, {[]string{"a"}, true, "failing: a"},
		{many, false, "degraded: " + strings.Repeat("p; ", maxListedProblems) + "and 2 more"},
	} {
		if got := HealthText(c.problems, c.failing); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
