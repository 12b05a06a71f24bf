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
)

// nodes returns the nodes that share the queue. If the store is not shared, it returns only this node.
func (s *Service) nodes(ctx context.Context) (list []store.NodeState, err error) {
	for after := ""; s.cluster != nil; {
		page, err := s.cluster.Nodes(ctx, after)
		list = append(list, page...)
		if err != nil || len(page) < store.MaxNodes {
			return list, err
		}
		after = page[len(page)-1].Name
	}
	n := store.NodeState{Node: s.nodeRecord(), This: true, Alive: true, Version: s.opt.Version, Joined: s.started, Heard: s.store.Now()}
	if s.pool != nil {
		n.Workers, n.Running, n.Drained = s.pool.Workers(), s.pool.Busy(), s.pool.Draining()
	}
	return []store.NodeState{n}, nil
}

// load returns this node's workers and throughput. The node stores them with its lease, so that other nodes
// can read them.
func (s *Service) load() store.Load {
	byQueue := s.pool.Throughputs()
	if len(byQueue) > store.MaxLoadQueues {
		names := slices.SortedFunc(maps.Keys(byQueue), func(a, b string) int { return cmp.Or(byQueue[b]-byQueue[a], strings.Compare(a, b)) })
		for _, name := range names[store.MaxLoadQueues:] {
			delete(byQueue, name)
		}
	}
	return store.Load{Workers: s.pool.Workers(), Ended: s.pool.Throughput(), EndedOf: byQueue}
}

// otherNodesThroughput returns the throughput of the other nodes, as they reported it within the last minute.
// It returns nothing if the store does not answer within broadcastTimeout.
func (s *Service) otherNodesThroughput(ctx context.Context) (sum int, byQueue map[string]int) {
	byQueue = map[string]int{}
	if s.cluster == nil || !s.cluster.HasOthers() {
		return 0, byQueue
	}
	ctx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return 0, byQueue
	}
	for i := range nodes {
		if n := &nodes[i]; n.Alive && !n.This && n.Heard.Add(time.Minute) > s.store.Now() {
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
func (s *Service) nameNodes(ctx context.Context, views []control.Job) {
	var seqs []int64
	for i := range views {
		if views[i].StartedAt != 0 {
			seqs = append(seqs, views[i].Seq)
		}
	}
	if s.cluster == nil || len(seqs) == 0 {
		return
	}
	names, err := s.cluster.NodesOf(ctx, seqs)
	for i := range views {
		if v := &views[i]; err == nil && names[v.Seq] != "" {
			if v.Node = names[v.Seq]; v.Node != s.node {
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
func (s *Service) NodeList(ctx context.Context, p control.Nodes) (control.NodeList, error) {
	return control.Answer(ctx, &s.shares, control.One, func() (control.NodeList, error) {
		list := control.NodeList{Nodes: []control.NodeView{}}
		read := s.nodes
		if s.cluster != nil {
			read = func(ctx context.Context) ([]store.NodeState, error) { return s.cluster.Nodes(ctx, p.Cursor) }
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
func (s *Service) nodeNamed(ctx context.Context, name, instead string) (n store.NodeState, err error) {
	if s.cluster == nil {
		return n, queue.Errorf(queue.CodeWrongState, "this service does not share its queue with other nodes; use %s", instead)
	}
	nodes, err := s.nodes(ctx)
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
func (s *Service) NodeRemove(ctx context.Context, p control.NodeName) (v control.NodeView, err error) {
	n, err := s.nodeNamed(ctx, p.Name, "queuectl service stop")
	if err != nil {
		return v, err
	}
	if err := s.audit(ctx, "node.rm", p.Name, nil); err != nil {
		return v, err
	}
	if err := s.cluster.RemoveNode(ctx, p.Name); err != nil {
		return v, err
	}
	s.takeOver(context.WithoutCancel(ctx))
	return viewNode(&n), nil
}

// nodeRecord describes this node as the settings define it.
func (s *Service) nodeRecord() store.Node {
	s.owners.mu.Lock()
	n := store.Node{Name: s.node, Labels: s.config.Load().LabelsOfNode(), Resources: map[string]int{}, Strangers: maps.Clone(s.owners.unknownUsers)}
	s.owners.mu.Unlock()
	for name, r := range s.config.Load().ResourcesByName() {
		n.Resources[name] = len(r.IDs)
	}
	return n
}

// nodeName returns the name of this node among those that share the queue.
func (s *Service) nodeName() string {
	if name := s.config.Load().Node; name != "" {
		return name
	}
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "localhost"
}
