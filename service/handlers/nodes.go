package handlers

import (
	"context"
	"maps"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// newNodeView converts a node to its form in a reply.
func newNodeView(n *store.NodeState) control.NodeView {
	v := control.NodeView{Name: n.Name, State: "alive", SentThisAnswer: n.IsThisNode, WorkerCount: n.WorkerCount,
		RunningJobs: n.RunningJobs,
		Labels:      maps.Collect(maps.All(n.Labels)), Resources: maps.Collect(maps.All(n.ResourceUnits)),
		Version: n.ServiceVersion, JoinedAt: control.Time(n.JoinedAt), LastHeartbeat: control.Time(n.LastHeartbeatAt)}
	switch {
	case n.ServiceStopped:
		v.State = "stopped"
	case !n.IsNodeLeaseValid:
		v.State = "away"
	case n.IsDrained && n.RunningJobs > 0:
		v.State = "draining"
	case n.IsDrained:
		v.State = "drained"
	}
	return v
}

// NodeList implements control.API.
func (h *API) ListNodes(ctx context.Context, p control.NodeListParams) (control.NodeList, error) {
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJobRead, func() (control.NodeList, error) {
		list := control.NodeList{Nodes: []control.NodeView{}}
		read := h.NodeRegistry.Nodes
		if h.Cluster != nil {
			read = func(ctx context.Context) ([]store.NodeState, error) { return h.Cluster.Nodes(ctx, p.Cursor) }
		}
		nodes, err := read(ctx)
		for i := range nodes {
			list.Nodes = append(list.Nodes, newNodeView(&nodes[i]))
		}
		if len(nodes) == store.MaxNodesPerPage {
			list.NextCursor = nodes[len(nodes)-1].Name
		}
		return list, err
	})
}

// NodeRemove implements control.API.
func (h *API) RemoveNode(ctx context.Context, p control.NodeRemoveParams) (v control.NodeView, err error) {
	n, err := h.NodeRegistry.FindNodeByName(ctx, p.Name, "queuectl service stop")
	if err != nil {
		return v, err
	}
	if err := h.Guard.RecordAudit(ctx, "node.rm", p.Name, nil); err != nil {
		return v, err
	}
	if err := h.Cluster.RemoveNode(ctx, p.Name); err != nil {
		return v, err
	}
	h.NodeLeaseKeeper.TakeOverLostJobs(context.WithoutCancel(ctx))
	return newNodeView(&n), nil
}
