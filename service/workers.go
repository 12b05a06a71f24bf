package service

import (
	"context"
	"os"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// WorkerStart implements control.API. The requested count is added to the current number of workers. It is
// the new total if a client started the service on demand and no user has set the number yet.
func (s *Service) WorkerStart(ctx context.Context, p control.Count) (control.WorkerCount, error) {
	_, err := s.setWorkers(ctx, func(now int) int {
		switch {
		case p.Count == nil:
			return now + 1
		case s.opt.Background && s.config.Load().Origin("workers") == config.FromDefault:
			return *p.Count
		}
		return now + *p.Count
	})
	return control.WorkerCount{Workers: s.pool.Workers()}, err
}

// WorkerScale implements control.API.
func (s *Service) WorkerScale(ctx context.Context, p control.WorkerScale) (control.WorkerCount, error) {
	_, err := s.setWorkers(ctx, func(int) int { return p.Count })
	return control.WorkerCount{Workers: s.pool.Workers()}, err
}

// WorkerStop implements control.API. It returns once the jobs of the removed workers have ended.
func (s *Service) WorkerStop(ctx context.Context, p control.WorkerStop) (control.WorkerCount, error) {
	timeout := control.DefaultStopTimeout
	if p.Timeout != nil {
		timeout = time.Duration(*p.Timeout)
	}
	if p.Force {
		timeout = 0
	}
	_, err := s.setWorkers(ctx, func(now int) int {
		if p.Count == nil {
			return 0
		}
		return max(0, now-*p.Count)
	})
	if err != nil {
		return control.WorkerCount{}, err
	}
	err = s.pool.Settle(ctx, timeout, new(control.PeerFrom(ctx).UID))
	return control.WorkerCount{Workers: s.pool.Workers()}, err
}

// WorkerList implements control.API.
func (s *Service) WorkerList(ctx context.Context, _ control.Nothing) (control.WorkerList, error) {
	workers := s.pool.List(ctx) // List may send requests to the runners
	return control.Answer(ctx, &s.shares, control.One, func() (control.WorkerList, error) {
		return viewWorkers(workers, s.node, new(control.PeerFrom(ctx))), nil
	})
}

// viewWorkers converts a node's workers to the form in which the peer may see them.
func viewWorkers(workers []worker.Status, node string, p *control.Peer) control.WorkerList {
	list := control.WorkerList{Workers: []control.Worker{}}
	for _, w := range workers {
		view := control.Worker{ID: w.ID, Node: node, LastHeartbeat: control.Time(queue.MillisOf(w.Heard)), State: "idle"}
		if w.Job != "" {
			view.State, view.Job, view.PID, view.StartedAt = "busy", &w.Job, &w.PID, control.Time(w.StartedAt)
		}
		if !mayRead(p, w.Private) {
			view.Job, view.PID, view.StartedAt = nil, nil, 0
		}
		if w.Leaving {
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
func (s *Service) ServiceStop(ctx context.Context, p control.ServiceStop) (control.Stopping, error) {
	if err := s.audit(ctx, "service.stop", "", nil); err != nil {
		s.log.Warn("a stop request could not be recorded in the audit log; the service stops anyway", "error", err)
	}
	select {
	case s.stop <- p.KeepJobs:
	default: // the service is already stopping
	}
	stopping := control.Stopping{PID: os.Getpid(), Folder: s.opt.Places.State}
	if s.home.Foreign() {
		stopping.RunnerDir = s.home.Dir
	}
	return stopping, nil
}

// Hello implements control.API.
func (s *Service) Hello(context.Context, control.HelloParams) (control.Hello, error) {
	return control.Hello{Version: s.opt.Version, Protocol: control.Range{Min: control.Protocol, Max: control.Protocol}, Features: control.MethodNames()}, nil
}

// Status implements control.API.
func (s *Service) Status(ctx context.Context, _ control.Nothing) (control.Status, error) {
	// Read the last event before the counts, so that the events after it cover all changes that the counts
	// lack.
	last, _ := s.store.LastEvent()
	counts := s.store.Counts()
	var oldest queue.Millis
	err := s.shares.Do(ctx, control.One, func() (err error) {
		oldest, err = s.store.Oldest(ctx)
		return err
	})
	unavailable := err
	if err != nil && !s.isStoreUnavailable(err) {
		return control.Status{}, err
	}
	st := control.Status{
		Jobs: map[string]int64{}, Oldest: control.Time(oldest), Enqueued: counts.Enqueued, LastEvent: last,
		Storage:  control.Storage{Database: s.opt.Places.State, Bytes: counts.Bytes, Outputs: counts.Outputs},
		Settings: s.opt.Places.File, Socket: s.opt.Places.Socket,
		Service: string(s.opt.Places.Kind()), PID: os.Getpid(), Version: s.opt.Version, Started: control.Time(s.started), Draining: s.pool.Draining(), Reranking: counts.Reranking, Throughput: s.pool.Throughput(),
	}
	s.addUse(ctx, &st)
	if s.cluster != nil {
		st.Node, st.Store = s.node, s.location.String()
	}
	if all := s.paused.Load(); all != nil {
		st.PausedAt, st.PausedBy = control.Time(all.At), new(s.userName(all.UID))
	}
	if unavailable == nil {
		ended, _ := s.otherNodesThroughput(ctx)
		st.Throughput += ended
		st.Health = health(s.problems(ctx))
	} else {
		st.Away = unavailable.Error()
		st.Health = health([]string{st.Away + "; the job counts may be outdated"}, true)
	}
	for _, state := range queue.States() {
		st.Jobs[state.String()] = counts.States[state]
	}
	busy := s.pool.Busy()
	total := max(busy, s.pool.Workers())
	st.Workers = control.WorkerSummary{Total: total, Busy: busy, Idle: total - busy}
	if s.readOnly {
		return offlineStatus(st), nil
	}
	return st, nil
}
