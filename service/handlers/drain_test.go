package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// fakeCluster is a store that several nodes share. The service under test is node a.
type fakeCluster struct {
	store.Cluster
	store.NodeRequests
	nodes          []store.NodeState // this node first
	answerByNodeID map[int64]string  // answer to every request, by node id; a node without an entry does not answer
	mu             sync.Mutex
	requestMethods []string // methods of the requests that the nodes received; guarded by mu
}

func (c *fakeCluster) HasOtherActiveNodes() bool        { return true }
func (c *fakeCluster) NodeLeaseDuration() time.Duration { return 30 * time.Second }

func (c *fakeCluster) Nodes(context.Context, string) ([]store.NodeState, error) { return c.nodes, nil }

// SetNodeDrained implements store.Cluster.
func (c *fakeCluster) SetNodeDrained(_ context.Context, name string, drain bool) error {
	for i := range c.nodes {
		if c.nodes[i].Name == name {
			c.nodes[i].IsDrained = drain
		}
	}
	return nil
}

func (c *fakeCluster) IsThisNodeDrained(context.Context) (bool, error) {
	return c.nodes[0].IsDrained, nil
}

// SendRequest records the method of a request and returns the answer of the node.
func (c *fakeCluster) SendRequest(_ context.Context, nodeID int64, request []byte, _ bool) ([]byte, error) {
	var req cluster.Request
	if err := json.Unmarshal(request, &req); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.requestMethods = append(c.requestMethods, req.APIMethod)
	c.mu.Unlock()
	answer, ok := c.answerByNodeID[nodeID]
	if !ok {
		return nil, context.DeadlineExceeded
	}
	return []byte(answer), nil
}

// drainSuccessAnswer is the answer of a node that has executed a request successfully.
var drainSuccessAnswer = string(control.EncodeAnswer(control.DrainResult{}, nil))

// drainErrorAnswer returns the answer of a node that could not execute a request.
func drainErrorAnswer(message string) string {
	return string(control.EncodeAnswer(nil, &queue.Error{Code: queue.CodeUnavailable, Message: message}))
}

// newTwoNodeAPI returns the API under test of node a. Node b shares its store.
func newTwoNodeAPI(t *testing.T) (*testAPI, *fakeCluster) {
	t.Helper()
	c := newFakeCluster()
	return newTestAPIOnCluster(t, c), c
}

// newTestAPIOnCluster returns the API under test of node a, which uses the store c.
func newTestAPIOnCluster(t *testing.T, c store.Cluster) *testAPI {
	t.Helper()
	return newSQLiteTestAPIWith(t, testAPIOptions{cluster: c, nodeName: "a"})
}

// newFakeCluster returns a store that the nodes a and b share.
func newFakeCluster() *fakeCluster {
	return &fakeCluster{answerByNodeID: map[int64]string{2: drainSuccessAnswer}, nodes: []store.NodeState{
		{Node: store.Node{ID: 1, Name: "a"}, IsThisNode: true, IsNodeLeaseValid: true},
		{Node: store.Node{ID: 2, Name: "b"}, IsNodeLeaseValid: true},
	}}
}

// A drain succeeds only if every affected node confirms that no job can start on it. Otherwise the error
// contains what the nodes answered.
func TestDrainNeedsConfirmationOfEveryNode(t *testing.T) {
	hangs := drainErrorAnswer("draining has begun, but job 7 may still start")
	drains := map[string]func(*testAPI) error{
		"node drain b": func(s *testAPI) error {
			_, err := s.SetNodeDraining(contextAsPeer(t, ownerUID, control.RightAdmin), control.NodeDrainParams{Name: "b"})
			return err
		},
		"drain": func(s *testAPI) error {
			_, err := s.StartOrEndDrain(contextAsPeer(t, ownerUID, control.RightAdmin), control.DrainParams{})
			return err
		},
	}
	for verb, drain := range drains {
		for name, c := range map[string]struct {
			answers map[int64]string
			want    string
		}{
			"it confirms": {map[int64]string{2: drainSuccessAnswer}, ""},
			"its start hangs": {map[int64]string{2: hangs},
				"on b: draining has begun, but job 7 may still start"},
			"it does not answer": {nil, "draining has begun, but jobs may still start for up to 30s (setting node_lease) on " +
				"nodes that do not answer: b"},
			"its lease has ended":  {map[int64]string{}, ""},
			"it answers otherwise": {map[int64]string{2: drainErrorAnswer("database away")}, "on b: database away"},
		} {
			s, cluster := newTwoNodeAPI(t)
			cluster.answerByNodeID = c.answers
			if name == "its lease has ended" {
				cluster.nodes[1].IsNodeLeaseValid = false
			}
			err := drain(s)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%s, %s: got %v, want no error", verb, name, err)
			case c.want != "" && (!errors.Is(err, queue.ErrUnavailable) || err.Error() != c.want):
				t.Errorf("%s, %s: got %v, want %q", verb, name, err, c.want)
			}
		}
	}
}

// The error of a drain names at most cluster.MaxNodeNamesInMessage nodes and counts the others. For nodes that do not
// respond, it says how long jobs may still start on them.
func TestDrainErrorCountsEveryNode(t *testing.T) {
	const silence = "draining has begun, but jobs may still start for up to 30s (setting node_lease) on nodes that do " +
		"not answer: "
	const more = "%d more nodes report an error, so jobs may still start there; repeat the command"
	for _, c := range []struct {
		failing, silent int
		want            []string
	}{
		{3, 0, []string{"on b: x", "on c: x", "on d: x"}},
		{5, 0, []string{"on b: x", "on c: x", "on d: x", fmt.Sprintf(more, 2)}},
		{0, 3, []string{silence + "b, c, d"}},
		{0, 5, []string{silence + "b, c, d and 2 more"}},
		{1, 2, []string{"on b: x", silence + "c, d"}},
		{1, 5, []string{"on b: x", silence + "c, d and 3 more"}},
		{2, 1, []string{"on b: x", "on c: x", silence + "d"}},
		{5, 5, []string{"on b: x", "on c: x", silence + "g and 4 more", fmt.Sprintf(more, 3)}},
	} {
		s, cluster := newTwoNodeAPI(t)
		cluster.answerByNodeID = map[int64]string{}
		for i := range c.failing + c.silent {
			id := int64(i + 2)
			cluster.nodes = append(cluster.nodes[:i+1:i+1],
				store.NodeState{Node: store.Node{ID: id, Name: string(rune('b' + i))}, IsNodeLeaseValid: true})
			if i < c.failing {
				cluster.answerByNodeID[id] = drainErrorAnswer("x")
			}
		}
		err := s.confirmDrainOfNodes(t.Context(), cluster.nodes)
		if want := strings.Join(c.want, "; "); err == nil || err.Error() != want {
			t.Errorf("%d nodes fail and %d do not answer: got %v, want %s", c.failing, c.silent, err, want)
		}
	}
}

// slowDrainCluster is a fakeCluster whose nodes answer after answerDelay.
type slowDrainCluster struct {
	*fakeCluster
	answerDelay time.Duration
}

// SendRequest waits for answerDelay before it returns the answer of the node.
func (c *slowDrainCluster) SendRequest(ctx context.Context, nodeID int64, request []byte, mayTakeLong bool) ([]byte,
	error) {
	select {
	case <-time.After(c.answerDelay):
		return c.fakeCluster.SendRequest(ctx, nodeID, request, mayTakeLong)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A drain also waits for a node that waits for its runners for the maximum time. If that node then reports an error,
// the drain returns this error.
func TestDrainWaitsForTheSlowestAnswer(t *testing.T) {
	c := newFakeCluster()
	const hangs = "the runner with pid 7 does not answer"
	c.answerByNodeID = map[int64]string{2: drainErrorAnswer(hangs)}
	s := newTestAPIOnCluster(t, &slowDrainCluster{c, worker.MaxNoJobStartsWait +
		cluster.BroadcastTimeout - time.Millisecond})
	synctest.Test(t, func(t *testing.T) {
		err := s.confirmDrainOfNodes(t.Context(), c.nodes[1:])
		if want := "on b: " + hangs; err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	})
}

// A drain waits until all nodes confirm that no job can start on them. Other changes on all nodes, such as a changed
// setting, do not wait for runners.
func TestOnlyDrainWaitsForNodeConfirmation(t *testing.T) {
	s, c := newTwoNodeAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightAdmin)
	_, err := s.StartOrEndDrain(ctx, control.DrainParams{})
	_, err2 := s.StartOrEndDrain(ctx, control.DrainParams{EndDrain: true})
	_, err3 := s.SetNodeDraining(ctx, control.NodeDrainParams{Name: "b"})
	_, err4 := s.SetNodeDraining(ctx, control.NodeDrainParams{Name: "b", EndDrain: true})
	if got, want := strings.Join(c.requestMethods, " "), "drain reload drain reload"; got != want ||
		errors.Join(err, err2, err3, err4) != nil {
		t.Errorf("asked for %q, want %q; errors %v", got, want, errors.Join(err, err2, err3, err4))
	}
}

// A drain that waits for confirmation fails if another request ends the drain, because jobs can then start
// again.
func TestWaitingDrainFailsIfDrainEnds(t *testing.T) {
	ends := &drainEndingCluster{fakeCluster: newFakeCluster()}
	s := newTestAPIOnCluster(t, ends)
	ctx := contextAsPeer(t, ownerUID, control.RightAdmin)
	ends.endDrain = func() { s.StartOrEndDrain(ctx, control.DrainParams{EndDrain: true}) }
	if _, err := s.StartOrEndDrain(ctx, control.DrainParams{}); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("drain: got %v, want the wrong state", err)
	}
	ends.endDrain = func() { s.SetNodeDraining(ctx, control.NodeDrainParams{Name: "b", EndDrain: true}) }
	if _, err := s.SetNodeDraining(ctx, control.NodeDrainParams{Name: "b"}); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("node drain: got %v, want the wrong state", err)
	}
}

// drainEndingCluster calls endDrain, which ends the drain, when the service asks the first node to confirm the drain.
type drainEndingCluster struct {
	*fakeCluster
	endDrain func()
}

// SendRequest implements store.NodeRequests.
func (c *drainEndingCluster) SendRequest(ctx context.Context, nodeID int64, request []byte, mayTakeLong bool) ([]byte,
	error) {
	if end := c.endDrain; end != nil {
		c.endDrain = nil
		end()
	}
	return c.fakeCluster.SendRequest(ctx, nodeID, request, mayTakeLong)
}

// A read of the stored drain has no effect if the result of a later read was already applied.
func TestOlderDrainReadIsIgnored(t *testing.T) {
	s, _ := newTwoNodeAPI(t)
	older, newer := s.Drainer.BeginDrainRead(), s.Drainer.BeginDrainRead()
	newer(true)
	older(false)
	if !s.Pool.IsDraining() {
		t.Error("the result of an older read has ended the drain")
	}
	s.Drainer.BeginDrainRead()(false)
	if s.Pool.IsDraining() {
		t.Error("the result of a later read has not ended the drain")
	}
}
