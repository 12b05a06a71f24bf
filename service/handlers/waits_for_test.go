package handlers

import (
	"context"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest/faultstore"
)

// waitReasonKinds returns the kind of the reason that a list shows for each job, by id; "" means no reason.
func (s *testAPI) waitReasonKinds(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.ListJobs(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobListParams{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, j := range list.Jobs {
		if kinds[j.ID] = ""; j.MainWaitReason != nil {
			kinds[j.ID] = j.MainWaitReason.Kind
		}
	}
	return kinds
}

// A list does not wait long for the store's writer (the goroutine that makes all changes). If a slow disk or server
// delays the writer, the list shows only the reasons that can be found without the writer.
func TestJobListsDoNotWaitForStoreWriter(t *testing.T) {
	queueStore := openSQLiteStore(t)
	newTestAPI(t, testAPIOptions{store: queueStore}).enqueueJobs(t, draftWithID("one"))
	hung := faultstore.New(queueStore)
	hung.SetHook(func(ctx context.Context, c faultstore.Call) error {
		if c.MethodName == "WaitReasons" {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	for workers, want := range map[string]string{"0": "workers", "1": ""} {
		s := newTestAPI(t, testAPIOptions{store: hung, workersSetting: workers})
		began := time.Now()
		if got := s.waitReasonKinds(t); got["one"] != want {
			t.Errorf("with %s workers it waits for %q, want %q", workers, got["one"], want)
		}
		if took := time.Since(began); took > reasons.WaitReasonsTimeout+5*time.Second {
			t.Errorf("with %s workers the list took %v", workers, took)
		}
	}
}

// A job that waits for a lock and a job that waits for a node have different reasons, even if the lock and
// the node have the same name.
func TestSameNamedGatesHaveSeparateReasons(t *testing.T) {
	s := newSQLiteTestAPIWith(t, testAPIOptions{workersSetting: "1"})
	locked, other := draftWithID("locked"), draftWithID("elsewhere")
	locked.Demands = []queue.Demand{{Kind: queue.GateLock, GateKey: "gpu1", Amount: 1}}
	other.Demands = []queue.Demand{{Kind: queue.GateNode, GateKey: "gpu1", Amount: 1}}
	for _, j := range []queue.Job{locked, other} {
		if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: ownerUID, Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.waitReasonKinds(t); got["locked"] == got["elsewhere"] || got["elsewhere"] != "node" {
		t.Errorf("got %v, want a node for the second job alone", got)
	}
}
