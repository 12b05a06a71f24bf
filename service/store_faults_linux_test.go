package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest/faultstore"
)

// startWithStoreHook returns a running service and its store. The store calls hook whenever one of its methods is
// called.
func startWithStoreHook(t *testing.T, hook faultstore.CallHook) (*runningService, *faultstore.Store) {
	dir, err := os.MkdirTemp("", "qw")
	if err != nil {
		t.Fatal(err)
	}
	var faultStore *faultstore.Store
	w := &runningService{TB: t, paths: config.PathsInDir(dir),
		openStore: func(ctx context.Context, dir string, log *slog.Logger,
			orderOf func([]store.Setting) (queue.RankPolicy, error)) (store.Store, error) {
			s, err := openSQLiteStore(ctx, dir, log, orderOf)
			faultStore = faultstore.New(s)
			faultStore.SetHook(hook)
			return faultStore, err
		}}
	w.start()
	t.Cleanup(func() {
		faultStore.SetHook(nil)
		w.shutDown()
		w.endRunners()
		os.RemoveAll(dir)
	})
	return w, faultStore
}

// If a user cancels or removes all running jobs, the service first selects the jobs and then changes them. A job that
// ends between these two steps is not changed, and causes no error.
func TestBulkChangeSkipsJobsEndedSinceSelection(t *testing.T) {
	t.Parallel()
	running := control.JobSelection{States: control.TextList{queue.Processing.String()}}
	for _, c := range []struct {
		name, exit, newState string
		verb                 func(*runningService) error
	}{
		{"cancel", "1", queue.Failed.String(), func(w *runningService) error {
			_, err := w.CancelJobs(t.Context(), running)
			return err
		}},
		{"remove", "0", queue.Completed.String(), func(w *runningService) error {
			_, err := w.RemoveJobs(t.Context(), control.JobRemoveParams{JobSelection: running, EndRunningJobs: true})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, calls := startWithStoreHook(t, nil)
			gate := filepath.Join(t.TempDir(), "gate")
			spec := commandSpec("a", "until [ -e "+gate+" ]; do sleep 0.01; done; exit "+c.exit)
			spec.BackoffBase, spec.MaxRetries = new(3600.0), new(int64(1))
			w.enqueue(spec)
			w.waitForState("a", queue.Processing.String())
			calls.SetHook(func(_ context.Context, call faultstore.Call) error {
				if call.MethodName != "ListJobRefs" || !call.HasSucceeded {
					return nil
				}
				calls.SetHook(nil)
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					t.Error(err)
				}
				w.waitForState("a", c.newState)
				for busy := true; busy; time.Sleep(time.Millisecond) { // wait until no worker has a job
					list, err := w.ListWorkers(t.Context(), control.NoParams{})
					busy = err == nil && slices.ContainsFunc(list.Workers, func(k control.Worker) bool { return k.Job != nil })
				}
				return nil
			})
			if err := c.verb(w); err != nil {
				t.Error(err)
			}
			w.waitForState("a", c.newState)
		})
	}
}

// The store receives the node's name. By default, this is the name of the host.
func TestStoreReceivesNodeName(t *testing.T) {
	t.Parallel()
	names := make(chan string, 10)
	startWithStoreHook(t, func(_ context.Context, c faultstore.Call) error {
		if n, is := c.FirstArg.(store.Node); is && !c.HasSucceeded {
			names <- n.Name
		}
		return nil
	})
	host, err := os.Hostname()
	if got := <-names; err != nil || got != host {
		t.Errorf("the node is called %q, and the host %q (%v)", got, host, err)
	}
}

// If the store is slow and fails every fifth call for a while, no job is lost and no job runs twice. Results
// are stored once the store works again. Clients get an error with the advice to try again.
func TestServiceOutlivesStoreFaults(t *testing.T) {
	t.Parallel()
	var callCount atomic.Uint64
	hook := func(_ context.Context, c faultstore.Call) error {
		n := callCount.Add(1) * 0x9e3779b97f4a7c15 >> 40
		if time.Sleep(time.Duration(n%4) * time.Millisecond); c.HasSucceeded || n%5 != 0 {
			return nil
		}
		return queue.Errorf(queue.CodeUnavailable, "refused on purpose; try again later")
	}
	w, calls := startWithStoreHook(t, nil)
	calls.SetHook(hook)
	ran := filepath.Join(t.TempDir(), "ran")
	retry := func(what string, do func() error) {
		t.Helper()
		for range 100 {
			err := do()
			if err == nil {
				return
			}
			if !errors.Is(err, queue.ErrUnavailable) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		t.Fatalf("%s is always refused", what)
	}
	var ids []string
	for i := range 40 {
		id := fmt.Sprint("j", i)
		ids = append(ids, id)
		retry("enqueue", func() error {
			_, err := w.Enqueue(t.Context(), control.EnqueueParams{JobSpec: commandSpec(id, "echo "+id+" >>"+ran),
				IdempotencyKey: id})
			return err
		})
	}
	for _, id := range ids {
		retry("wait", func() error {
			_, err := w.WaitForJobs(t.Context(), control.JobWaitParams{IDs: control.JobIDs{id},
				MaxWait: control.Duration(20 * time.Second)},
				func(e control.JobEndNotice) error {
					if e.Job.State != "completed" || e.Job.AttemptCount != 1 {
						t.Errorf("job %s is %s after %d attempts", id, e.Job.State, e.Job.AttemptCount)
					}
					return nil
				})
			return err
		})
	}
	raw, err := os.ReadFile(ran)
	lines := strings.Fields(string(raw))
	slices.Sort(lines)
	slices.Sort(ids)
	if err != nil || !slices.Equal(lines, ids) {
		t.Errorf("commands that ran: %v, %v", lines, err)
	}
}

// A requeue succeeds even if the job has already run again and ended before the request reads its state.
func TestRequeueSucceedsAfterJobEndedAgain(t *testing.T) {
	t.Parallel()
	w, calls := startWithStoreHook(t, nil)
	w.enqueue(commandSpec("a", "[ $QUEUECTL_ATTEMPT = 2 ] || sleep 600"))
	w.waitForState("a", queue.Processing.String())
	calls.SetHook(func(_ context.Context, call faultstore.Call) error {
		j, err := calls.Store.GetJob(t.Context(), "a")
		if call.MethodName == "GetJob" && (err != nil || j.StartedAttempts > 0) {
			calls.SetHook(nil)
			w.waitForState("a", queue.Completed.String())
		}
		return nil
	})
	w.applyToJob(w.RequeueJobs, "a")
	if j := w.waitForState("a", queue.Completed.String()); len(j.History) != 2 {
		t.Errorf("the job ran %d times", len(j.History))
	}
}
