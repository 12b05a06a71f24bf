package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/session"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/daemon"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/test/pgserver"
)

// runnerArg is the argument that makes this test binary act as a runner.
const runnerArg = "runner-of-a-test"

// init makes this process a runner if its first argument is runnerArg.
func init() {
	if len(os.Args) > 1 && os.Args[1] == runnerArg {
		if err := serveRunner(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serveRunner runs this process as a runner, as cmd/queuectl does.
func serveRunner(args []string) error {
	dir, alone, watchdog := "", false, false
	for i, word := range args {
		switch word {
		case "--dir":
			dir = args[i+1]
		case "--alone":
			alone = true
		case "--watchdog":
			watchdog = true
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, os.Interrupt)
	if watchdog {
		return launcher.RunWatchdog(dir)
	}
	if err := process.PrepareToRunCommands(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return daemon.Serve(ctx, daemon.Options{
		RunnerSettings: launcher.RunnerSettings{RunnersDir: dir, ServesOneIsolatedJob: alone, ServiceUID: os.Geteuid()},
		OnReady:        runner.ReportReady, Version: "test",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), WatchdogCommand: []string{os.Args[0], runnerArg, "--watchdog"},
	})
}

// runningService is a running service with its socket, runner and jobs.
type runningService struct {
	testing.TB
	*control.Client
	paths                 config.Paths
	openStore             storeOpener
	concurrencyLimitCalls atomic.Int64            // number of calls of Options.OnConcurrencyLimit
	cancelSession         context.CancelCauseFunc // stops the service; the cause may be the end of the user's session
	requestServiceStop    context.CancelFunc      // requests a stop
	stopEndsJobs          bool                    // stopping the service ends its jobs
	runResult             chan error              // receives the error that Run has returned
}

// start starts the service and returns once it answers.
func (w *runningService) start() {
	w.Helper()
	w.startWithRetries(500)
}

// startWithRetries starts the service. If another process still holds the lock or the socket, it tries again,
// up to maxRetries times.
func (w *runningService) startWithRetries(maxRetries int) {
	w.Helper()
	log, err := os.Create(filepath.Join(w.TempDir(), "log"))
	if err != nil {
		w.Fatal(err)
	}
	sessionCtx, stop := context.WithCancelCause(context.Background())
	ctx, halt := context.WithCancel(session.MarkSessionContext(sessionCtx))
	w.cancelSession, w.requestServiceStop, w.runResult = stop, halt, make(chan error, 1)
	ready := make(chan struct{})
	o := Options{
		Paths: w.paths, FlagSettings: map[string]string{"workers": "4", "run_as": config.RunAsService},
		KeepJobsOnStop: !w.stopEndsJobs,
		Version:        "test",
		RunnerCommand:  []string{os.Args[0], runnerArg}, LogFile: log, OnReady: func() { close(ready) },
		openLocalStore:     w.openStore,
		OnConcurrencyLimit: func() { w.concurrencyLimitCalls.Add(1) },
	}
	go func() { w.runResult <- Run(ctx, o, nil) }() // this goroutine ends with the service
	select {
	case <-ready:
	case err := <-w.runResult:
		// Retry: a child process that another test is starting may still hold the lock or the socket until its exec.
		if maxRetries > 0 && (errors.Is(err, queue.ErrWrongState) || err != nil &&
			strings.Contains(err.Error(), "another process already listens there")) {
			time.Sleep(20 * time.Millisecond)
			w.startWithRetries(maxRetries - 1)
			return
		}
		w.runResult <- nil // shutDown waits for a value in this channel
		said, _ := os.ReadFile(log.Name())
		w.Fatalf("it ended: %v\n%s", err, said)
	case <-time.After(20 * time.Second):
		w.Fatal("it does not start")
	}
	w.Client = control.NewClient(w.paths.SocketPath)
}

// shutDown stops the service. If stopEndsJobs is false, the jobs continue to run.
func (w *runningService) shutDown() {
	w.Helper()
	w.Client.Close()
	w.cancelSession(nil)
	if err := <-w.runResult; err != nil {
		w.Error(err)
	}
}

// endRunners ends the runners that the service left running. It retries, because a child process that another test is
// starting may hold the lock of the directory until its exec.
func (w *runningService) endRunners() {
	w.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		_, err := EndRunners(w.paths, "")
		if err == nil {
			return
		}
		if !errors.Is(err, queue.ErrWrongState) || time.Now().After(end) {
			w.Error(err)
			return
		}
	}
}

// storeIgnoringClose is a store that ignores Close, so that the next service can use it again.
type storeIgnoringClose struct{ store.Store }

// Close does nothing.
func (storeIgnoringClose) Close() error { return nil }

// forEachStore runs a test against a running service with each kind of store: SQLite, a database server, and a store in
// memory. The store in memory does no more than the interface promises. So it shows that the service needs no more than
// that.
func forEachStore(t *testing.T, test func(w *runningService)) {
	for name, open := range map[string]storeOpener{
		"engine": openSQLiteStore,
		"server": nil, // replaced by the database server of the tests, if PostgreSQL is installed
		"model": func() storeOpener {
			model := memstore.New(queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
				AgingInterval: time.Minute})
			return func(_ context.Context, _ string, _ *slog.Logger,
				orderOf func([]store.Setting) (queue.RankPolicy, error)) (store.Store, error) {
				settings, err := model.Settings(context.Background())
				if err != nil {
					return nil, err
				}
				order, err := orderOf(settings)
				if err != nil {
					return nil, err
				}
				return storeIgnoringClose{model}, model.SetRankOrder(context.Background(), order)
			}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if open == nil {
				open = postgresOpener(pgserver.SharedServer(t).CreateDatabase(t), nodeIdentity{NodeName: "one", StateDirID: "one"})
			}
			dir, err := os.MkdirTemp("", "qw")
			if err != nil {
				t.Fatal(err)
			}
			w := &runningService{TB: t, paths: config.PathsInDir(dir), openStore: open}
			w.start()
			t.Cleanup(func() {
				w.shutDown()
				w.endRunners()
				os.RemoveAll(dir)
			})
			test(w)
		})
	}
}

// commandSpec returns the spec of a job without retries.
func commandSpec(id, command string) queue.Spec {
	none := int64(0)
	return queue.Spec{ID: &id, Command: &command, MaxRetries: &none}
}

// enqueue enqueues a job.
func (w *runningService) enqueue(s queue.Spec) {
	w.Helper()
	if _, err := w.Enqueue(w.Context(), control.EnqueueParams{JobSpec: s}); err != nil {
		w.Fatal(err)
	}
}

// waitForEndedJobs waits for jobs to end and returns their states.
func (w *runningService) waitForEndedJobs(ids ...string) map[string]string {
	w.Helper()
	how := map[string]string{}
	got, err := w.WaitForJobs(w.Context(), control.JobWaitParams{IDs: ids, MaxWait: control.Duration(20 * time.Second)},
		func(e control.JobEndNotice) error {
			how[e.Job.ID] = e.Job.State
			return nil
		})
	if err != nil || got.TimedOut {
		w.Fatalf("%v: %+v, %v", ids, got, err)
	}
	return how
}

// waitForState waits until a job is in a state, and returns the job.
func (w *runningService) waitForState(id, state string) control.JobDetail {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		j, err := w.ShowJob(w.Context(), control.JobShowParams{ID: control.JobID(id)})
		if err == nil && j.State == state {
			return j
		}
		if err != nil || time.Now().After(end) {
			w.Fatalf("job %s is %s, want %s: %v", id, j.State, state, err)
		}
	}
}

// applyToJob calls a bulk method of the client, such as CancelJobs, for one job.
func (w *runningService) applyToJob(bulkMethod func(context.Context, control.JobSelection) (control.BulkResult, error),
	id string) {
	w.Helper()
	got, err := bulkMethod(w.Context(), control.JobSelection{IDs: control.JobIDs{id}})
	if err != nil || len(got.ChangedJobIDs) != 1 {
		w.Fatalf("%s: %+v, %v", id, got, err)
	}
}

// With any store, jobs run, print, fail and are retried. Dead jobs can be retried by a user.
func TestServiceRunsJobs(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		w.enqueue(commandSpec("good", "echo one; echo two >&2"))
		bad := commandSpec("bad", "echo tried; exit 3")
		one, wait := int64(1), 0.01
		bad.MaxRetries, bad.BackoffBase = &one, &wait
		w.enqueue(bad)
		if got := w.waitForEndedJobs("good", "bad"); got["good"] != "completed" || got["bad"] != "dead" {
			w.Fatalf("got %v", got)
		}
		said := map[string]string{}
		if _, err := w.StreamOutput(ctx, control.JobOutputParams{ID: "good"},
			func(p control.OutputPiece) error { said[p.Stream] += string(p.Bytes()); return nil }); err != nil ||
			said["stdout"] != "one\n" || said["stderr"] != "two\n" {
			w.Errorf("it said %q, %v", said, err)
		}
		j := w.waitForState("bad", "dead")
		if len(j.History) != 2 || j.AttemptCount != 2 || *j.ExitCode != 3 {
			w.Errorf("its history: %+v", j)
		}
		if page, err := w.ListDeadJobs(ctx, control.DeadJobListParams{}); err != nil || len(page.Jobs) != 1 {
			w.Errorf("dead jobs: %+v, %v", page, err)
		}
		if got, err := w.RetryDeadJobs(ctx, control.DeadJobRetryParams{AllDeadJobs: true}); err != nil ||
			len(got.ChangedJobIDs) != 1 {
			w.Errorf("retried: %+v, %v", got, err)
		}
		w.waitForEndedJobs("bad")
		if j := w.waitForState("bad", "dead"); len(j.History) != 4 {
			w.Errorf("%d attempts, want 4", len(j.History))
		}
		var kinds []string
		zero := int64(0)
		if _, err := w.StreamEvents(ctx, control.EventsParams{AfterSeq: &zero, JobIDs: control.JobIDs{"good"}},
			func(e control.Event) error { kinds = append(kinds, e.Kind); return nil }); err != nil {
			w.Fatal(err)
		}
		// Ignore started events: a job that runs for some milliseconds may or may not have one.
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "started" })
		if !slices.Equal(kinds, []string{"enqueued", "ended"}) {
			w.Errorf("events: %v", kinds)
		}
		st, err := w.Status(ctx, control.NoParams{})
		if err != nil || st.Jobs["completed"] != 1 || st.Jobs["dead"] != 1 || st.JobsEverEnqueued != 2 ||
			st.Workers.Total != 4 {
			w.Errorf("status: %+v, %v", st, err)
		}
	})
}

// With any store, waiting jobs can be held, released, edited, cancelled and removed, and running jobs can be
// cancelled, requeued and signalled.
func TestServiceAppliesJobOperations(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		later := time.Hour
		for _, id := range []string{"held", "cancelled", "removed"} {
			s := commandSpec(id, "echo "+id)
			s.Delay = &later
			w.enqueue(s)
		}
		w.applyToJob(w.HoldJobs, "held")
		w.waitForState("held", "held")
		w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return w.EditJobs(ctx, control.JobEditParams{JobSelection: s,
				FieldsToSet: []byte(`{"delay": 0, "command": "echo changed"}`)})
		}, "held")
		w.applyToJob(w.ReleaseJobs, "held")
		w.waitForEndedJobs("held")
		if j := w.waitForState("held", "completed"); j.StdoutTail != "changed\n" {
			w.Errorf("it said %q", j.StdoutTail)
		}
		w.applyToJob(w.CancelJobs, "cancelled")
		w.waitForState("cancelled", "cancelled")
		w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return w.RetryJobs(ctx, control.JobRetryParams{JobSelection: s})
		}, "cancelled")
		w.waitForEndedJobs("cancelled")
		w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return w.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: s})
		}, "removed")
		if _, err := w.ShowJob(ctx, control.JobShowParams{ID: "removed"}); !errors.Is(err, queue.ErrNotFound) {
			w.Errorf("shown: %v", err)
		}

		for _, id := range []string{"ended", "again", "signalled"} {
			w.enqueue(commandSpec(id, "echo begun; sleep 60"))
			w.waitForState(id, "processing")
		}
		w.applyToJob(w.CancelJobs, "ended")
		w.waitForState("ended", "cancelled")
		w.applyToJob(w.RequeueJobs, "again")
		if j := w.waitForState("again", "processing"); j.AttemptCount != 0 {
			w.Errorf("%d attempts count", j.AttemptCount)
		}
		w.applyToJob(func(ctx context.Context, s control.JobSelection) (control.BulkResult, error) {
			return w.KillJobs(ctx, control.JobKillParams{JobSelection: s, Signal: "KILL"})
		}, "signalled")
		if j := w.waitForState("signalled", "dead"); j.Signal == nil || *j.Signal != 9 {
			w.Errorf("its signal: %+v", j.Signal)
		}
		w.applyToJob(w.CancelJobs, "again")
		w.waitForState("again", "cancelled")
		if got, err := w.RemoveNonRunningJobs(ctx, control.JobClearParams{Confirmed: true}); err != nil ||
			got.RemovedJobs != 5 {
			w.Errorf("cleared: %+v, %v", got, err)
		}
	})
}

// With any store, a batch of several requests is enqueued completely or not at all, lists are divided into
// pages, and old jobs can be cleaned up.
func TestServiceEnqueuesBatches(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		if _, err := w.ScaleWorkers(ctx, control.WorkerScaleParams{}); err != nil {
			w.Fatal(err)
		}
		part := func(from, n int) (list []queue.Spec) {
			for i := range n {
				s := commandSpec(fmt.Sprintf("j%d", from+i), "true")
				s.Labels = map[string]string{"part": fmt.Sprint(from)}
				list = append(list, s)
			}
			return list
		}
		for i, p := range []control.EnqueueBatchParams{{BatchName: "b", Jobs: part(0, 900)},
			{BatchName: "b", Jobs: part(900, 300), Commit: true, IdempotencyKey: "k"},
			{Jobs: part(5000, 1), Commit: true, IdempotencyKey: "other"}} {
			if i == 1 {
				if page, err := w.ListJobs(ctx, control.JobListParams{}); err != nil || len(page.Jobs) != 0 {
					w.Fatalf("before the last part: %d jobs, %v", len(page.Jobs), err)
				}
			}
			if _, err := w.EnqueueBatch(ctx, p); err != nil {
				w.Fatal(err)
			}
		}
		seen, cursor := map[string]bool{}, ""
		for more := true; more; {
			page, err := w.ListJobs(ctx, control.JobListParams{Cursor: cursor, PageSize: 500})
			if err != nil {
				w.Fatal(err)
			}
			for _, j := range page.Jobs {
				seen[j.ID] = true
			}
			if more = page.NextCursor != nil; more {
				cursor = *page.NextCursor
			}
		}
		if len(seen) != 1201 {
			w.Errorf("%d jobs are listed, want 1201", len(seen))
		}
		if page, err := w.ListJobs(ctx, control.JobListParams{WithLabels: control.Labels{"part": "900"}}); err != nil ||
			len(page.Jobs) != 300 {
			w.Errorf("by label: %d jobs, %v", len(page.Jobs), err)
		}
		if again, err := w.EnqueueBatch(ctx, control.EnqueueBatchParams{Jobs: part(5000, 1), Commit: true,
			IdempotencyKey: "other"}); err != nil || !again.AlreadyExisted {
			w.Errorf("the same request again: %+v, %v", again, err)
		}
		if _, err := w.ScaleWorkers(ctx, control.WorkerScaleParams{TargetWorkers: 4}); err != nil {
			w.Fatal(err)
		}
		ids := slices.Sorted(maps.Keys(seen))
		for step := range slices.Chunk(ids, control.MaxWaitOrFollowJobIDs) {
			w.waitForEndedJobs(step...)
		}
		none := 0.0
		got, err := w.Client.RemoveOldJobs(ctx, control.CleanupParams{MinAgeDays: &none},
			func(control.RemovalCount) error { return nil })
		// One job may remain: it may have ended in the current millisecond, and so is not older than the age limit.
		if err != nil || got.RemovedJobs < 1200 {
			w.Errorf("cleaned up: %+v, %v", got, err)
		}
	})
}

// With any store, running jobs continue while the service is stopped, and the next service gets their results. The next
// service also keeps the settings and the number of workers.
func TestServiceAdoptsJobsOfItsPredecessor(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		gate := filepath.Join(w.TempDir(), "gate")
		w.enqueue(commandSpec("long", "echo begun; until [ -e "+gate+" ]; do sleep 0.02; done; exit 7"))
		before := w.waitForState("long", "processing")
		if v, err := w.ChangeSetting(ctx, control.ConfigSetParams{SettingName: "priority", Value: "7"}); err != nil ||
			v.Origin != "stored" {
			w.Fatalf("set: %+v, %v", v, err)
		}
		w.shutDown()
		w.start()
		if v, err := w.ReadSetting(ctx, control.SettingNameParams{SettingName: "priority"}); err != nil || v.Value != "7" {
			w.Errorf("the setting: %+v, %v", v, err)
		}
		if after := w.waitForState("long", "processing"); *after.PID != *before.PID {
			w.Errorf("its pid was %d, is %d", *before.PID, *after.PID)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			w.Fatal(err)
		}
		w.waitForEndedJobs("long")
		if j := w.waitForState("long", "dead"); *j.ExitCode != 7 || j.AttemptCount != 1 || j.StdoutTail != "begun\n" {
			w.Errorf("it ended so: %+v", j)
		}
	})
}

// Operations that need a store in files, such as a backup, succeed with SQLite and fail with other stores.
func TestServiceDetectsStoreCapabilities(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		files := strings.HasSuffix(w.Name(), "engine")
		// The database server of the tests does not sync to disk, and doctor reports that.
		unsafe := strings.HasSuffix(w.Name(), "server")
		bytes := int64(0)
		end, err := w.StreamBackup(ctx, control.NoParams{},
			func(p control.BackupPiece) error { bytes += int64(len(p.Content)); return nil })
		if files && (err != nil || end.TotalBytes != bytes || bytes == 0) || !files && !errors.Is(err, queue.ErrUnsupported) {
			w.Errorf("backup: %d bytes, %+v, %v", bytes, end, err)
		}
		for _, verify := range []bool{false, true} {
			found, err := w.RunDoctor(ctx, control.DoctorParams{VerifyDatabase: verify},
				func(control.DoctorProgress) error { return nil })
			if refused := verify && !files; refused != errors.Is(err, queue.ErrUnsupported) || !refused &&
				(err != nil || found.WorstLevel == "failure" && !unsafe) {
				w.Errorf("doctor, verify %v: %+v, %v", verify, found, err)
			}
		}
	})
}
