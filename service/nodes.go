package service

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// thisNode describes this node to the store.
type thisNode struct {
	node     string // name of this node
	store    store.Store
	owners   *owners
	settings *keeper
}

// nodeList reads the nodes that share the queue.
type nodeList struct {
	cluster store.Cluster // nil if no other node can use the store
	node    string        // name of this node
	pool    *worker.Pool
	started queue.Millis // when the service started
	store   store.Store
	version string
	self    *thisNode
}

// Nodes drains, removes and lists nodes.
type Nodes struct {
	cluster    store.Cluster // nil if no other node can use the store
	pool       *worker.Pool
	shares     *control.Shares
	store      store.Store
	changes    *changer
	drainState *drainState
	drains     *drains
	guard      *guard
	lease      *leaseKeeper
	lock       *settingsLock
	nodeList   *nodeList
	router     *jobRouter
}

// nodes returns the nodes that share the queue. If the store is not shared, it returns only this node.
func (l *nodeList) nodes(ctx context.Context) (list []store.NodeState, err error) {
	for after := ""; l.cluster != nil; {
		page, err := l.cluster.Nodes(ctx, after)
		list = append(list, page...)
		if err != nil || len(page) < store.MaxNodes {
			return list, err
		}
		after = page[len(page)-1].Name
	}
	n := store.NodeState{Node: l.self.nodeRecord(), This: true, Alive: true, Version: l.version, Joined: l.started, Heard: l.store.Now()}
	n.Workers, n.Running, n.Drained = l.pool.Workers(), l.pool.Busy(), l.pool.Draining()
	return []store.NodeState{n}, nil
}

// load returns this node's workers and throughput. The node stores them with its lease, so that other nodes
// can read them.
func (l *nodeList) load() store.Load {
	byQueue := l.pool.Throughputs()
	if len(byQueue) > store.MaxLoadQueues {
		names := slices.SortedFunc(maps.Keys(byQueue), func(a, b string) int { return cmp.Or(byQueue[b]-byQueue[a], strings.Compare(a, b)) })
		for _, name := range names[store.MaxLoadQueues:] {
			delete(byQueue, name)
		}
	}
	return store.Load{Workers: l.pool.Workers(), Ended: l.pool.Throughput(), EndedOf: byQueue}
}

// otherNodesThroughput returns the throughput of the other nodes, as they reported it within the last minute.
// It returns nothing if the store does not answer within broadcastTimeout.
func (l *nodeList) otherNodesThroughput(ctx context.Context) (sum int, byQueue map[string]int) {
	byQueue = map[string]int{}
	if l.cluster == nil || !l.cluster.HasOthers() {
		return 0, byQueue
	}
	ctx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	nodes, err := l.nodes(ctx)
	if err != nil {
		return 0, byQueue
	}
	for i := range nodes {
		if n := &nodes[i]; n.Alive && !n.This && n.Heard.Add(time.Minute) > l.store.Now() {
			sum += n.Ended
			for name, ended := range n.EndedOf {
				byQueue[name] += ended
			}
		}
	}
	return sum, byQueue
}

// nameNodes sets the node that ran each job last, if several nodes share the queue. If a job ran on another
// node, nameNodes removes the job's resource units, since only that node knows the units' names. If the
// store does not answer, no node is set.
func (l *nodeList) nameNodes(ctx context.Context, views []control.Job) {
	var seqs []int64
	for i := range views {
		if views[i].StartedAt != 0 {
			seqs = append(seqs, views[i].Seq)
		}
	}
	if l.cluster == nil || len(seqs) == 0 {
		return
	}
	names, err := l.cluster.NodesOf(ctx, seqs)
	for i := range views {
		if v := &views[i]; err == nil && names[v.Seq] != "" {
			if v.Node = names[v.Seq]; v.Node != l.node {
				v.Units = nil
			}
		}
	}
}

func viewNode(n *store.NodeState) control.NodeView {
	v := control.NodeView{Name: n.Name, State: "alive", This: n.This, Workers: n.Workers, Running: n.Running, Labels: maps.Clone(n.Labels), Resources: maps.Clone(n.Resources),
		Version: n.Version, JoinedAt: control.Time(n.Joined), LastHeartbeat: control.Time(n.Heard)}
	switch {
	case n.Left:
		v.State = "stopped"
	case !n.Alive:
		v.State = "away"
	case n.Drained && n.Running > 0:
		v.State = "draining"
	case n.Drained:
		v.State = "drained"
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	if v.Resources == nil {
		v.Resources = map[string]int{}
	}
	return v
}

// NodeList implements control.API.
func (h *Nodes) NodeList(ctx context.Context, p control.Nodes) (control.NodeList, error) {
	return control.Answer(ctx, h.shares, control.One, func() (control.NodeList, error) {
		list := control.NodeList{Nodes: []control.NodeView{}}
		read := h.nodeList.nodes
		if h.cluster != nil {
			read = func(ctx context.Context) ([]store.NodeState, error) { return h.cluster.Nodes(ctx, p.Cursor) }
		}
		nodes, err := read(ctx)
		for i := range nodes {
			list.Nodes = append(list.Nodes, viewNode(&nodes[i]))
		}
		if len(nodes) == store.MaxNodes {
			list.Next = nodes[len(nodes)-1].Name
		}
		return list, err
	})
}

// nodeNamed returns the current state of a node. If the queue is not shared, nodeNamed returns an error
// that suggests a command, which the parameter instead holds.
func (l *nodeList) nodeNamed(ctx context.Context, name, instead string) (n store.NodeState, err error) {
	if l.cluster == nil {
		return n, queue.Errorf(queue.CodeWrongState, "this service does not share its queue with other nodes; use %s", instead)
	}
	nodes, err := l.nodes(ctx)
	if err != nil {
		return n, err
	}
	names := make([]string, len(nodes))
	for i := range nodes {
		if names[i] = nodes[i].Name; names[i] == name {
			return nodes[i], nil
		}
	}
	return n, queue.Errorf(queue.CodeNotFound, "there is no node %q%s", queue.Clip(name), cmp.Or(queue.Nearest(name, names), "; see: queuectl node list"))
}

// NodeRemove implements control.API.
func (h *Nodes) NodeRemove(ctx context.Context, p control.NodeName) (v control.NodeView, err error) {
	n, err := h.nodeList.nodeNamed(ctx, p.Name, "queuectl service stop")
	if err != nil {
		return v, err
	}
	if err := h.guard.audit(ctx, "node.rm", p.Name, nil); err != nil {
		return v, err
	}
	if err := h.cluster.RemoveNode(ctx, p.Name); err != nil {
		return v, err
	}
	h.lease.takeOver(context.WithoutCancel(ctx))
	return viewNode(&n), nil
}

// nodeRecord describes this node as the settings define it.
func (t *thisNode) nodeRecord() store.Node {
	t.owners.mu.Lock()
	n := store.Node{Name: t.node, Labels: t.settings.config.Load().LabelsOfNode(), Resources: map[string]int{}, Strangers: maps.Clone(t.owners.unknownUsers)}
	t.owners.mu.Unlock()
	for name, r := range t.settings.config.Load().ResourcesByName() {
		n.Resources[name] = len(r.IDs)
	}
	return n
}

// nodeName returns the name of this node among those that share the queue.
func (b *startup) nodeName() string {
	if name := b.settings.config.Load().Node; name != "" {
		return name
	}
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "localhost"
}
