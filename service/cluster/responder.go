package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Responder answers the requests that other nodes send to this node.
type Responder struct {
	Log      *slog.Logger
	NodeName string // name of this node
	*JobRouter
	API control.API
	// ReloadSharedSettings reads the shared settings, the drain of all nodes and the drain of this node, and applies them.
	ReloadSharedSettings func(ctx context.Context) error

	// cancelByRequestNumber contains a function that cancels each request in progress, by request number.
	cancelByRequestNumber sync.Map
	runningHandlers       sync.WaitGroup // the goroutines that answer requests
}

// relayedRequestContextKey is the context key of the Request that another node has sent. The handler of this request
// uses it.
type relayedRequestContextKey struct{}

// RelayedRequestStates reports whether the request of ctx was sent by another node. If it was, the handler acts on this
// node alone, even if the request is about all nodes. allowedStates lists the states in which the request may change a
// job; an empty list means all states.
func RelayedRequestStates(ctx context.Context) (allowedStates []queue.State, isRelayed bool) {
	req, isRelayed := ctx.Value(relayedRequestContextKey{}).(*Request)
	if isRelayed {
		allowedStates = req.AllowedStates
	}
	return allowedStates, isRelayed
}

// RequestMatchesJob reports whether the request of ctx may act on the job with the number seq. It returns
// false only if another node sent the request for an earlier job that had the same id.
func RequestMatchesJob(ctx context.Context, jobSeq int64) bool {
	req, _ := ctx.Value(relayedRequestContextKey{}).(*Request)
	return req == nil || req.JobSeq == 0 || req.JobSeq == jobSeq
}

// ExecuteNodeRequest executes a request from another node. The other node has determined the peer's right. This node
// checks whether that right is sufficient, as for a request from its own socket.
func (r *Responder) ExecuteNodeRequest(ctx context.Context, request []byte) (result any, err error) {
	var req struct {
		Request
		Params json.RawMessage `json:"params"`
	}
	defer func() {
		if p := recover(); p != nil {
			r.Log.Error("a request from another node failed because of a bug in queuectl; this service continues; please "+
				"report the bug", "request", req.APIMethod, "panic", p, "stack", string(debug.Stack()))
			err = queue.Errorf(queue.CodeInternal, "internal error on node %[1]s: the request may have taken "+
				"effect or not; check with queuectl list, and see the log of the service on node %[1]s", r.NodeName)
		}
	}()
	if err := json.Unmarshal(request, &req); err != nil || req.APIMethod == "" {
		return nil, queue.Errorf(queue.CodeUnsupported,
			"node %s cannot read the request; run the same version of queuectl on all nodes", r.NodeName)
	}
	if req.APIMethod == readOutputMethod {
		var p outputReadRequest
		if err := json.Unmarshal(req.Params, &p); err != nil {
			return nil, err
		}
		return r.readOutputForOtherNode(ctx, p)
	}
	ctx = control.WithPeer(ctx, control.Peer{UID: req.UID, GID: -1, PID: req.PID, Right: req.Right})
	result, err = control.DispatchMethodCall(context.WithValue(ctx, relayedRequestContextKey{}, &req.Request), r.API,
		req.APIMethod, req.Params)
	if err == control.ErrNoMethod {
		err = queue.Errorf(queue.CodeUnsupported, "node %s runs a queuectl version that does not know the request "+
			"%q; upgrade node %[1]s", r.NodeName, queue.ClipForMessage(req.APIMethod))
	}
	return result, err
}

// startNodeRequests starts a goroutine for each new request from another node, since some requests take long. It
// also cancels requests whose sender has stopped waiting.
func (r *Responder) startNodeRequests(ctx context.Context) {
	r.cancelAbandonedRequests(ctx)
	var requests []store.NodeRequest
	for _, slow := range []bool{false, true} {
		for more := true; more; {
			some, err := r.NodeRequests.TakeRequests(ctx, slow, maxParallelNodeRequests)
			if more = err == nil && len(some) == maxParallelNodeRequests; err != nil {
				break // the next notification makes startNodeRequests read the requests again
			}
			requests = append(requests, some...)
		}
	}
	for _, one := range requests {
		timeoutCtx, cancel := context.WithTimeout(ctx, nodeRequestTimeout)
		r.cancelByRequestNumber.Store(one.Number, cancel)
		r.runningHandlers.Go(func() {
			defer r.cancelByRequestNumber.Delete(one.Number)
			defer cancel()
			answer := control.EncodeAnswer(r.ExecuteNodeRequest(timeoutCtx, one.Payload))
			if len(answer) > store.MaxNodeReplyBytes {
				answer = control.EncodeAnswer(nil, queue.Errorf(queue.CodeTooLarge,
					"the answer of node %s is longer than the maximum of %d bytes; run "+
						"the command on that node", r.NodeName, store.MaxNodeReplyBytes))
			}
			err := r.NodeRequests.SendReply(timeoutCtx, one.Number, answer)
			for errors.Is(err, queue.ErrUnavailable) && timeoutCtx.Err() == nil {
				select {
				case <-timeoutCtx.Done():
				case <-time.After(time.Second):
					err = r.NodeRequests.SendReply(timeoutCtx, one.Number, answer)
				}
			}
			if err != nil && timeoutCtx.Err() == nil {
				r.Log.Warn("cannot answer a request from another node", "error", err)
			}
		})
	}
}

// cancelAbandonedRequests cancels the requests whose senders have stopped waiting for the answer.
func (r *Responder) cancelAbandonedRequests(ctx context.Context) {
	var requestNumbers []int64
	r.cancelByRequestNumber.Range(func(n, _ any) bool {
		requestNumbers = append(requestNumbers, n.(int64))
		return true
	})
	if len(requestNumbers) == 0 {
		return
	}
	wanted, err := r.NodeRequests.AwaitedRequestNumbers(ctx)
	for _, n := range requestNumbers {
		if cancel, found := r.cancelByRequestNumber.Load(n); err == nil && found && !wanted[n] {
			cancel.(context.CancelFunc)()
		}
	}
}

// ServeNodeRequests answers the requests of other nodes, and applies shared settings that another node has
// changed. It returns when ctx ends.
func (r *Responder) ServeNodeRequests(ctx context.Context) {
	if r.Cluster == nil {
		return
	}
	defer r.runningHandlers.Wait()
	changedAt, lastError := time.Time{}, ""
	for {
		wait := time.Hour
		if !changedAt.IsZero() {
			wait = time.Until(changedAt.Add(sharedSettingsReloadDelay))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.NodeRequests.RequestHints():
			r.startNodeRequests(ctx)
		case <-r.Cluster.SharedDataChangeHints():
			if changedAt.IsZero() {
				changedAt = time.Now()
			}
		case <-time.After(wait):
			changedAt = time.Time{}
			switch err := r.ReloadSharedSettings(ctx); {
			case err == nil:
				lastError = ""
			case ctx.Err() == nil:
				changedAt = time.Now()
				if lastError != err.Error() { // log the same error only once
					lastError = err.Error()
					r.Log.Warn("this node has not applied settings that changed on another node; it tries again every "+
						sharedSettingsReloadDelay.String(), "error", strings.TrimSuffix(err.Error(), "; try again later"))
				}
			}
		}
	}
}
