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

// broadcastTimeout is the time limit for the answers of all other nodes to one request. See
// docs/decisions/0023.
const broadcastTimeout = 2 * time.Second

// nodeResult is the answer of one node.
type nodeResult struct {
	node store.NodeState
	nodeReply
	failed error // why there is no answer; nil if the node answered
}

// broadcast concurrently sends a request to all other live nodes, and waits at most broadcastTimeout. It
// returns the answers in order of the nodes' names.
func (r *jobRouter) broadcast(ctx context.Context, req nodeRequest) ([]nodeResult, error) {
	if r.cluster == nil || !r.cluster.HasOthers() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	nodes, err := r.nodeList.nodes(ctx)
	if err != nil {
		return nil, err
	}
	return r.sendToNodes(ctx, nodes, req), nil
}

// sendToNodes sends a request to all living nodes in a list, except this node. It returns when all of them
// have answered or ctx ends. It sends at most maxParallelRequests requests concurrently.
func (r *jobRouter) sendToNodes(ctx context.Context, nodes []store.NodeState, req nodeRequest) []nodeResult {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n store.NodeState) bool { return n.This || !n.Alive })
	list := make([]nodeResult, len(nodes))
	slots := make(chan struct{}, maxParallelRequests)
	var all sync.WaitGroup
	for i, n := range nodes {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			reply, err := r.sendRequest(ctx, n.ID, req)
			list[i] = nodeResult{n, reply, err}
		})
	}
	all.Wait()
	return list
}

// applyOnAllNodes calls f while it holds token, then asks the other nodes to apply the changed
// settings. A node that does not answer applies the changes when it next reads the database.
func (ch *changer) applyOnAllNodes(ctx context.Context, f func() error) error {
	err := ch.lock.withSettingsLock(ctx, f)
	if err == nil {
		ch.notifyNodes(ctx, nodeRequest{Command: "obey"})
	}
	return err
}

// notifyNodes sends a request to the other nodes and logs which nodes did not answer.
func (ch *changer) notifyNodes(ctx context.Context, req nodeRequest) []nodeResult {
	list, err := ch.router.broadcast(ctx, req)
	ch.warnUnconfirmed(list)
	if err != nil {
		ch.log.Warn("cannot notify the other nodes of a settings change; they apply it when they next read the database", "error", err)
	}
	return list
}

// warnUnconfirmed logs which nodes have not confirmed a change.
func (ch *changer) warnUnconfirmed(list []nodeResult) {
	for i := range list {
		if list[i].failed != nil {
			ch.log.Warn("a node has not confirmed a settings change; it applies the change when it next reads the database", "node", list[i].node.Name, "error", list[i].failed)
		}
	}
}

// reloadShared reads the settings and drains stored for all nodes and for this node, and applies them.
func (ch *changer) reloadShared(ctx context.Context) error {
	return errors.Join(ch.drains.readDrained(ctx), ch.applyShared(ctx))
}

// waitIdle waits until no job runs on a draining node. It does not wait for the jobs of a lost node.
func (r *jobRouter) waitIdle(ctx context.Context, n *store.NodeState) error {
	if n.This {
		return r.pool.Quiet(ctx)
	}
	for {
		reply, err := r.sendRequest(ctx, n.ID, nodeRequest{Command: "quiet"})
		switch {
		case err != nil && ctx.Err() == nil && !r.nodeList.isNodeAlive(ctx, n.ID):
			return nil
		case err != nil || !reply.TryAgain:
			return err
		}
	}
}

// isNodeAlive reports whether a node's lease is valid. If the nodes cannot be read, isNodeAlive returns
// true.
func (l *nodeList) isNodeAlive(ctx context.Context, id int64) bool {
	list, err := l.nodes(ctx)
	i := slices.IndexFunc(list, func(n store.NodeState) bool { return n.ID == id })
	return err != nil || i >= 0 && list[i].Alive
}

// waitAllIdle waits until no job runs on any node. The caller has drained all nodes, so no job starts.
func (r *jobRouter) waitAllIdle(ctx context.Context) error {
	nodes, err := r.nodeList.nodes(ctx)
	for i := range nodes {
		if n := &nodes[i]; err == nil && n.Alive {
			err = r.waitIdle(ctx, n)
		}
	}
	return err
}

// lostNodes returns a problem for each node that has disappeared without a normal stop.
func (l *nodeList) lostNodes(ctx context.Context) (list []string) {
	if l.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	nodes, err := l.nodes(ctx)
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

// mergeReasons merges the reasons why nodes do not start a job. If one node has no reason, that node can
// start the job, so the result is empty.
func mergeReasons(thisNode string, local []control.Reason, others []nodeResult) []control.Reason {
	if len(others) == 0 || len(local) == 0 {
		return local
	}
	var list []control.Reason
	index := map[string]int{} // index in list, by the reason's content
	add := func(node string, all []control.Reason) {
		for _, r := range all {
			key := fmt.Sprint(r.Kind, "\x00", r.Key, "\x00", r.Text)
			i, known := index[key]
			if !known {
				i = len(list)
				index[key], list = i, append(list, r)
			}
			if !slices.Contains(list[i].Nodes, node) {
				list[i].Nodes = append(list[i].Nodes, node)
			}
		}
	}
	all := append(slices.Clone(others), nodeResult{node: store.NodeState{Node: store.Node{Name: thisNode}}, nodeReply: nodeReply{Reasons: local}})
	// Sort the answers, so that the result is the same whichever node merges them.
	slices.SortFunc(all, func(a, b nodeResult) int { return strings.Compare(a.node.Name, b.node.Name) })
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
			r.Text = strings.Replace(r.Text, nodeMismatch, noNodeMatches, 1)
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
