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

// NodeRegistry reads the nodes that share the queue, and describes this node to the store.
type NodeRegistry struct {
	NodeName         string // name of this node
	Store            store.Store
	Owners           *access.Owners
	Settings         *settings.Keeper
	Cluster          store.Cluster // nil if no other node can use the store
	Pool             *worker.Pool
	ServiceStartedAt queue.UnixMillis // when the service started
	ServiceVersion   string           // version of the service's program
}

// Nodes returns the nodes that share the queue. If the store is not shared, it returns only this node.
func (l *NodeRegistry) Nodes(ctx context.Context) (nodes []store.NodeState, err error) {
	for after := ""; l.Cluster != nil; {
		page, err := l.Cluster.Nodes(ctx, after)
		nodes = append(nodes, page...)
		if err != nil || len(page) < store.MaxNodesPerPage {
			return nodes, err
		}
		after = page[len(page)-1].Name
	}
	n := store.NodeState{Node: l.thisNodeRecord(), IsThisNode: true, IsNodeLeaseValid: true,
		ServiceVersion: l.ServiceVersion, JoinedAt: l.ServiceStartedAt,
		LastHeartbeatAt: l.Store.Now()}
	n.WorkerCount, n.RunningJobs, n.IsDrained = l.Pool.WantedWorkerCount(), l.Pool.BusyWorkerCount(), l.Pool.IsDraining()
	return []store.NodeState{n}, nil
}

// thisNodeLoad returns the number of this node's workers and its throughput. When the node lease is renewed, both are
// stored, so that the other nodes can read them.
func (l *NodeRegistry) thisNodeLoad() store.NodeLoad {
	byQueue := l.Pool.QueueThroughputsPerMinute()
	if len(byQueue) > store.MaxQueuesInNodeLoad {
		names := slices.SortedFunc(maps.Keys(byQueue),
			func(a, b string) int { return cmp.Or(byQueue[b]-byQueue[a], strings.Compare(a, b)) })
		for _, name := range names[store.MaxQueuesInNodeLoad:] {
			delete(byQueue, name)
		}
	}
	return store.NodeLoad{WorkerCount: l.Pool.WantedWorkerCount(), RecentlyEndedAttempts: l.Pool.ThroughputPerMinute(),
		RecentlyEndedByQueue: byQueue}
}

// OtherNodesThroughput returns how many attempts ended on the other nodes in the last minute: in total and by
// queue. If the store does not respond within BroadcastTimeout, both are zero.
func (l *NodeRegistry) OtherNodesThroughput(ctx context.Context) (endedAttempts int, endedByQueue map[string]int) {
	endedByQueue = map[string]int{}
	if l.Cluster == nil || !l.Cluster.HasOtherActiveNodes() {
		return 0, endedByQueue
	}
	ctx, cancel := context.WithTimeout(ctx, BroadcastTimeout)
	defer cancel()
	nodes, err := l.Nodes(ctx)
	if err != nil {
		return 0, endedByQueue
	}
	for i := range nodes {
		if n := &nodes[i]; n.IsNodeLeaseValid && !n.IsThisNode && n.LastHeartbeatAt.Add(time.Minute) > l.Store.Now() {
			endedAttempts += n.RecentlyEndedAttempts
			for name, ended := range n.RecentlyEndedByQueue {
				endedByQueue[name] += ended
			}
		}
	}
	return endedAttempts, endedByQueue
}

// SetJobNodeNames sets in each job the name of the node that ran the job last, if several nodes share the queue. Only
// the node that runs a job knows the names of the resource units that the job holds. So SetJobNodeNames removes these
// names from jobs on other nodes. If the store does not respond, SetJobNodeNames changes nothing.
func (l *NodeRegistry) SetJobNodeNames(ctx context.Context, jobs []control.Job) {
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
			if v.Node = names[v.Seq]; v.Node != l.NodeName {
				v.HeldUnits = nil
			}
		}
	}
}

// FindNodeByName returns the state of the node with this name. If the queue is not shared, it returns an error that
// suggests the command singleNodeCommand, which has the same effect on a single service.
func (l *NodeRegistry) FindNodeByName(ctx context.Context, name, singleNodeCommand string) (n store.NodeState,
	err error) {
	if l.Cluster == nil {
		return n, queue.Errorf(queue.CodeWrongState, "this service does not share its queue with other nodes; use %s",
			singleNodeCommand)
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
	return n, queue.Errorf(queue.CodeNotFound, "there is no node %q%s", queue.ClipForMessage(name),
		cmp.Or(queue.DidYouMean(name, names), "; see: queuectl node list"))
}

// thisNodeRecord returns the record of this node for the store: its name, and the labels and resources in the
// settings.
func (l *NodeRegistry) thisNodeRecord() store.Node {
	n := store.Node{Name: l.NodeName, Labels: l.Settings.CurrentConfig().NodeLabelsByName(),
		ResourceUnits: map[string]int{}, UIDsWithoutAccount: l.Owners.UIDsWithoutAccount()}
	for name, r := range l.Settings.CurrentConfig().ResourcesByName() {
		n.ResourceUnits[name] = len(r.UnitIDs)
	}
	return n
}
