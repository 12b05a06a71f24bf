package handlers

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/store"
)

// Why implements control.API.
func (h *API) Why(ctx context.Context, p control.WhyParams) (control.Why, error) {
	j, err := h.findJob(ctx, p.ID)
	if err != nil {
		return control.Why{}, err
	}
	w := control.Why{ID: j.ID, State: j.State.String(), Reasons: []control.Reason{}}
	if _, relayed := cluster.RelayedRequest(ctx); relayed {
		w.Reasons, err = h.reasonFinder.LocalReasons(ctx, &j)
		return w, err
	}
	now := h.Store.Now()
	reason, waits := h.reasonFinder.JobReason(&j, now)
	if j.State == queue.Blocked {
		list, err := h.reasonFinder.OpenDependencies(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if waits {
		w.Reasons, w.Earliest = append(w.Reasons, reason), reason.EndsAt
	}
	if j.State == queue.Processing {
		return w, nil
	}
	if !j.State.Runnable() {
		list, err := h.reasonFinder.EndedJobReasons(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if h.ReadOnly { // no other nodes exist in read-only mode, and no job starts
		w.Reasons = append(w.Reasons, h.reasonFinder.NodeReasons(&j, nil)...)
		return w, nil
	}
	local, err := h.reasonFinder.LocalReasons(ctx, &j)
	if err != nil {
		return w, err
	}
	var nodeResults []cluster.NodeResult[control.Why]
	if len(local) > 0 { // if this node can start the job, other nodes do not matter
		request := cluster.Request{Method: "why", Params: control.WhyParams{ID: control.JobID(j.ID)}}
		if nodeResults, err = cluster.Broadcast[control.Why](ctx, h.Router, request); err != nil {
			return w, err
		}
	}
	w.Reasons = append(w.Reasons, reasons.Merge(h.Node, local, nodeResults)...)
	h.markUnavailableNode(ctx, w.Reasons)
	switch {
	case len(w.Reasons) == 0:
		w.Earliest = control.Time(now)
	case !slices.ContainsFunc(w.Reasons, func(r control.Reason) bool { return r.EndsAt == 0 }):
		for _, r := range w.Reasons {
			w.Earliest = max(w.Earliest, r.EndsAt)
		}
	default:
		w.Earliest = 0 // unknown, because the start depends on other jobs or users
	}
	if j.DueAt <= now {
		err = h.addStartOrder(ctx, &j, &w)
	}
	return w, err
}

// markUnavailableNode changes the text of the reason that a job may run only on one named node. If no service
// runs on that node, the text then says so.
func (h *API) markUnavailableNode(ctx context.Context, jobReasons []control.Reason) {
	for i := range jobReasons {
		r := &jobReasons[i]
		if h.Cluster == nil || r.Kind != reasons.GateReasonKind(queue.GateNode) {
			continue
		}
		nodes, _ := h.AllNodes.Nodes(ctx) // ignore the error and use the nodes that were read
		if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.Name == r.Key && !n.LeaseValid }); i >= 0 {
			reasons.SetNodeStateText(r, "a node that is "+viewNode(&nodes[i]).State)
		}
	}
}

// simulatedJobs is the default number of jobs whose start is simulated.
const simulatedJobs = 20

// Simulate implements control.API.
func (h *API) Simulate(ctx context.Context, p control.Simulate) (control.SimulateResult, error) {
	p.JobCount = cmp.Or(p.JobCount, simulatedJobs)
	peer := control.PeerFrom(ctx)
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobs, func() (control.SimulateResult, error) {
		next, err := h.Store.Simulate(ctx, p.JobCount)
		out := control.SimulateResult{Jobs: h.viewJobsFor(ctx, &peer, next.Jobs), Incomplete: next.Incomplete}
		for i := range out.Jobs {
			// Clear the fields of the simulated start, since the reply describes the current state of each job.
			out.Jobs[i].HeldUnits, out.Jobs[i].WaitsFor = nil, nil
			shortenTexts(&out.Jobs[i])
		}
		return out, err
	})
}

// These limit the numbers of jobs and of dependencies in one tree of dependencies.
const (
	maxTreeJobs  = 1000
	maxTreeEdges = 20_000
)

// Tree implements control.API.
func (h *API) Tree(ctx context.Context, p control.Tree) (control.TreeView, error) {
	v := control.TreeView{Nodes: []control.TreeNode{}, Edges: []control.TreeEdge{}}
	root, err := h.findJob(ctx, p.ID)
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
			var links []store.DependencyLink
			err := h.UserLimits.RunInSlot(ctx, control.ClassManyJobs, func() error {
				parents, children, err := h.Store.DependencyLinks(ctx, seq, reasons.MaxLinks)
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
					if len(v.Nodes) == maxTreeJobs {
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
				if v.More = v.More || len(v.Edges) == maxTreeEdges; len(v.Edges) < maxTreeEdges {
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

// dependencyTexts contains the texts that replies use for the statuses of a dependency.
var dependencyTexts = map[store.DependencyStatus]string{store.Unresolved: "open", store.Satisfied: "met",
	store.Broken: "failed"}

// maxAheadUsers is the maximum number of users that API.Why lists because their jobs start before the given
// job.
const maxAheadUsers = 5

// addStartOrder explains the position of a job that could start. It adds to w which users have jobs that start
// earlier, and why.
func (h *API) addStartOrder(ctx context.Context, j *queue.Job, w *control.Why) error {
	peer := control.PeerFrom(ctx)
	return h.UserLimits.RunInSlot(ctx, control.ClassManyJobs, func() error {
		screen, err := h.Store.Screen(ctx, store.ScreenFilter{Rows: store.MaxScreenRows, DetailsForUID: new(-1)})
		if err != nil {
			return err
		}
		ahead := screen.Ready
		if i := slices.IndexFunc(ahead, func(other queue.Job) bool { return other.Seq == j.Seq }); i >= 0 {
			w.JobsAhead, ahead = &i, ahead[:i]
		} else {
			w.AheadAtLeast = len(ahead)
		}
		w.AheadByUser = h.aheadByUser(j, slices.DeleteFunc(slices.Clone(ahead),
			func(other queue.Job) bool { return h.Guard.Hides(&peer, &other) }))
		return nil
	})
}

// aheadByUser groups earlierJobs, the jobs that start before job j, by user. It returns at most maxAheadUsers
// users, those with the most jobs first.
func (h *API) aheadByUser(j *queue.Job, earlierJobs []queue.Job) (groups []control.AheadOfUser) {
	order := h.Store.Order()
	rank := func(j *queue.Job) int64 { return order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber) }
	index := map[int]int{} // index in groups, by uid
	// byTurn is true for the names of users who have a job that starts before j although it ranks after j.
	byTurn := map[string]bool{}
	for i := range earlierJobs {
		other := &earlierJobs[i]
		i, known := index[other.UID]
		if !known {
			i = len(groups)
			index[other.UID] = i
			groups = append(groups, control.AheadOfUser{User: h.Owners.UserName(other.UID), Priority: other.Priority})
		}
		g := &groups[i]
		g.Jobs++
		g.Priority = max(g.Priority, other.Priority)
		byTurn[g.User] = byTurn[g.User] || cmp.Or(cmp.Compare(rank(other), rank(j)), cmp.Compare(other.Seq, j.Seq)) > 0
	}
	slices.SortStableFunc(groups, func(a, b control.AheadOfUser) int { return cmp.Compare(b.Jobs, a.Jobs) })
	groups = groups[:min(len(groups), maxAheadUsers)]
	for i := range groups {
		g := &groups[i]
		switch {
		case order.Scheduling != queue.ByArrival && g.Priority > j.Priority:
			g.Text = fmt.Sprintf("%d from %s because of higher priority (up to %d)", g.Jobs, g.User, g.Priority)
		case byTurn[g.User]:
			g.Text = fmt.Sprintf("%d from %s because users take turns", g.Jobs, g.User)
		default:
			g.Text = fmt.Sprintf("%d from %s because of longer waiting", g.Jobs, g.User)
		}
	}
	return groups
}
