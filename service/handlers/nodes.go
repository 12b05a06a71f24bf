package handlers

import (
	"context"
	"maps"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Nodes drains, removes and lists nodes.
type Nodes struct {
	cluster    store.Cluster // nil if no other node can use the store
	pool       *worker.Pool
	shares     *control.UserLimits
	store      store.Store
	changes    *Changer
	drainState *cluster.DrainState
	drains     *cluster.Drains
	guard      *access.Guard
	lease      *cluster.LeaseKeeper
	lock       *settings.Lock
	nodeList   *cluster.NodeList
	router     *cluster.JobRouter
}

func viewNode(n *store.NodeState) control.NodeView {
	v := control.NodeView{Name: n.Name, State: "alive", This: n.IsSelf, Workers: n.Workers, Running: n.Running,
		Labels: maps.Clone(n.Labels), Resources: maps.Clone(n.Resources),
		Version: n.Version, JoinedAt: control.Time(n.JoinedAt), LastHeartbeat: control.Time(n.LastHeartbeat)}
	switch {
	case n.Stopped:
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
	return control.Answer(ctx, h.shares, control.ClassOne, func() (control.NodeList, error) {
		list := control.NodeList{Nodes: []control.NodeView{}}
		read := h.nodeList.Nodes
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

// NodeRemove implements control.API.
func (h *Nodes) NodeRemove(ctx context.Context, p control.NodeName) (v control.NodeView, err error) {
	n, err := h.nodeList.NodeNamed(ctx, p.Name, "queuectl service stop")
	if err != nil {
		return v, err
	}
	if err := h.guard.Audit(ctx, "node.rm", p.Name, nil); err != nil {
		return v, err
	}
	if err := h.cluster.RemoveNode(ctx, p.Name); err != nil {
		return v, err
	}
	h.lease.TakeOver(context.WithoutCancel(ctx))
	return viewNode(&n), nil
}
