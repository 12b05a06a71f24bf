package handlers

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/store"
)

// Explanations says why jobs wait and in which order they start.
type Explanations struct {
	cluster  store.Cluster // nil if no other node can use the store
	node     string        // name of this node
	readOnly bool          // read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	shares   *control.UserLimits
	store    store.Store
	guard    *access.Guard
	nodeList *cluster.NodeList
	owners   *access.Owners
	reader   *jobReader
	router   *cluster.JobRouter
	views    *viewer
	waits    *reasons.Finder
}

// Why implements control.API.
func (h *Explanations) Why(ctx context.Context, p control.WhyParams) (control.Why, error) {
	j, err := h.reader.findJob(ctx, p.ID)
	if err != nil {
		return control.Why{}, err
	}
	w := control.Why{ID: j.ID, State: j.State.String(), Reasons: []control.Reason{}}
	if _, relayed := cluster.Relayed(ctx); relayed {
		w.Reasons, err = h.waits.LocalReasons(ctx, &j)
		return w, err
	}
	now := h.store.Now()
	reason, waits := h.waits.OwnReason(&j, now)
	if j.State == queue.Blocked {
		list, err := h.waits.OpenDependencies(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if waits {
		w.Reasons, w.Earliest = append(w.Reasons, reason), reason.At
	}
	if j.State == queue.Processing {
		return w, nil
	}
	if !j.State.Runnable() {
		list, err := h.waits.EndReasons(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if h.readOnly { // in read-only mode, there are no other nodes to query and no start order
		w.Reasons = append(w.Reasons, h.waits.NodeReasons(&j, nil)...)
		return w, nil
	}
	local, err := h.waits.LocalReasons(ctx, &j)
	if err != nil {
		return w, err
	}
	var others []cluster.NodeResult[control.Why]
	if len(local) > 0 { // if this node may start the job, the other nodes' reasons do not matter
		request := cluster.Request{Method: "why", Params: control.WhyParams{ID: control.Name(j.ID)}}
		if others, err = cluster.Broadcast[control.Why](ctx, h.router, request); err != nil {
			return w, err
		}
	}
	w.Reasons = append(w.Reasons, reasons.Merge(h.node, local, others)...)
	h.markUnavailableNode(ctx, w.Reasons)
	switch {
	case len(w.Reasons) == 0:
		w.Earliest = control.Time(now)
	case !slices.ContainsFunc(w.Reasons, func(r control.Reason) bool { return r.At == 0 }):
		for _, r := range w.Reasons {
			w.Earliest = max(w.Earliest, r.At)
		}
	default:
		w.Earliest = 0 // the earliest start is unknown, since it depends on other jobs or users
	}
	if j.DueAt <= now {
		err = h.whyOrder(ctx, &j, &w)
	}
	return w, err
}

// markUnavailableNode changes the reasons of a job that may run only on a certain node, if no service is
// running there.
func (h *Explanations) markUnavailableNode(ctx context.Context, list []control.Reason) {
	for i := range list {
		r := &list[i]
		if h.cluster == nil || r.Kind != reasons.KindOf(queue.GateNode) {
			continue
		}
		nodes, _ := h.nodeList.Nodes(ctx) // ignore the error, since the nodes that were read are enough
		if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.Name == r.Key && !n.Alive }); i >= 0 {
			reasons.SetNodeState(r, "a node that is "+viewNode(&nodes[i]).State)
		}
	}
}

// simulatedJobs is the default number of jobs to simulate.
const simulatedJobs = 20

// Simulate implements control.API.
func (h *Explanations) Simulate(ctx context.Context, p control.Simulate) (control.SimulateResult, error) {
	p.Next = cmp.Or(p.Next, simulatedJobs)
	peer := control.PeerFrom(ctx)
	return control.Answer(ctx, h.shares, control.ClassMany, func() (control.SimulateResult, error) {
		next, err := h.store.Simulate(ctx, p.Next)
		out := control.SimulateResult{Jobs: h.views.viewsFor(ctx, &peer, next.Jobs), Incomplete: next.Incomplete}
		for i := range out.Jobs {
			// Leave out fields of the simulated start, since the reply describes the current state of each
			// job.
			out.Jobs[i].Units, out.Jobs[i].WaitsFor = nil, nil
			shorten(&out.Jobs[i])
		}
		return out, err
	})
}

// Maximum numbers of jobs and edges in a tree.
const (
	maxNodes = 1000
	maxEdges = 20_000
)

// Tree implements control.API.
func (h *Explanations) Tree(ctx context.Context, p control.Tree) (control.TreeView, error) {
	v := control.TreeView{Nodes: []control.TreeNode{}, Edges: []control.TreeEdge{}}
	root, err := h.reader.findJob(ctx, p.ID)
	if err != nil {
		return v, err
	}
	seen := map[int64]bool{root.Seq: true}
	v.Nodes = append(v.Nodes, control.TreeNode{ID: root.ID, Seq: root.Seq, State: root.State.String()})
	type edge struct{ parent, child int64 }
	known := map[edge]bool{}
	for _, toParents := range []bool{true, false} {
		for list := []int64{root.Seq}; len(list) > 0; list = list[1:] {
			seq := list[0]
			var links []store.Link
			err := h.shares.Do(ctx, control.ClassMany, func() error {
				parents, children, err := h.store.Links(ctx, seq, reasons.MaxLinks)
				if links = children; toParents {
					links = parents
				}
				return err
			})
			if err != nil {
				return v, err
			}
			for _, l := range links {
				e := edge{seq, l.Seq}
				if toParents {
					e = edge{l.Seq, seq}
				}
				if !seen[l.Seq] {
					if len(v.Nodes) == maxNodes {
						v.More = true
						continue
					}
					seen[l.Seq] = true
					v.Nodes = append(v.Nodes, control.TreeNode{ID: l.ID, Seq: l.Seq, State: l.State.String()})
					if l.State != 0 {
						list = append(list, l.Seq)
					}
				}
				if known[e] {
					continue
				}
				if v.More = v.More || len(v.Edges) == maxEdges; len(v.Edges) < maxEdges {
					known[e] = true
					v.Edges = append(v.Edges, control.TreeEdge{Parent: e.parent, Child: e.child, Condition: l.Condition.String(),
						Status: dependencyTexts[l.Status]})
				}
			}
			v.More = v.More || len(links) == reasons.MaxLinks
		}
	}
	return v, nil
}

var dependencyTexts = map[store.DependencyStatus]string{store.Unresolved: "open", store.Satisfied: "met",
	store.Broken: "failed"}
