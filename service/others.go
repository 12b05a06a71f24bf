package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// othersWithin is the time limit for the answers of all other nodes to one request. See docs/decisions/0023.
const othersWithin = 2 * time.Second

// fromNode is the answer of one node.
type fromNode struct {
	node store.NodeState
	answered
	failed error // set if there is no answer
}

// askOthers concurrently sends a request to all other live nodes, and waits at most othersWithin. It returns
// the answers in order of the nodes' names.
func (s *Service) askOthers(ctx context.Context, a ask) ([]fromNode, error) {
	if s.cluster == nil || !s.cluster.HasOthers() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	return s.askNodes(ctx, nodes, a), nil
}

// askNodes sends a request to those of the nodes that are alive, except this one. It returns when all have
// answered or ctx ends. It sends at most maxParallelAsks requests concurrently.
func (s *Service) askNodes(ctx context.Context, nodes []store.NodeState, a ask) []fromNode {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n store.NodeState) bool { return n.This || !n.Alive })
	list := make([]fromNode, len(nodes))
	places := make(chan struct{}, maxParallelAsks)
	var all sync.WaitGroup
	for i, n := range nodes {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			is, err := s.crew().ask(ctx, n.ID, a)
			list[i] = fromNode{n, is, err}
		})
	}
	all.Wait()
	return list
}

// inTurnOfAll calls f like inTurn, then asks the other nodes to apply the changed settings. A node that does
// not answer applies them when it next reads the database.
func (s *Service) inTurnOfAll(ctx context.Context, f func() error) error {
	err := s.inTurn(ctx, f)
	if err == nil {
		s.tellOthers(ctx, ask{Do: "obey"})
	}
	return err
}

// tellOthers sends a request to the other nodes and logs which nodes did not answer.
func (s *Service) tellOthers(ctx context.Context, a ask) []fromNode {
	list, err := s.askOthers(ctx, a)
	s.warnSilent(list)
	if err != nil {
		s.log.Warn("cannot notify the other nodes of a settings change; they apply it when they next read the database", "error", err)
	}
	return list
}

// warnSilent logs which nodes have not confirmed a change.
func (s *Service) warnSilent(list []fromNode) {
	for i := range list {
		if list[i].failed != nil {
			s.log.Warn("a node has not confirmed a settings change; it applies the change when it next reads the database", "node", list[i].node.Name, "error", list[i].failed)
		}
	}
}

// obey reads the settings and drains stored for all nodes and for this node, and applies them.
func (s *Service) obey(ctx context.Context) error {
	return errors.Join(s.readDrained(ctx), s.takeShared(ctx))
}

// quiet waits until no job runs on a draining node. It does not wait for the jobs of a lost node.
func (s *Service) quiet(ctx context.Context, n *store.NodeState) error {
	if n.This {
		return s.pool.Quiet(ctx)
	}
	for {
		is, err := s.crew().ask(ctx, n.ID, ask{Do: "quiet"})
		switch {
		case err != nil && ctx.Err() == nil && !s.lives(ctx, n.ID):
			return nil
		case err != nil || !is.Again:
			return err
		}
	}
}

// lives reports whether a node's lease is valid. If that is unknown, it returns true.
func (s *Service) lives(ctx context.Context, id int64) bool {
	list, err := s.nodes(ctx)
	at := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == id })
	return err != nil || at >= 0 && list[at].Alive
}

// allQuiet waits until no job runs on any node. All nodes are draining.
func (s *Service) allQuiet(ctx context.Context) error {
	nodes, err := s.nodes(ctx)
	for i := range nodes {
		if n := &nodes[i]; err == nil && n.Alive {
			err = s.quiet(ctx, n)
		}
	}
	return err
}

// lostNodes returns a problem for each node that has disappeared without a normal stop.
func (s *Service) lostNodes(ctx context.Context) (list []string) {
	if s.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return []string{fmt.Sprintf("cannot list the nodes: %v", err)}
	}
	for i := range nodes {
		if n := &nodes[i]; !n.This && !n.Alive && !n.Left {
			list = append(list, fmt.Sprintf("node %s has sent no heartbeat since %s; start its service, or remove the node with: queuectl node rm %s", n.Name, n.Heard, queue.Word(n.Name)))
		}
	}
	return list
}

// reasonsOf merges the reasons for which each node does not start a job. If one node has no reason, no reason
// applies to all, and the result is empty.
func reasonsOf(this string, here []control.Reason, others []fromNode) []control.Reason {
	if len(others) == 0 || len(here) == 0 {
		return here
	}
	var list []control.Reason
	of := map[string]int{} // index in list, by the reason's content
	add := func(node string, all []control.Reason) {
		for _, r := range all {
			key := fmt.Sprint(r.Kind, "\x00", r.Key, "\x00", r.Text)
			at, known := of[key]
			if !known {
				at = len(list)
				of[key], list = at, append(list, r)
			}
			if !slices.Contains(list[at].Nodes, node) {
				list[at].Nodes = append(list[at].Nodes, node)
			}
		}
	}
	all := append(slices.Clone(others), fromNode{node: store.NodeState{Node: store.Node{Name: this}}, answered: answered{Reasons: here}})
	// The same order on every node.
	slices.SortFunc(all, func(a, b fromNode) int { return strings.Compare(a.node.Name, b.node.Name) })
	for i := range all {
		o := &all[i]
		reasons := o.Reasons
		switch {
		case o.failed != nil:
			reasons = []control.Reason{{Kind: "node", Text: "the node does not answer, so it is unknown why the job does not start there", Next: "queuectl node list"}}
		case len(reasons) == 0:
			return nil
		}
		add(o.node.Name, reasons)
	}
	for i := range list {
		r := &list[i]
		if len(r.Nodes) == len(all) {
			r.Nodes = nil
			r.Text = strings.Replace(r.Text, notHere, notAnywhere, 1)
			continue
		}
		names := strings.Join(r.Nodes[:min(len(r.Nodes), maxNamedNodes)], ", ")
		if more := len(r.Nodes) - maxNamedNodes; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		r.Text = "on " + names + ": " + r.Text
	}
	return list
}

// maxNamedNodes is the maximum number of nodes that a message names.
const maxNamedNodes = 3
