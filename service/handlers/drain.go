package handlers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// This file implements drains. A drained node starts no more jobs. A drain is stored first: a drain of all nodes as a
// setting, and a drain of one node in the row of that node. Then the service sends each affected node a request to
// confirm the drain. A node confirms the drain after it has read the stored drain and no job can start on it any more.
// If a node does not confirm in time, the user gets an error.
//
// The request to confirm has the method "drain", both for a drain of all nodes and for a drain of one node. At the end
// of a drain, the service sends a request with the method "reload" instead.

// drainConfirmTimeout is how long a drain waits for all nodes to confirm that no more jobs start. A node
// confirms only after its runners have confirmed, which takes up to worker.MaxNoJobStartsWait.
const drainConfirmTimeout = worker.MaxNoJobStartsWait + cluster.BroadcastTimeout

// StartOrEndDrain implements control.API.
func (h *API) StartOrEndDrain(ctx context.Context, p control.DrainParams) (control.DrainResult, error) {
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed {
		return h.drainForOtherNode(ctx, p.WaitUntilIdle)
	}
	value := "on"
	if p.EndDrain {
		value = ""
	}
	err := h.SettingsLock.RunLocked(ctx, func() error {
		err := h.storeSetting(ctx, store.Setting{Key: settings.DrainSettingKey, Value: value,
			SetByUID: control.PeerFrom(ctx).UID})
		if err == nil {
			h.DrainState.AllNodesDrained.Store(!p.EndDrain)
			h.Drainer.ApplyDrainToPool()
		}
		return err
	})
	switch {
	case err != nil:
	case p.EndDrain:
		h.reloadOtherNodesSettings(ctx)
	default:
		err = h.confirmDrainOfAllNodes(ctx, p.WaitUntilIdle)
	}
	if err != nil {
		return control.DrainResult{}, err
	}
	state := control.DrainResult{Draining: h.Pool.IsDraining(), RunningJobs: h.Pool.BusyWorkerCount()}
	if h.Cluster != nil { // count in the store, because this pool does not know the jobs that run on other nodes
		state.RunningJobs = int(h.Store.Counts().JobsByState[queue.Processing])
	}
	return state, nil
}

// drainForOtherNode executes a drain request of another node. If waitIdle is false, it returns when no job can start on
// this node. If waitIdle is true, it returns when no job runs on this node, or after cluster.WaitIdleTimeout. If jobs
// are still running then, result.RunningJobs is above 0.
func (h *API) drainForOtherNode(ctx context.Context, waitIdle bool) (result control.DrainResult, err error) {
	if !waitIdle {
		if err = h.ReloadSharedSettings(ctx); err == nil {
			err = h.Pool.AwaitNoJobStarts(ctx, worker.NoJobStartsTimeout)
		}
		return result, err
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, cluster.WaitIdleTimeout)
	defer cancel()
	if h.Pool.AwaitNoLeases(timeoutCtx) != nil {
		result.RunningJobs = max(1, h.Pool.BusyWorkerCount())
	}
	return result, ctx.Err()
}

// confirmDrainOfAllNodes waits until no job can start on any node. If waitIdle is true, it then also waits until no
// job runs on any node.
func (h *API) confirmDrainOfAllNodes(ctx context.Context, waitIdle bool) error {
	nodes, err := h.NodeRegistry.Nodes(ctx)
	if err == nil {
		err = h.confirmDrainOfNodes(ctx, nodes)
	}
	if err == nil && waitIdle {
		err = h.JobRouter.WaitAllNodesIdle(ctx)
	}
	if err == nil && !h.DrainState.AllNodesDrained.Load() {
		return errDrainEnded
	}
	return err
}

// errDrainEnded is the error of a drain request if another request ends the drain while the drain request still waits
// for its confirmation.
var errDrainEnded = queue.Errorf(queue.CodeWrongState,
	"the drain was ended before it was complete, so jobs start again; to drain again, repeat the command")

// NodeDrain implements control.API.
func (h *API) SetNodeDraining(ctx context.Context, p control.NodeDrainParams) (v control.NodeView, err error) {
	n, err := h.NodeRegistry.FindNodeByName(ctx, p.Name, "queuectl drain")
	if err != nil {
		return v, err
	}
	verb := "node.drain"
	if p.EndDrain {
		verb = "node.drain off"
	}
	if err := h.Guard.RecordAudit(ctx, verb, p.Name, nil); err != nil {
		return v, err
	}
	if err := h.Cluster.SetNodeDrained(ctx, p.Name, !p.EndDrain); err != nil {
		return v, err
	}
	if p.EndDrain {
		err = h.endNodeDrain(ctx, n)
	} else {
		err = h.confirmDrainOfNodes(ctx, []store.NodeState{n})
	}
	if err == nil && p.WaitUntilIdle && n.IsNodeLeaseValid {
		err = h.JobRouter.WaitNodeIdle(ctx, &n)
	}
	if err == nil {
		n, err = h.NodeRegistry.FindNodeByName(ctx, p.Name, "")
	}
	if err == nil && !p.EndDrain && !n.IsDrained {
		err = errDrainEnded
	}
	if err != nil {
		return v, err
	}
	return newNodeView(&n), nil
}

// endNodeDrain ends the drain of one node, so that jobs start on that node again. A node that does not
// respond ends its drain when it next reads the store.
func (h *API) endNodeDrain(ctx context.Context, n store.NodeState) error {
	if n.IsThisNode {
		return h.Drainer.ReloadNodeDrain(ctx)
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, cluster.BroadcastTimeout)
	defer cancel()
	warnUnconfirmedNodes(h, cluster.SendToNodes[control.NoParams](withServiceRights(timeoutCtx), h.JobRouter,
		[]store.NodeState{n}, reloadSettingsRequest))
	return nil
}

// confirmDrainOfNodes waits until no job can start on these nodes any more. Its error names the nodes that can still
// start jobs or did not respond. It does not wait for a node whose lease has expired, because such a node cannot start
// jobs.
func (h *API) confirmDrainOfNodes(ctx context.Context, nodes []store.NodeState) error {
	timeoutCtx, cancel := context.WithTimeout(ctx, drainConfirmTimeout)
	defer cancel()
	thisNode := cluster.NodeResult[control.DrainResult]{Answered: true}
	var localWait sync.WaitGroup
	if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.IsThisNode }); i >= 0 {
		thisNode.Node = nodes[i]
		localWait.Go(func() { thisNode.Err = h.awaitLocalDrain(timeoutCtx) })
	}
	others := cluster.SendToNodes[control.DrainResult](timeoutCtx, h.JobRouter, nodes,
		cluster.Request{APIMethod: "drain", Params: control.DrainParams{}})
	localWait.Wait()
	var problems, unresponsiveNodes []string
	for _, result := range append(others, thisNode) {
		switch err := result.Err; {
		case err == nil || cluster.IsNodeLost(err):
		case ctx.Err() != nil:
			return ctx.Err()
		case h.Cluster == nil:
			return err
		case result.Answered:
			problems = append(problems, "on "+result.Node.Name+": "+err.Error())
		default:
			unresponsiveNodes = append(unresponsiveNodes, result.Node.Name)
		}
	}
	if len(problems)+len(unresponsiveNodes) == 0 {
		return nil
	}
	// Name at most MaxNodeNamesInMessage nodes. If some nodes did not respond, name at least one of them.
	answered, unanswered := len(problems), len(unresponsiveNodes)
	problems = problems[:min(answered, cluster.MaxNodeNamesInMessage-min(1, unanswered))]
	unresponsiveNodes = unresponsiveNodes[:min(unanswered, cluster.MaxNodeNamesInMessage-len(problems))]
	answered, unanswered = answered-len(problems), unanswered-len(unresponsiveNodes) // nodes that are not named
	if len(unresponsiveNodes) > 0 {
		names := strings.Join(unresponsiveNodes, ", ")
		if unanswered > 0 {
			names += fmt.Sprintf(" and %d more", unanswered)
		}
		problems = append(problems, fmt.Sprintf("draining has begun, but jobs may still start for up to %v (setting "+
			"node_lease) on nodes that do not answer: %s", h.Cluster.NodeLeaseDuration(), names))
	}
	if answered > 0 {
		problems = append(problems, fmt.Sprintf("%d more nodes report an error, so jobs may still start there; repeat "+
			"the command", answered))
	}
	return queue.Errorf(queue.CodeUnavailable, "%s", strings.Join(problems, "; "))
}

// awaitLocalDrain waits until no job can start on this node any more.
func (h *API) awaitLocalDrain(ctx context.Context) error {
	if h.Cluster != nil {
		if err := h.Drainer.ReloadNodeDrain(ctx); err != nil {
			return err
		}
	}
	return h.Pool.AwaitNoJobStarts(ctx, worker.NoJobStartsTimeout)
}
