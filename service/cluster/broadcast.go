package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// BroadcastTimeout limits how long a node waits for the answers of all other nodes to one request. See
// docs/decisions/0023.
const BroadcastTimeout = 2 * time.Second

// MaxNodeNamesInMessage is the maximum number of node names in one message.
const MaxNodeNamesInMessage = 3

// NodeResult is the answer of one node to a request. R is the type of the answer's result.
type NodeResult[R any] struct {
	Node     store.NodeState
	Result   R
	Answered bool  // the node has answered, perhaps with an error
	Err      error // the error in the answer, or the reason why no answer came
}

// Broadcast sends a request to all other live nodes at the same time, and waits for the answers for at most
// BroadcastTimeout. The answers are sorted by the names of the nodes.
func Broadcast[R any](ctx context.Context, r *JobRouter, req Request) ([]NodeResult[R], error) {
	if r.Cluster == nil || !r.Cluster.HasOtherActiveNodes() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, BroadcastTimeout)
	defer cancel()
	nodes, err := r.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	return SendToNodes[R](ctx, r, nodes, req), nil
}

// SendToNodes sends a request to all live nodes in the list, except this node. It returns when all these nodes have
// answered, or when ctx ends. At most maxParallelNodeRequests of the requests are in progress at the same time.
func SendToNodes[R any](ctx context.Context, r *JobRouter, nodes []store.NodeState, req Request) []NodeResult[R] {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n store.NodeState) bool {
		return n.IsThisNode ||
			!n.IsNodeLeaseValid
	})
	list := make([]NodeResult[R], len(nodes))
	slots := make(chan struct{}, maxParallelNodeRequests)
	var requests sync.WaitGroup
	for i, n := range nodes {
		slots <- struct{}{}
		requests.Go(func() {
			defer func() { <-slots }()
			list[i].Node = n
			list[i].Answered, list[i].Err = r.sendToNode(ctx, n.ID, req, &list[i].Result)
		})
	}
	requests.Wait()
	return list
}

// WaitIdleTimeout limits how long a node waits for its jobs to end when another node requests this. After this time,
// the node answers with the number of jobs that are still running.
const WaitIdleTimeout = outputReadTimeout

// WaitNodeIdle waits until no job runs on a node that is being drained. It also returns if the node is lost.
func (r *JobRouter) WaitNodeIdle(ctx context.Context, n *store.NodeState) error {
	if n.IsThisNode {
		return r.Pool.AwaitNoLeases(ctx)
	}
	for {
		var drainResult control.DrainResult
		_, err := r.sendToNode(ctx, n.ID, Request{APIMethod: "drain", Params: control.DrainParams{WaitUntilIdle: true},
			MayTakeLong: true}, &drainResult)
		switch {
		case err != nil && ctx.Err() == nil && !r.isNodeAlive(ctx, n.ID):
			return nil
		case err != nil || drainResult.RunningJobs == 0:
			return err
		}
	}
}

// isNodeAlive reports whether a node's lease is valid. If the nodes cannot be read from the store, it returns true.
func (l *NodeRegistry) isNodeAlive(ctx context.Context, id int64) bool {
	list, err := l.Nodes(ctx)
	i := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == id })
	return err != nil || i >= 0 && list[i].IsNodeLeaseValid
}

// WaitAllNodesIdle waits until no job runs on any node. The caller must have drained all nodes before, so that no
// new job starts.
func (r *JobRouter) WaitAllNodesIdle(ctx context.Context) error {
	nodes, err := r.Nodes(ctx)
	for i := range nodes {
		if n := &nodes[i]; err == nil && n.IsNodeLeaseValid {
			err = r.WaitNodeIdle(ctx, n)
		}
	}
	return err
}

// LostNodeProblems returns one problem for each node that has disappeared without being stopped.
func (l *NodeRegistry) LostNodeProblems(ctx context.Context) (problems []string) {
	if l.Cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, BroadcastTimeout)
	defer cancel()
	nodes, err := l.Nodes(ctx)
	if err != nil {
		return []string{fmt.Sprintf("cannot list the nodes: %v", err)}
	}
	for i := range nodes {
		if n := &nodes[i]; !n.IsThisNode && !n.IsNodeLeaseValid && !n.ServiceStopped {
			problems = append(problems,
				fmt.Sprintf("node %s has sent no heartbeat since %s; start its service, or remove the node "+
					"with: queuectl node rm %s", n.Name, n.LastHeartbeatAt, queue.QuoteShellWord(n.Name)))
		}
	}
	return problems
}
