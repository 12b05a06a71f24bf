package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Responder answers the requests of other nodes.
type Responder struct {
	Cluster     store.Cluster      // nil if no other node can use the store
	Requests    store.NodeRequests // nil if Cluster is nil
	Log         *slog.Logger
	Node        string // name of this node
	Pool        *worker.Pool
	Store       store.Store
	OutputFiles *OutputFiles
	Pauses      *settings.AllPause
	Router      *JobRouter
	Local       Local

	// Cancel functions of the requests that are being answered, by request number.
	requestCancels  sync.Map
	requestHandlers sync.WaitGroup // the goroutines that answer requests
}

// Local is what a responder needs from the handlers of this node.
type Local interface {
	// ReloadShared reads the settings and drains stored for all nodes and for this node, and applies them.
	ReloadShared(ctx context.Context) error
	// Reasons returns what keeps this node from starting a job that is due.
	Reasons(ctx context.Context, j *queue.Job) ([]control.Reason, error)
	// Units returns the resources of this node, sorted by name.
	Units(ctx context.Context) ([]control.GateView, error)
}

// Answer executes a request of another node. It executes the commands that concern the whole node itself, and
// passes those that concern one job to the router.
func (r *Responder) Answer(ctx context.Context, req *NodeRequest) (reply NodeReply, err error) {
	switch req.Command {
	case "obey", "freeze", "drained":
		reply.Held = true
		err = r.Local.ReloadShared(ctx)
		switch {
		case err != nil:
		case req.Command == "freeze":
			reply.Done, err = r.Pool.PauseAll(r.Pauses.Current() != nil)(ctx)
		case req.Command == "drained":
			err = r.Pool.AwaitNoStarts(ctx, worker.NoStartsWithin)
		}
	case "quiet":
		reply.Held = true
		timeoutCtx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if err = r.Pool.WaitIdle(timeoutCtx); err != nil && ctx.Err() == nil {
			reply.TryAgain, err = true, nil
		}
	case "why":
		reply.Held = true
		var j queue.Job
		if j, err = r.Store.Get(ctx, req.Ref); err == nil {
			reply.Reasons, err = r.Local.Reasons(ctx, &j)
		}
	case "units":
		reply.Held = true
		reply.Units, err = r.Local.Units(ctx)
	case "output":
		reply.Data, reply.Size, err = r.readOutputPiece(req)
		reply.Held = true
	default:
		return r.Router.execLocal(ctx, req)
	}
	return reply, err
}

// answerRequests starts a goroutine for each request of another node, since some requests take long.
// answerRequests also cancels the requests whose senders no longer wait.
func (r *Responder) answerRequests(ctx context.Context) {
	r.dropRequests(ctx)
	var list []store.NodeRequest
	for _, slow := range []bool{false, true} {
		for more := true; more; {
			some, err := r.Requests.Asked(ctx, slow, maxParallelRequests)
			if more = err == nil && len(some) == maxParallelRequests; err != nil {
				break // the next hint causes another read of these requests
			}
			list = append(list, some...)
		}
	}
	for _, one := range list {
		timeoutCtx, cancel := context.WithTimeout(ctx, requestTimeout)
		r.requestCancels.Store(one.N, cancel)
		r.requestHandlers.Go(func() {
			defer r.requestCancels.Delete(one.N)
			defer cancel()
			var req NodeRequest
			var reply NodeReply
			if err := json.Unmarshal(one.Payload, &req); err != nil || req.Command == "change" && req.Change == nil {
				reply.fail(queue.Errorf(queue.CodeUnsupported,
					"node %s cannot read the request; run the same version of queuectl on all nodes", r.Node))
			} else {
				reply, err = r.Answer(timeoutCtx, &req)
				reply.fail(err)
			}
			text, err := json.Marshal(reply)
			if len(text) > store.MaxReplyBytes {
				reply = NodeReply{}
				reply.fail(queue.Errorf(queue.CodeTooLarge, "the answer of node %s is longer than the maximum of %d bytes; run "+
					"the command on that node", r.Node, store.MaxReplyBytes))
				text, err = json.Marshal(reply)
			}
			for err == nil && timeoutCtx.Err() == nil {
				failed := r.Requests.Answer(timeoutCtx, one.N, text)
				if !errors.Is(failed, queue.ErrUnavailable) {
					err = failed
					break
				}
				select {
				case <-timeoutCtx.Done():
				case <-time.After(time.Second):
				}
			}
			if err != nil && timeoutCtx.Err() == nil {
				r.Log.Warn("cannot answer a request from another node", "error", err)
			}
		})
	}
}

// dropRequests cancels the requests whose senders no longer wait for the answer.
func (r *Responder) dropRequests(ctx context.Context) {
	var started []int64
	r.requestCancels.Range(func(n, _ any) bool {
		started = append(started, n.(int64))
		return true
	})
	if len(started) == 0 {
		return
	}
	wanted, err := r.Requests.Wanted(ctx)
	for _, n := range started {
		if cancel, found := r.requestCancels.Load(n); err == nil && found && !wanted[n] {
			cancel.(context.CancelFunc)()
		}
	}
}

// ServeCluster answers requests of other nodes and applies shared settings that other nodes have changed,
// until ctx ends.
func (r *Responder) ServeCluster(ctx context.Context) {
	if r.Cluster == nil {
		return
	}
	defer r.requestHandlers.Wait()
	changedAt, lastError := time.Time{}, ""
	for {
		wait := time.Hour
		if !changedAt.IsZero() {
			wait = time.Until(changedAt.Add(sharedReloadDelay))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.Requests.Hints():
			r.answerRequests(ctx)
		case <-r.Cluster.Changes():
			if changedAt.IsZero() {
				changedAt = time.Now()
			}
		case <-time.After(wait):
			changedAt = time.Time{}
			switch err := r.Local.ReloadShared(ctx); {
			case err == nil:
				lastError = ""
			case ctx.Err() == nil:
				changedAt = time.Now()
				if lastError != err.Error() { // log each error only once, since it may last long
					lastError = err.Error()
					r.Log.Warn("settings changed on another node are not applied on this node yet", "error", err)
				}
			}
		}
	}
}

// readOutputPiece reads at most maxOutputPiece bytes of an output file, from the requested offset. It also
// returns the file's size.
func (r *Responder) readOutputPiece(req *NodeRequest) (data []byte, size int64, err error) {
	f, err := r.OutputFiles.OpenOutput(req.Ref)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data = make([]byte, min(maxOutputPiece, max(0, req.Length)))
	n, err := f.ReadAt(data, req.Offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], info.Size(), err
}
