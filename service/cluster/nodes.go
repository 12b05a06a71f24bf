package cluster

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// NodeList reads the nodes that share the queue, and describes this node to the store.
type NodeList struct {
	Node      string // name of this node
	Store     store.Store
	Owners    *access.Owners
	Settings  *settings.Keeper
	Cluster   store.Cluster // nil if no other node can use the store
	Pool      *worker.Pool
	StartedAt queue.Millis // when the service started
	Version   string       // version of the service's program
}

// Nodes returns the nodes that share the queue. If the store is not shared, it returns only this node.
func (l *NodeList) Nodes(ctx context.Context) (nodes []store.NodeState, err error) {
	for after := ""; l.Cluster != nil; {
		page, err := l.Cluster.Nodes(ctx, after)
		nodes = append(nodes, page...)
		if err != nil || len(page) < store.MaxNodesPage {
			return nodes, err
		}
		after = page[len(page)-1].Name
	}
	n := store.NodeState{Node: l.nodeRecord(), IsSelf: true, LeaseValid: true, Version: l.Version, JoinedAt: l.StartedAt,
		LastHeartbeat: l.Store.Now()}
	n.Workers, n.Running, n.Drained = l.Pool.WantedWorkers(), l.Pool.BusyWorkers(), l.Pool.IsDraining()
	return []store.NodeState{n}, nil
}

// currentLoad returns the number of this node's workers and its throughput. Both are stored for the other
// nodes when the node lease is renewed.
func (l *NodeList) currentLoad() store.Load {
	byQueue := l.Pool.QueueThroughputsPerMinute()
	if len(byQueue) > store.MaxLoadQueues {
		names := slices.SortedFunc(maps.Keys(byQueue),
			func(a, b string) int { return cmp.Or(byQueue[b]-byQueue[a], strings.Compare(a, b)) })
		for _, name := range names[store.MaxLoadQueues:] {
			delete(byQueue, name)
		}
	}
	return store.Load{Workers: l.Pool.WantedWorkers(), EndedAttempts: l.Pool.ThroughputPerMinute(), EndedByQueue: byQueue}
}

// OtherNodesThroughput returns how many attempts ended on the other nodes in the last minute: in total and by
// queue. If the store does not respond within BroadcastTimeout, both are zero.
func (l *NodeList) OtherNodesThroughput(ctx context.Context) (total int, byQueue map[string]int) {
	byQueue = map[string]int{}
	if l.Cluster == nil || !l.Cluster.HasOthers() {
		return 0, byQueue
	}
	ctx, cancel := context.WithTimeout(ctx, BroadcastTimeout)
	defer cancel()
	nodes, err := l.Nodes(ctx)
	if err != nil {
		return 0, byQueue
	}
	for i := range nodes {
		if n := &nodes[i]; n.LeaseValid && !n.IsSelf && n.LastHeartbeat.Add(time.Minute) > l.Store.Now() {
			total += n.EndedAttempts
			for name, ended := range n.EndedByQueue {
				byQueue[name] += ended
			}
		}
	}
	return total, byQueue
}

// SetNodeNames sets in each job the name of the node that ran it last, if several nodes share the queue. Only
// the node that runs a job knows the names of the resource units that the job holds, so SetNodeNames removes
// these names from jobs on other nodes. If the store does not respond, it changes nothing.
func (l *NodeList) SetNodeNames(ctx context.Context, jobs []control.Job) {
	var seqs []int64
	for i := range jobs {
		if jobs[i].StartedAt != 0 {
			seqs = append(seqs, jobs[i].Seq)
		}
	}
	if l.Cluster == nil || len(seqs) == 0 {
		return
	}
	names, err := l.Cluster.LastNodeNames(ctx, seqs)
	for i := range jobs {
		if v := &jobs[i]; err == nil && names[v.Seq] != "" {
			if v.Node = names[v.Seq]; v.Node != l.Node {
				v.HeldUnits = nil
			}
		}
	}
}

// NodeNamed returns the state of the node with this name. If the queue is not shared, it returns an error
// that suggests the command otherCommand instead.
func (l *NodeList) NodeNamed(ctx context.Context, name, otherCommand string) (n store.NodeState, err error) {
	if l.Cluster == nil {
		return n, queue.Errorf(queue.CodeWrongState, "this service does not share its queue with other nodes; use %s",
			otherCommand)
	}
	nodes, err := l.Nodes(ctx)
	if err != nil {
		return n, err
	}
	names := make([]string, len(nodes))
	for i := range nodes {
		if names[i] = nodes[i].Name; names[i] == name {
			return nodes[i], nil
		}
	}
	return n, queue.Errorf(queue.CodeNotFound, "there is no node %q%s", queue.Clip(name),
		cmp.Or(queue.DidYouMean(name, names), "; see: queuectl node list"))
}

// nodeRecord returns the record of this node for the store: its name, and the labels and resources in the
// settings.
func (l *NodeList) nodeRecord() store.Node {
	n := store.Node{Name: l.Node, Labels: l.Settings.Current().LabelsOfNode(), Resources: map[string]int{},
		UnknownUIDs: l.Owners.UnknownUIDs()}
	for name, r := range l.Settings.Current().ResourcesByName() {
		n.Resources[name] = len(r.IDs)
	}
	return n
}
