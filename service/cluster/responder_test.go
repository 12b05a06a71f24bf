package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeAPI implements only the methods that a test needs.
type fakeAPI struct {
	control.API
	cancel func(context.Context, control.JobSelection) (control.BulkResult, error)
}

// CancelJobs implements control.API.
func (a *fakeAPI) CancelJobs(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
	return a.cancel(ctx, p)
}

// newResponder returns a responder on a node with the name b.
func newResponder(cancel func(context.Context, control.JobSelection) (control.BulkResult, error)) *Responder {
	return &Responder{NodeName: "b", Log: slog.New(slog.DiscardHandler), API: &fakeAPI{cancel: cancel}}
}

// The handler of a request from another node gets the peer, the parameters and the allowed states that are in
// the request.
func TestRelayedRequestKeepsPeerAndParams(t *testing.T) {
	type call struct {
		peer   control.Peer
		p      control.JobSelection
		states []queue.State
	}
	var got call
	r := newResponder(func(ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
		states, relayed := RelayedRequestStates(ctx)
		if got = (call{control.PeerFrom(ctx), p, states}); !relayed {
			t.Error("the request does not count as relayed")
		}
		return control.BulkResult{}, nil
	})
	_, err := r.ExecuteNodeRequest(t.Context(), []byte(
		`{"method":"cancel","params":{"id":"j"},"uid":7,"pid":8,"right":"submit","states":[1,2]}`))
	if err != nil || got.peer.UID != 7 || got.peer.PID != 8 || got.peer.GID != -1 ||
		got.peer.Right != control.RightSubmit ||
		got.p.ID != "j" || !slices.Equal(got.states, []queue.State{1, 2}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, relayed := RelayedRequestStates(t.Context()); relayed {
		t.Error("a request of a client counts as relayed")
	}
}

// If a node cannot execute a request, its answer gives the reason and the name of the node.
func TestNodeRequestErrorNamesTheNode(t *testing.T) {
	r := newResponder(func(context.Context, control.JobSelection) (control.BulkResult, error) { panic("broken") })
	const unknown = "node b runs a queuectl version that does not know the request "
	for request, want := range map[string]string{
		`{"method":"cancel","params":{"id":"j"},"right":"submit"}`: "internal error on node b: the request may",
		`{"method":"cancel","params":{"no":1},"right":"submit"}`:   "unknown parameter",
		`{"method":"cancel","params":{"id":"j"},"right":"read"}`:   `requires the right "submit" for cancel`,
		`{"method":"cancel","params":{"id":"j"}}`:                  `requires the right "submit" for cancel`,
		`{"method":"no.such","right":"admin"}`:                     unknown + `"no.such"`,
		`{"method":"backup","right":"admin"}`:                      unknown + `"backup"`,
		`{"do":"cancel","seq":1}`:                                  "node b cannot read the request",
		`{"method":"output","params":{"seq":"x"}}`:                 "cannot unmarshal",
		`[]`: "node b cannot read the request",
	} {
		if _, err := r.ExecuteNodeRequest(t.Context(), []byte(request)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", request, err, want)
		}
	}
}

// If a handler returns an error with queue.CodeUnsupported, the sender gets the text of this error, and not
// the message that the node does not know the request.
func TestUnsupportedErrorDiffersFromUnknownMethod(t *testing.T) {
	failure := queue.Errorf(queue.CodeUnsupported, "this system has no such signal")
	r := newResponder(func(context.Context, control.JobSelection) (control.BulkResult, error) {
		return control.BulkResult{}, failure
	})
	_, err := r.ExecuteNodeRequest(t.Context(), []byte(`{"method":"cancel","params":{"id":"j"},"right":"submit"}`))
	if err != error(failure) {
		t.Errorf("got %v, want %v", err, failure)
	}
}

// fakeNodeRequests holds one request to this node, and the answer to it.
type fakeNodeRequests struct {
	store.NodeRequests
	mu             sync.Mutex
	requestPayload string
	replyPayload   []byte
}

// TakeRequests implements store.NodeRequests.
func (f *fakeNodeRequests) TakeRequests(_ context.Context, mayTakeLong bool, _ int) (requests []store.NodeRequest,
	err error) {
	if !mayTakeLong {
		requests = append(requests, store.NodeRequest{Number: 1, Payload: []byte(f.requestPayload)})
	}
	return requests, nil
}

// SendReply implements store.NodeRequests.
func (f *fakeNodeRequests) SendReply(_ context.Context, _ int64, reply []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replyPayload = reply
	return nil
}

// A node that sends a request gets the result or the error of the handler, like a client on the socket. If the answer
// is too long, the node gets an error.
func TestResponderSendsResultsAndErrors(t *testing.T) {
	denied := &queue.Error{Code: queue.CodeWrongState, Field: "id", Message: "the job has ended"}
	most := store.MaxNodeReplyBytes - len(control.EncodeAnswer(control.BulkResult{ChangedJobIDs: []string{""}}, nil))
	for name, c := range map[string]struct {
		ids  []string
		err  error
		want error
	}{
		"a result":       {[]string{"j"}, nil, nil},
		"an error":       {nil, denied, denied},
		"at the limit":   {[]string{strings.Repeat("x", most)}, nil, nil},
		"one byte more":  {[]string{strings.Repeat("x", most+1)}, nil, queue.ErrTooLarge},
		"not ours":       {nil, errors.New("broken"), queue.ErrInternal},
		"an outcome":     {nil, queue.Errorf(queue.CodeOutcomeUnknown, "unknown"), queue.ErrOutcomeUnknown},
		"a lost context": {nil, context.Canceled, queue.ErrInternal},
	} {
		r := newResponder(func(context.Context, control.JobSelection) (control.BulkResult, error) {
			return control.BulkResult{ChangedJobIDs: c.ids}, c.err
		})
		f := &fakeNodeRequests{requestPayload: `{"method":"cancel","params":{"id":"j"},"right":"submit"}`}
		r.JobRouter = &JobRouter{NodeRequests: f}
		r.startNodeRequests(t.Context())
		r.runningHandlers.Wait()
		var v control.BulkResult
		err := control.DecodeAnswer(f.replyPayload, &v)
		if !errors.Is(err, c.want) || c.want == nil && !slices.Equal(v.ChangedJobIDs, c.ids) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if e, ok := errors.AsType[*queue.Error](err); name == "an error" && (!ok || *e != *denied) {
			t.Errorf("%s: got %+v, want %+v", name, e, denied)
		}
	}
	if err := control.DecodeAnswer([]byte(`{"held":true}`), &control.BulkResult{}); !errors.Is(err, queue.ErrUnsupported) {
		t.Errorf("an answer in another form: got %v", err)
	}
}
