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

// listedReasons returns the kind of the reason that a list shows for each job, by id; "" means no reason.
func (s *rig) listedReasons(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.List(asPeer(t, ownerUID, control.RightSubmit), control.List{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, j := range list.Jobs {
		if kinds[j.ID] = ""; j.WaitsFor != nil {
			kinds[j.ID] = j.WaitsFor.Kind
		}
	}
	return kinds
}

// A list does not wait long for the store's writer (the goroutine that makes all changes). If a slow disk or
// server delays the writer, the list shows only the reasons that are known without it.
func TestListsDoNotWaitForTheWriter(t *testing.T) {
	queueStore := openStore(t)
	newRig(t, rigOptions{store: queueStore}).enqueueJobs(t, jobNamed("one"))
	hung := faultstore.New(queueStore)
	hung.SetHook(func(ctx context.Context, c faultstore.Call) error {
		if c.Method == "WaitReasons" {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	for workers, want := range map[string]string{"0": "workers", "1": ""} {
		s := newRig(t, rigOptions{store: hung, workers: workers})
		began := time.Now()
		if got := s.listedReasons(t); got["one"] != want {
			t.Errorf("with %s workers it waits for %q, want %q", workers, got["one"], want)
		}
		if took := time.Since(began); took > reasons.WaitReasonsTimeout+5*time.Second {
			t.Errorf("with %s workers the list took %v", workers, took)
		}
	}
}

// A job that waits for a lock and a job that waits for a node have different reasons, even if the lock and
// the node have the same name.
func TestGatesOfOneNameHaveTheirOwnReasons(t *testing.T) {
	s := newStoreRigWith(t, rigOptions{workers: "1"})
	locked, other := jobNamed("locked"), jobNamed("elsewhere")
	locked.Demands = []queue.Demand{{Kind: queue.GateLock, Key: "gpu1", Amount: 1}}
	other.Demands = []queue.Demand{{Kind: queue.GateNode, Key: "gpu1", Amount: 1}}
	for _, j := range []queue.Job{locked, other} {
		if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: ownerUID, Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.listedReasons(t); got["locked"] == got["elsewhere"] || got["elsewhere"] != "node" {
		t.Errorf("got %v, want a node for the second job alone", got)
	}
}
