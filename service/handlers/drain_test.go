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

// drainCluster is a store that several nodes share. The service under test is node a.
type drainCluster struct {
	store.Cluster
	store.NodeRequests
	nodes    []store.NodeState // this node first
	answers  map[int64]string  // answer to every request, by node id; a node without an entry does not answer
	mu       sync.Mutex
	requests []string // the requests that the nodes received; guarded by mu
}

func (c *drainCluster) HasOthers() bool                  { return true }
func (c *drainCluster) NodeLeaseDuration() time.Duration { return 30 * time.Second }

func (c *drainCluster) Nodes(context.Context, string) ([]store.NodeState, error) { return c.nodes, nil }

// DrainNode implements store.Cluster.
func (c *drainCluster) DrainNode(_ context.Context, name string, drain bool) error {
	for i := range c.nodes {
		if c.nodes[i].Name == name {
			c.nodes[i].Drained = drain
		}
	}
	return nil
}

func (c *drainCluster) IsDrained(context.Context) (bool, error) { return c.nodes[0].Drained, nil }

// SendRequest records the method of a request and returns the answer of the node.
func (c *drainCluster) SendRequest(_ context.Context, node int64, raw []byte, _ bool) ([]byte, error) {
	var req cluster.Request
	if err := json.Unmarshal(raw, &req); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.requests = append(c.requests, req.Method)
	c.mu.Unlock()
	answer, ok := c.answers[node]
	if !ok {
		return nil, context.DeadlineExceeded
	}
	return []byte(answer), nil
}

// successAnswer is the answer of a node that has executed a request successfully.
var successAnswer = string(control.EncodeAnswer(control.DrainResult{}, nil))

// failedAnswer returns the answer of a node that could not execute a request.
func failedAnswer(message string) string {
	return string(control.EncodeAnswer(nil, &queue.Error{Code: queue.CodeUnavailable, Message: message}))
}

// newSharedRig returns the rig of node a (an API under test). Node b shares its store.
func newSharedRig(t *testing.T) (*rig, *drainCluster) {
	t.Helper()
	c := newDrainCluster()
	return newSharedRigOn(t, c), c
}

// newSharedRigOn returns the rig of node a (an API under test), which uses the store c.
func newSharedRigOn(t *testing.T, c store.Cluster) *rig {
	t.Helper()
	return newStoreRigWith(t, rigOptions{cluster: c, node: "a"})
}

// newDrainCluster returns a store that the nodes a and b share.
func newDrainCluster() *drainCluster {
	return &drainCluster{answers: map[int64]string{2: successAnswer}, nodes: []store.NodeState{
		{Node: store.Node{ID: 1, Name: "a"}, IsSelf: true, LeaseValid: true},
		{Node: store.Node{ID: 2, Name: "b"}, LeaseValid: true},
	}}
}

// A drain succeeds only if every affected node confirms that no job can start on it. Otherwise the error
// contains what the nodes answered.
func TestDrainReportsWhatEachNodeConfirms(t *testing.T) {
	hangs := failedAnswer("draining has begun, but job 7 may still start")
	drains := map[string]func(*rig) error{
		"node drain b": func(s *rig) error {
			_, err := s.NodeDrain(asPeer(t, ownerUID, control.RightAdmin), control.NodeDrain{Name: "b"})
			return err
		},
		"drain": func(s *rig) error {
			_, err := s.Drain(asPeer(t, ownerUID, control.RightAdmin), control.Drain{})
			return err
		},
	}
	for verb, drain := range drains {
		for name, c := range map[string]struct {
			answers map[int64]string
			want    string
		}{
			"it confirms": {map[int64]string{2: successAnswer}, ""},
			"its start hangs": {map[int64]string{2: hangs},
				"on b: draining has begun, but job 7 may still start"},
			"it does not answer": {nil, "draining has begun, but jobs may still start for up to 30s (setting node_lease) on " +
				"nodes that do not answer: b"},
			"its lease has ended":  {map[int64]string{}, ""},
			"it answers otherwise": {map[int64]string{2: failedAnswer("database away")}, "on b: database away"},
		} {
			s, cluster := newSharedRig(t)
			cluster.answers = c.answers
			if name == "its lease has ended" {
				cluster.nodes[1].LeaseValid = false
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

// The error of a drain names at most cluster.MaxNamedNodes nodes and counts the others. For nodes that do not
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
		s, cluster := newSharedRig(t)
		cluster.answers = map[int64]string{}
		for i := range c.failing + c.silent {
			id := int64(i + 2)
			cluster.nodes = append(cluster.nodes[:i+1:i+1],
				store.NodeState{Node: store.Node{ID: id, Name: string(rune('b' + i))}, LeaseValid: true})
			if i < c.failing {
				cluster.answers[id] = failedAnswer("x")
			}
		}
		err := s.confirmDrain(t.Context(), cluster.nodes)
		if want := strings.Join(c.want, "; "); err == nil || err.Error() != want {
			t.Errorf("%d nodes fail and %d do not answer: got %v, want %s", c.failing, c.silent, err, want)
		}
	}
}

// slowCluster is a drainCluster whose nodes answer with a delay.
type slowCluster struct {
	*drainCluster
	delay time.Duration
}

// SendRequest waits for the delay before it returns the answer of the node.
func (c *slowCluster) SendRequest(ctx context.Context, node int64, raw []byte, isSlow bool) ([]byte, error) {
	select {
	case <-time.After(c.delay):
		return c.drainCluster.SendRequest(ctx, node, raw, isSlow)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A drain waits for a node that waits the maximum time for its runners. If that node then reports an error,
// the drain returns this error.
func TestDrainWaitsForTheSlowestAnswer(t *testing.T) {
	c := newDrainCluster()
	const hangs = "the runner with pid 7 does not answer"
	c.answers = map[int64]string{2: failedAnswer(hangs)}
	s := newSharedRigOn(t, &slowCluster{c, worker.MaxNoStartsWait + cluster.BroadcastTimeout - time.Millisecond})
	synctest.Test(t, func(t *testing.T) {
		err := s.confirmDrain(t.Context(), c.nodes[1:])
		if want := "on b: " + hangs; err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	})
}

// A drain waits until all nodes confirm it. Other changes of all nodes, such as a changed setting, do not
// wait for runners.
func TestOnlyADrainAsksNodesToConfirm(t *testing.T) {
	s, c := newSharedRig(t)
	ctx := asPeer(t, ownerUID, control.RightAdmin)
	_, err := s.Drain(ctx, control.Drain{})
	_, err2 := s.Drain(ctx, control.Drain{EndDrain: true})
	_, err3 := s.NodeDrain(ctx, control.NodeDrain{Name: "b"})
	_, err4 := s.NodeDrain(ctx, control.NodeDrain{Name: "b", EndDrain: true})
	if got, want := strings.Join(c.requests, " "), "drain reload drain reload"; got != want ||
		errors.Join(err, err2, err3, err4) != nil {
		t.Errorf("asked for %q, want %q; errors %v", got, want, errors.Join(err, err2, err3, err4))
	}
}

// A drain that waits for confirmation fails if another request ends the drain, because jobs can then start
// again.
func TestDrainFailsIfItIsEnded(t *testing.T) {
	ends := &drainEndingCluster{drainCluster: newDrainCluster()}
	s := newSharedRigOn(t, ends)
	ctx := asPeer(t, ownerUID, control.RightAdmin)
	ends.endDrain = func() { s.Drain(ctx, control.Drain{EndDrain: true}) }
	if _, err := s.Drain(ctx, control.Drain{}); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("drain: got %v, want the wrong state", err)
	}
	ends.endDrain = func() { s.NodeDrain(ctx, control.NodeDrain{Name: "b", EndDrain: true}) }
	if _, err := s.NodeDrain(ctx, control.NodeDrain{Name: "b"}); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("node drain: got %v, want the wrong state", err)
	}
}

// drainEndingCluster makes another request end the drain (endDrain) when the service asks the first node to confirm it.
type drainEndingCluster struct {
	*drainCluster
	endDrain func()
}

// SendRequest implements store.NodeRequests.
func (c *drainEndingCluster) SendRequest(ctx context.Context, node int64, raw []byte, isSlow bool) ([]byte, error) {
	if end := c.endDrain; end != nil {
		c.endDrain = nil
		end()
	}
	return c.drainCluster.SendRequest(ctx, node, raw, isSlow)
}

// A read of the stored drain has no effect if the result of a later read was already applied.
func TestOlderReadDoesNotEndADrain(t *testing.T) {
	s, _ := newSharedRig(t)
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
