package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// A drain is stored first. A drain of all nodes is stored as a setting, and a drain of one node in that
// node's row. Then the service sends each affected node a request to confirm it. A node confirms once it
// has read the stored drain and no job can start on it any more. If a node does not confirm in time, the
// user gets an error.

// drainKey is the stored setting that keeps a drain across restarts. It is not a configuration key.
const drainKey = "drain"

// confirmTimeout is how long a drain waits for nodes to confirm. Each node first waits for its runners.
const confirmTimeout = worker.MaxNoStartsWait + broadcastTimeout

// Drain implements control.API.
func (s *Service) Drain(ctx context.Context, p control.Drain) (control.Draining, error) {
	value := "on"
	if p.Off {
		value = ""
	}
	err := s.withSettingsLock(ctx, func() error {
		err := s.storeSetting(ctx, store.Setting{Key: drainKey, Value: value, UID: control.PeerFrom(ctx).UID})
		if err == nil {
			s.mu.Lock()
			s.allDrained = !p.Off
			s.mu.Unlock()
			s.applyDrain()
		}
		return err
	})
	switch {
	case err != nil:
	case p.Off:
		s.notifyNodes(ctx, nodeRequest{Command: "obey"})
	default:
		err = s.confirmDrainOfAll(ctx, p.Wait)
	}
	if err != nil {
		return control.Draining{}, err
	}
	state := control.Draining{Draining: s.pool.Draining(), Running: s.pool.Busy()}
	if s.cluster != nil { // count in the store, which includes jobs that run on other nodes
		state.Running = int(s.store.Counts().States[queue.Processing])
	}
	return state, nil
}

// confirmDrainOfAll waits until no job can start on any node. If wait is set, it then waits until no job
// runs.
func (s *Service) confirmDrainOfAll(ctx context.Context, wait bool) error {
	nodes, err := s.nodes(ctx)
	if err == nil {
		err = s.confirmDrain(ctx, nodes)
	}
	if err == nil && wait {
		err = s.waitAllIdle(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !s.allDrained {
		return errDrainEnded
	}
	return err
}

// errDrainEnded is returned by a drain that another request ended while it waited.
var errDrainEnded = queue.Errorf(queue.CodeWrongState, "the drain was ended before it was complete, so jobs start again; to drain again, repeat the command")

// NodeDrain implements control.API.
func (s *Service) NodeDrain(ctx context.Context, p control.NodeDrain) (v control.NodeView, err error) {
	n, err := s.nodeNamed(ctx, p.Name, "queuectl drain")
	if err != nil {
		return v, err
	}
	verb := "node.drain"
	if p.Off {
		verb = "node.drain off"
	}
	if err := s.audit(ctx, verb, p.Name, nil); err != nil {
		return v, err
	}
	if err := s.cluster.DrainNode(ctx, p.Name, !p.Off); err != nil {
		return v, err
	}
	if p.Off {
		err = s.endNodeDrain(ctx, n)
	} else {
		err = s.confirmDrain(ctx, []store.NodeState{n})
	}
	if err == nil && p.Wait && n.Alive {
		err = s.waitIdle(ctx, &n)
	}
	if err == nil {
		n, err = s.nodeNamed(ctx, p.Name, "")
	}
	if err == nil && !p.Off && !n.Drained {
		err = errDrainEnded
	}
	if err != nil {
		return v, err
	}
	return viewNode(&n), nil
}

// endNodeDrain ends a node's drain, so that jobs start there again. A node that does not answer ends its
// drain when it next reads the store.
func (s *Service) endNodeDrain(ctx context.Context, n store.NodeState) error {
	if n.This {
		return s.readDrained(ctx)
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	s.warnUnconfirmed(s.sendToNodes(timeoutCtx, []store.NodeState{n}, nodeRequest{Command: "obey"}))
	return nil
}

// confirmDrain waits until no job can start on these nodes any more. Its error names the nodes on which a job
// may still start, and those that did not answer. A node whose lease has expired cannot start jobs.
func (s *Service) confirmDrain(ctx context.Context, nodes []store.NodeState) error {
	timeoutCtx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	thisNode := nodeResult{}
	var local sync.WaitGroup
	if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.This }); i >= 0 {
		thisNode.node = nodes[i]
		local.Go(func() { thisNode.failed = s.confirmDrainHere(timeoutCtx) })
	}
	others := s.sendToNodes(timeoutCtx, nodes, nodeRequest{Command: "drained"})
	local.Wait()
	var problems []string
	for _, result := range append(others, thisNode) {
		switch err := result.failed; {
		case err == nil || isNodeLost(err):
		case ctx.Err() != nil:
			return ctx.Err()
		case s.cluster == nil:
			return err
		case result.node.This || result.Error != "":
			problems = append(problems, "on "+result.node.Name+": "+err.Error())
		default:
			problems = append(problems, fmt.Sprintf("draining has begun, but node %s does not answer, so jobs may still start there for up to %v (setting node_lease)", result.node.Name, s.cluster.Lease()))
		}
	}
	if more := len(problems) - maxNamedNodes; more > 0 {
		problems = append(problems[:maxNamedNodes], fmt.Sprintf("jobs may also still start on %d more nodes", more))
	}
	if len(problems) == 0 {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "%s", strings.Join(problems, "; "))
}

// confirmDrainHere waits until no job can start on this node any more.
func (s *Service) confirmDrainHere(ctx context.Context) error {
	if s.cluster != nil {
		if err := s.readDrained(ctx); err != nil {
			return err
		}
	}
	return s.pool.AwaitNoStarts(ctx, worker.NoStartsWithin)
}

// beginDrainRead must be called before each read of whether this node is drained. The caller passes the
// result of the read to the returned function record. Reads may finish in a different order than they
// began. So record ignores a result if the result of a later read was already applied.
func (s *Service) beginDrainRead() (record func(on bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drainReads++
	number := s.drainReads
	return func(on bool) {
		s.mu.Lock()
		if number > s.lastDrainRead {
			s.lastDrainRead, s.nodeDrained = number, on
		}
		s.mu.Unlock()
		s.applyDrain()
	}
}

// readDrained reads from the store whether this node is drained, and stops or resumes starting jobs
// accordingly.
func (s *Service) readDrained(ctx context.Context) error {
	record := s.beginDrainRead()
	drained, err := s.cluster.Drained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// endDrain returns the command that a user can enter to end the drain of this service.
func (s *Service) endDrain() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodeDrained && !s.allDrained {
		return "queuectl node drain " + queue.Word(s.node) + " --off"
	}
	return "queuectl drain --off"
}

// applyDrain stops the pool from claiming jobs if all nodes or this node are drained. If neither is
// drained, it lets the pool claim.
func (s *Service) applyDrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.Drain(s.allDrained || s.nodeDrained)
}
