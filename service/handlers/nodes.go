package handlers

import (
	"context"
	"maps"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// viewNode converts a node to its form in a reply.
func viewNode(n *store.NodeState) control.NodeView {
	v := control.NodeView{Name: n.Name, State: "alive", IsAnswering: n.IsSelf, Workers: n.Workers, Running: n.Running,
		Labels: maps.Collect(maps.All(n.Labels)), Resources: maps.Collect(maps.All(n.Resources)),
		Version: n.Version, JoinedAt: control.Time(n.JoinedAt), LastHeartbeat: control.Time(n.LastHeartbeat)}
	switch {
	case n.Stopped:
		v.State = "stopped"
	case !n.LeaseValid:
		v.State = "away"
	case n.Drained && n.Running > 0:
		v.State = "draining"
	case n.Drained:
		v.State = "drained"
	}
	return v
}

// NodeList implements control.API.
func (h *API) NodeList(ctx context.Context, p control.NodeListParams) (control.NodeList, error) {
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJob, func() (control.NodeList, error) {
		list := control.NodeList{Nodes: []control.NodeView{}}
		read := h.AllNodes.Nodes
		if h.Cluster != nil {
			read = func(ctx context.Context) ([]store.NodeState, error) { return h.Cluster.Nodes(ctx, p.Cursor) }
		}
		nodes, err := read(ctx)
		for i := range nodes {
			list.Nodes = append(list.Nodes, viewNode(&nodes[i]))
		}
		if len(nodes) == store.MaxNodesPage {
			list.Next = nodes[len(nodes)-1].Name
		}
		return list, err
	})
}

// NodeRemove implements control.API.
func (h *API) NodeRemove(ctx context.Context, p control.NodeRemoveParams) (v control.NodeView, err error) {
	n, err := h.AllNodes.NodeNamed(ctx, p.Name, "queuectl service stop")
	if err != nil {
		return v, err
	}
	if err := h.Guard.Audit(ctx, "node.rm", p.Name, nil); err != nil {
		return v, err
	}
	if err := h.Cluster.RemoveNode(ctx, p.Name); err != nil {
		return v, err
	}
	h.LeaseKeeper.TakeOver(context.WithoutCancel(ctx))
	return viewNode(&n), nil
}
