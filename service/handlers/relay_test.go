package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
)

// relayingCluster is a store that the nodes a and b share. Node b holds the lease of every job, and executes
// the requests that it gets.
type relayingCluster struct {
	*fakeCluster
	responder         *cluster.Responder // executes the requests to node b
	leaseHolderNodeID int64              // the node that holds every lease
}

func (c *relayingCluster) LeaseHolderNodeID(context.Context, int64) (int64, error) {
	return c.leaseHolderNodeID, nil
}

// SendRequest makes node b execute a request, and returns the answer.
func (c *relayingCluster) SendRequest(ctx context.Context, _ int64, request []byte, _ bool) ([]byte, error) {
	c.requestMethods = append(c.requestMethods, string(request))
	// Do not pass ctx, which contains the peer: a real node b runs in another process and does not get ctx.
	return control.EncodeAnswer(c.responder.ExecuteNodeRequest(context.WithoutCancel(context.Background()), request)),
		ctx.Err()
}

// newRelayTestAPI returns the API under test of node a. Node a shares its store with node b, which holds all leases.
func newRelayTestAPI(t *testing.T) (*testAPI, *relayingCluster) {
	t.Helper()
	b := newSQLiteTestAPI(t)
	c := &relayingCluster{fakeCluster: newFakeCluster(), leaseHolderNodeID: 2,
		responder: &cluster.Responder{NodeName: "b", API: b.api, Log: slog.New(slog.DiscardHandler)}}
	return newTestAPI(t, testAPIOptions{store: b.Store, cluster: c, nodeName: "a"}), c
}

// If another node has leased a job, a request about the job is forwarded to that node unchanged. That node gets the
// caller's identity and right, and the states in which the job may be changed. The caller gets the answer of that node.
func TestJobRequestsReachLeaseHolderNode(t *testing.T) {
	type call = func(*API, context.Context, control.JobSelection) (control.BulkResult, error)
	for want, do := range map[string]call{
		`{"method":"cancel","params":{"id":"j"}`: (*API).CancelJobs,
		`{"method":"hold","params":{"id":"j"}`:   (*API).HoldJobs,
		`{"method":"retry","params":{"id":"j","only":true}`: func(h *API, ctx context.Context,
			p control.JobSelection) (control.BulkResult, error) {
			return h.RetryJobs(ctx, control.JobRetryParams{JobSelection: p, WithoutDependants: true})
		},
		`{"method":"rm","params":{"id":"j","force":true}`: func(h *API, ctx context.Context,
			p control.JobSelection) (control.BulkResult, error) {
			return h.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: p, EndRunningJobs: true})
		},
		`{"method":"kill","params":{"id":"j","signal":"HUP"}`: func(h *API, ctx context.Context,
			p control.JobSelection) (control.BulkResult, error) {
			return h.KillJobs(ctx, control.JobKillParams{JobSelection: p, Signal: "HUP"})
		},
	} {
		s, c := newRelayTestAPI(t)
		s.enqueueJobs(t, draftWithID("j"))
		ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
		here, err := do(s.API, ctx, control.JobSelection{ID: "j"})
		want += fmt.Sprintf(`,"uid":%d,"right":"submit","seq":1}`, ownerUID)
		if err != nil || len(c.requestMethods) != 1 || c.requestMethods[0] != want {
			t.Errorf("got the requests %q and %v, want %q", c.requestMethods, err, want)
		}
		if len(here.ChangedJobIDs)+len(here.Refusals) != 1 {
			t.Errorf("%s: the answer is %+v", want, here)
		}
		if _, err := do(s.API, ctx, control.JobSelection{States: control.TextList{"pending"}}); err != nil {
			t.Errorf("%s with a selection of jobs: %v", want, err)
		}
		pending, _ := json.Marshal([]queue.State{queue.Pending})
		if s.Store.Counts().JobsByState[queue.Pending] > 0 && !strings.HasSuffix(c.requestMethods[len(c.requestMethods)-1],
			`,"states":`+string(pending)+`}`) {
			t.Errorf("selected jobs: got the request %s, want one for pending jobs alone",
				c.requestMethods[len(c.requestMethods)-1])
		}
	}
}

// To edit a job that another node has leased, this node asks that node to return the job to the queue, and
// then edits the job itself. The edit does not change the state of the job: for example, a held job stays
// held. If the job can no longer be edited, the error says so.
func TestEditOfRemoteJobIsAppliedLocally(t *testing.T) {
	for name, c := range map[string]struct {
		verbs []queue.Verb // changes that other callers make to the job before the edit
		want  queue.State
		err   string
	}{
		"waiting":   {nil, queue.Pending, ""},
		"held":      {[]queue.Verb{queue.VerbHold}, queue.Held, ""},
		"cancelled": {[]queue.Verb{queue.VerbCancel}, queue.Cancelled, "only waiting jobs can be changed"},
	} {
		for _, selection := range []control.JobSelection{{ID: "j"}, {AllJobs: true}} {
			s, relay := newRelayTestAPI(t)
			j := draftWithID("j")
			j.Shell, j.OnLost = "/bin/sh", queue.OnLostRetry // the edit below is valid only with these values
			s.enqueueJobs(t, j)
			for _, verb := range c.verbs {
				if err := s.Store.ChangeJob(t.Context(), 1, store.JobChange{Verb: verb, UID: ownerUID}); err != nil {
					t.Fatal(err)
				}
			}
			v, err := s.EditJobs(contextAsPeer(t, ownerUID, control.RightOperate), control.JobEditParams{
				JobSelection: selection, FieldsToSet: json.RawMessage(`{"priority":-5}`)})
			request := fmt.Sprintf(`{"method":"edit","params":{"id":"j","set":{}},"uid":%d,"right":"operate"`, ownerUID)
			for _, got := range relay.requestMethods {
				if !strings.HasPrefix(got, request) {
					t.Errorf("%s: the other node got the request %s, want %s", name, got, request)
				}
			}
			edited := len(v.ChangedJobIDs) == 1 && len(relay.requestMethods) == 1
			refused := len(v.Refusals) == 1 && strings.Contains(v.Refusals[0].Message, c.err)
			skipped := selection.AllJobs && len(v.ChangedJobIDs)+len(v.Refusals) == 0 // ended jobs are not selected
			if err != nil || c.err == "" && !edited || c.err != "" && !refused && !skipped {
				t.Errorf("%s: got %+v, %v after %d requests", name, v, err, len(relay.requestMethods))
			}
			now, err := s.Store.GetJob(t.Context(), "j")
			if err != nil || now.State != c.want || (now.Priority == -5) != (c.err == "") {
				t.Errorf("%s: the job is %s with the priority %d, %v; want %s", name, now.State, now.Priority, err, c.want)
			}
		}
	}
}

// A node that gets a request from another node checks the caller's right itself. If the caller lacks the right, the
// request changes neither another user's job nor a setting of all nodes, whichever node executes the request.
func TestRelayedRequestsCheckCallerRight(t *testing.T) {
	s, c := newRelayTestAPI(t)
	s.enqueueJobs(t, draftWithID("j"))
	stranger := contextAsPeer(t, ownerUID+1, control.RightSubmit)
	v, err := s.CancelJobs(stranger, control.JobSelection{ID: "j"})
	if err != nil || len(v.Refusals) != 1 || v.Refusals[0].Code != queue.CodeDenied || len(c.requestMethods) > 0 {
		t.Errorf("got %+v, %v and the requests %q, want a refusal by this node alone", v, err, c.requestMethods)
	}
	for request, want := range map[string]error{
		`{"method":"reload","uid":1,"right":"operate"}`:                     queue.ErrDenied,
		`{"method":"drain","uid":1,"right":"submit"}`:                       queue.ErrDenied,
		`{"method":"pause","params":{"all":true},"uid":1,"right":"submit"}`: queue.ErrDenied,
		`{"method":"gate.list","uid":1}`:                                    queue.ErrDenied,
		`{"method":"cancel","params":{"id":"j"},"uid":1}`:                   queue.ErrDenied,
		`{"method":"cancel","params":{"id":"j","uid":0},"right":"admin"}`:   queue.ErrInvalid,
		`{"method":"gate.list","right":"read"}`:                             nil,
	} {
		if _, err := c.responder.ExecuteNodeRequest(t.Context(), []byte(request)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", request, err, want)
		}
	}
	result, err := c.responder.ExecuteNodeRequest(t.Context(), fmt.Appendf(nil,
		`{"method":"cancel","params":{"id":"j"},"uid":%d,"right":"submit"}`, ownerUID+1))
	if v, _ := result.(control.BulkResult); err != nil || len(v.Refusals) != 1 || v.Refusals[0].Code != queue.CodeDenied {
		t.Errorf("a job of another user: got %+v, %v", result, err)
	}
	if j, err := s.Store.GetJob(t.Context(), "j"); err != nil || j.State != queue.Pending {
		t.Errorf("the job is %s, %v", j.State, err)
	}
}

// A request to another node identifies the job by its number, not only by its id. If the job was removed and
// a new job has the same id, the other node does not change the new job.
func TestRelayedRequestIgnoresNewJobWithSameID(t *testing.T) {
	s, c := newRelayTestAPI(t)
	s.enqueueJobs(t, draftWithID("j"))
	if err := s.Store.ChangeJob(t.Context(), 1, store.JobChange{Verb: queue.VerbRemove, UID: ownerUID}); err != nil {
		t.Fatal(err)
	}
	s.enqueueJobs(t, draftWithID("j"))
	for i, want := range []queue.State{queue.Pending, queue.Held} {
		seq := i + 1
		result, err := c.responder.ExecuteNodeRequest(t.Context(), fmt.Appendf(nil,
			`{"method":"hold","params":{"id":"j"},"uid":%d,"right":"submit","seq":%d}`, ownerUID, seq))
		v, _ := result.(control.BulkResult)
		if err != nil || seq == 1 && (len(v.Refusals) != 1 || v.Refusals[0].Code != queue.CodeNotFound) {
			t.Errorf("seq %d: got %+v, %v", seq, v, err)
		}
		if j, err := s.Store.GetJob(t.Context(), "j"); err != nil || j.State != want {
			t.Errorf("seq %d: the job is %s, %v; want %s", seq, j.State, err, want)
		}
	}
}

// A schedule can replace its running job. It does nothing if no node holds the lease of that job any more.
func TestScheduleReplaceIgnoresJobWithoutLease(t *testing.T) {
	s, c := newRelayTestAPI(t)
	s.enqueueJobs(t, draftWithID("j"))
	err := s.cancelLeasedJob(t.Context(), 1, ownerUID)
	if j, failed := s.Store.GetJob(t.Context(), "j"); err != nil || failed != nil || j.State != queue.Pending {
		t.Errorf("the job is %s, %v, %v after the requests %q", j.State, err, failed, c.requestMethods)
	}
}

// A frozen queue is paused together with its running jobs. Resuming the queue resumes the jobs of all users, also those
// on other nodes.
func TestFrozenQueueResumeResumesAllUsersJobs(t *testing.T) {
	s, c := newRelayTestAPI(t)
	s.enqueueJobs(t, draftWithID("j"))
	lease := s.claimJobs(t, 1)[0].Lease()
	_, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: lease,
		StartedAt: s.Store.Now()}}})
	if err == nil {
		err = s.Store.RecordJobPause(t.Context(), store.JobPauseRequest{Lease: lease, Paused: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	err = s.resumeJobsOfFrozenQueue(contextAsPeer(t, ownerUID+1, control.RightSubmit), &store.QueueState{})
	if err != nil || len(c.requestMethods) != 1 || !strings.Contains(c.requestMethods[0], `"method":"resume"`) {
		t.Errorf("got %v after the requests %q, want one to resume the job", err, c.requestMethods)
	}
}

// If this node itself cannot execute a request, its error is returned unchanged and names no other node.
func TestLocalErrorsNameNoOtherNode(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &cluster.Responder{API: s.api}
	request := []byte(`{"method":"why","params":{"id":"1"},"right":"read"}`)
	if reply, err := r.ExecuteNodeRequest(ctx, request); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that gave up got %v, %v", reply, err)
	}
}

// If a node can pause only some of its jobs, the caller gets the ids of the paused jobs, and the service logs the
// error.
func TestPauseOfAllJobsReportsPartialResults(t *testing.T) {
	s, c := newTwoNodeAPI(t)
	var logged bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&logged, nil))
	const failure = "the runner with pid 7 does not answer"
	c.answerByNodeID[2] = string(control.EncodeAnswer(localPauseResult([]string{"j", "k"}, errors.New(failure)), nil))
	v, err := s.PauseJobs(contextAsPeer(t, ownerUID, control.RightAdmin), control.JobSelection{AllJobs: true})
	if err != nil || !slices.Equal(v.ChangedJobIDs, []string{"j", "k"}) || len(v.Refusals) > 0 {
		t.Errorf("got %+v, %v, want the ids of the jobs that node b has paused", v, err)
	}
	if text := logged.String(); !strings.Contains(text, failure) || !strings.Contains(text, "node=b") {
		t.Errorf("the log has %q, want the error of node b", text)
	}
}

// outputPieceCluster is a store that the nodes a and b share. Node b runs every job, and answers requests with the
// pieces of output in outputReplies.
type outputPieceCluster struct {
	*fakeCluster
	outputReplies []string
	lastRequest   []byte
}

func (c *outputPieceCluster) LeaseHolderNodeID(context.Context, int64) (int64, error) { return 2, nil }

// SendRequest returns the next piece of output as the answer.
func (c *outputPieceCluster) SendRequest(_ context.Context, _ int64, request []byte, _ bool) ([]byte, error) {
	c.lastRequest = request
	piece := c.outputReplies[0]
	c.outputReplies = c.outputReplies[1:]
	return control.EncodeAnswer(json.RawMessage(piece), nil), nil
}

// While a job on another node prints nothing, ReadOutput repeats its request to that node instead of
// returning no output. So a client that follows the output occupies a read slot (the permission for one of a
// limited number of reads) only when there is output.
func TestReadOutputWaitsForSilentRemoteJob(t *testing.T) {
	const silent = `{"held":true,"cursor":[3,0]}`
	for _, c := range []struct {
		wait    bool
		pieces  []string
		rest    int
		data    string
		running bool
	}{
		{true, []string{silent, silent, `{"held":true,"cursor":[5,0],"data":"eHk="}`, silent}, 1, "xy", true},
		{true, []string{silent, `{"held":true,"cursor":[3,0],"done":true}`, silent}, 1, "", true},
		{true, []string{silent, `{"held":true,"cursor":[5,0]}`, silent}, 1, "", true},
		{true, []string{silent, `{"cursor":[0,0]}`, silent}, 1, "", false},
		{false, []string{silent, silent}, 1, "", true},
	} {
		cluster := &outputPieceCluster{fakeCluster: newFakeCluster(), outputReplies: c.pieces}
		s := newTestAPIOnCluster(t, cluster)
		piece, running, err := s.JobRouter.ReadOutput(t.Context(), 1, 7, output.StreamCursor{3, 0}, c.wait)
		if err != nil || running != c.running || string(piece.Data) != c.data || len(cluster.outputReplies) != c.rest {
			t.Errorf("%q: got %+v, running %v, %v and %d unread pieces, want %q, running %v and %d", c.pieces, piece, running,
				err, len(cluster.outputReplies), c.data, c.running, c.rest)
		}
		if !strings.Contains(string(cluster.lastRequest), `"attempt":7`) {
			t.Errorf("the request does not name the attempt: %s", cluster.lastRequest)
		}
	}
}

// lostNodeCluster is a store that the nodes a and b share. Node b is lost while it answers a request.
type lostNodeCluster struct {
	*fakeCluster
	nodeLost atomic.Bool
}

func (c *lostNodeCluster) NodeLeaseDuration() time.Duration { return 3 * time.Second }

func (c *lostNodeCluster) Nodes(context.Context, string) ([]store.NodeState, error) {
	nodes := slices.Clone(c.nodes)
	nodes[1].IsNodeLeaseValid = !c.nodeLost.Load()
	return nodes, nil
}

// SendRequest marks node b as lost, and waits for the end of ctx.
func (c *lostNodeCluster) SendRequest(ctx context.Context, _ int64, _ []byte, _ bool) ([]byte, error) {
	c.nodeLost.Store(true)
	<-ctx.Done()
	return nil, ctx.Err()
}

// If a node is lost, no other node takes over its output files. The error about such a file must not suggest
// that waiting for a takeover helps.
func TestLostNodeOutputErrorSuggestsNoTakeover(t *testing.T) {
	c := &lostNodeCluster{fakeCluster: newFakeCluster()}
	s := newTestAPIOnCluster(t, c)
	synctest.Test(t, func(t *testing.T) {
		_, err := s.JobRouter.OpenAttemptOutput(t.Context(), &queue.Attempt{Number: 1, OutputFileRef: "1-1", Node: "b"})
		const want = "the node that has the job's output does not answer; see: queuectl node list"
		if !errors.Is(err, queue.ErrUnavailable) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}
