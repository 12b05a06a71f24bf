package handlers

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Overview describes the state of the whole queue.
type Overview struct {
	cluster      store.Cluster // nil if no other node can use the store
	location     fmt.Stringer  // where the store is
	node         string        // name of this node
	places       config.Places
	pool         *worker.Pool
	readOnly     bool // read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	shares       *control.UserLimits
	startedAt    queue.Millis // when the service started
	store        store.Store
	version      string
	guard        *access.Guard
	health       *doctor.HealthCheck
	nodeList     *cluster.NodeList
	outputReader *outputReader
	owners       *access.Owners
	pauses       *settings.AllPause
	queueList    *queueReader
	quota        *settings.Quota
	views        *viewer

	lastLineReads *fair.Limiter // admits one reader of last lines per user
}

// Administration changes settings, workers, the web page and the service itself.
type Administration struct {
	account     worker.Account   // account that jobs run as
	background  bool             // a client started the service on demand
	files       store.Maintainer // the store's maintenance operations; nil if it has none
	home        runner.Location
	log         *slog.Logger
	node        string // name of this node
	places      config.Places
	pool        *worker.Pool
	shares      *control.UserLimits
	stop        chan<- bool // a value stops the service; true keeps the jobs
	store       store.Store
	changes     *Changer
	guard       *access.Guard
	hooks       *hooks.Hooks
	lock        *settings.Lock
	outputFiles *cluster.OutputFiles
	page        *WebPage
	runAs       *access.RunAs
	settings    *settings.Keeper
}

// WorkerStart implements control.API. The requested count is added to the current number of workers. It is
// the new total if a client started the service on demand and no user has set the number yet.
func (h *Administration) WorkerStart(ctx context.Context, p control.Count) (control.WorkerCount, error) {
	err := h.changes.setWorkers(ctx, func(now int) int {
		switch {
		case p.Count == nil:
			return now + 1
		case h.background && h.settings.Current().Origin("workers") == config.FromDefault:
			return *p.Count
		}
		return now + *p.Count
	})
	return control.WorkerCount{Workers: h.pool.Workers()}, err
}

// WorkerScale implements control.API.
func (h *Administration) WorkerScale(ctx context.Context, p control.WorkerScale) (control.WorkerCount, error) {
	err := h.changes.setWorkers(ctx, func(int) int { return p.Count })
	return control.WorkerCount{Workers: h.pool.Workers()}, err
}

// WorkerStop implements control.API. It returns once the jobs of the removed workers have ended.
func (h *Administration) WorkerStop(ctx context.Context, p control.WorkerStop) (control.WorkerCount, error) {
	timeout := control.DefaultStopTimeout
	if p.Timeout != nil {
		timeout = time.Duration(*p.Timeout)
	}
	if p.Force {
		timeout = 0
	}
	err := h.changes.setWorkers(ctx, func(now int) int {
		if p.Count == nil {
			return 0
		}
		return max(0, now-*p.Count)
	})
	if err != nil {
		return control.WorkerCount{}, err
	}
	err = h.pool.WaitForScaleDown(ctx, timeout, new(control.PeerFrom(ctx).UID))
	return control.WorkerCount{Workers: h.pool.Workers()}, err
}

// WorkerList implements control.API.
func (h *Administration) WorkerList(ctx context.Context, _ control.Nothing) (control.WorkerList, error) {
	workers := h.pool.List(ctx) // List may send requests to the runners
	return control.Answer(ctx, h.shares, control.ClassOne, func() (control.WorkerList, error) {
		return viewWorkers(workers, h.node, new(control.PeerFrom(ctx))), nil
	})
}

// viewWorkers converts a node's workers to the form in which the peer may see them.
func viewWorkers(workers []worker.Status, node string, p *control.Peer) control.WorkerList {
	list := control.WorkerList{Workers: []control.Worker{}}
	for _, w := range workers {
		view := control.Worker{ID: w.ID, Node: node, LastHeartbeat: control.Time(queue.MillisOf(w.LastHeartbeat)),
			State: "idle"}
		if w.Job != "" {
			view.State, view.Job, view.PID, view.StartedAt = "busy", &w.Job, &w.PID, control.Time(w.StartedAt)
		}
		if !access.MayRead(p, w.Private) {
			view.Job, view.PID, view.StartedAt = nil, nil, 0
		}
		if w.Surplus {
			view.State = "stopping"
		}
		if w.Paused {
			view.State = "paused"
		}
		if w.Stale {
			view.State = "stale"
		}
		if w.Stuck {
			view.State, view.PID, view.StartedAt = "stuck", &w.PID, control.Time(w.StartedAt)
		}
		list.Workers = append(list.Workers, view)
	}
	return list
}

// ServiceStop implements control.API.
func (h *Administration) ServiceStop(ctx context.Context, p control.ServiceStop) (control.ServiceStopResult, error) {
	if err := h.guard.Audit(ctx, "service.stop", "", nil); err != nil {
		h.log.Warn("a stop request could not be recorded in the audit log; the service stops anyway", "error", err)
	}
	select {
	case h.stop <- p.KeepJobs:
	default: // the service is already stopping
	}
	stopping := control.ServiceStopResult{PID: os.Getpid(), Dir: h.places.State}
	if h.home.External() {
		stopping.RunnerDir = h.home.Dir
	}
	return stopping, nil
}

// Hello implements control.API.
func (h *Overview) Hello(context.Context, control.HelloParams) (control.Hello, error) {
	return control.Hello{Version: h.version, Protocol: control.Range{Min: control.Protocol, Max: control.Protocol},
		Features: control.MethodNames()}, nil
}

// Status implements control.API.
func (h *Overview) Status(ctx context.Context, _ control.Nothing) (control.Status, error) {
	// Read the last event before the counts, so that the events after it cover all changes that the counts
	// lack.
	last, _ := h.store.LastEvent()
	counts := h.store.Counts()
	var oldest queue.Millis
	err := h.shares.Do(ctx, control.ClassOne, func() (err error) {
		oldest, err = h.store.Oldest(ctx)
		return err
	})
	unavailable := err
	if err != nil && !h.nodeList.IsStoreUnavailable(err) {
		return control.Status{}, err
	}
	st := control.Status{
		Jobs: map[string]int64{}, Oldest: control.Time(oldest), EnqueuedTotal: counts.EnqueuedTotal, LastEvent: last,
		Storage:  control.Storage{Database: h.places.State, Bytes: counts.Bytes, Outputs: counts.Outputs},
		Settings: h.places.File, Socket: h.places.Socket,
		Service: string(h.places.Kind()), PID: os.Getpid(), Version: h.version, Started: control.Time(h.startedAt),
		Draining: h.pool.Draining(), Reranking: counts.Reranking, Throughput: h.pool.Throughput(),
	}
	h.addUse(ctx, &st)
	if h.cluster != nil {
		st.Node, st.Store = h.node, h.location.String()
	}
	if all := h.pauses.Current(); all != nil {
		st.PausedAt, st.PausedBy = control.Time(all.SetAt), new(h.owners.UserName(all.UID))
	}
	if unavailable == nil {
		ended, _ := h.nodeList.OtherNodesThroughput(ctx)
		st.Throughput += ended
		st.Health = doctor.Health(h.health.Problems(ctx))
	} else {
		st.StoreError = unavailable.Error()
		st.Health = doctor.Health([]string{st.StoreError + "; the job counts may be outdated"}, true)
	}
	for _, state := range queue.States() {
		st.Jobs[state.String()] = counts.States[state]
	}
	busy := h.pool.Busy()
	total := max(busy, h.pool.Workers())
	st.Workers = control.WorkerSummary{Total: total, Busy: busy, Idle: total - busy}
	if h.readOnly {
		return offlineStatus(st), nil
	}
	return st, nil
}
