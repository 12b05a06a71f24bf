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

// ExplainWaiting implements control.API.
func (h *API) ExplainWaiting(ctx context.Context, p control.ExplainWaitingParams) (control.WaitingExplanation, error) {
	j, err := h.findVisibleJob(ctx, p.ID)
	if err != nil {
		return control.WaitingExplanation{}, err
	}
	w := control.WaitingExplanation{ID: j.ID, State: j.State.String(), Reasons: []control.WaitReason{}}
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed {
		w.Reasons, err = h.reasonFinder.LocalWaitReasons(ctx, &j)
		return w, err
	}
	now := h.Store.Now()
	reason, waits := h.reasonFinder.ReasonFoundInJob(&j, now)
	if j.State == queue.Blocked {
		list, err := h.reasonFinder.UnresolvedDependencyReasons(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if waits {
		w.Reasons, w.Earliest = append(w.Reasons, reason), reason.EndsAt
	}
	if j.State == queue.Processing {
		return w, nil
	}
	if !j.State.IsRunnable() {
		list, err := h.reasonFinder.EndedJobReasons(ctx, &j)
		w.Reasons = append(w.Reasons, list...)
		return w, err
	}
	if h.ReadOnly { // no other nodes exist in read-only mode, and no job starts
		w.Reasons = append(w.Reasons, h.reasonFinder.WaitReasonsFromStore(&j, nil)...)
		return w, nil
	}
	local, err := h.reasonFinder.LocalWaitReasons(ctx, &j)
	if err != nil {
		return w, err
	}
	var nodeResults []cluster.NodeResult[control.WaitingExplanation]
	if len(local) > 0 { // if this node can start the job, the other nodes' reasons are irrelevant
		request := cluster.Request{APIMethod: "why", Params: control.ExplainWaitingParams{ID: control.JobID(j.ID)}}
		if nodeResults, err = cluster.Broadcast[control.WaitingExplanation](ctx, h.JobRouter, request); err != nil {
			return w, err
		}
	}
	w.Reasons = append(w.Reasons, reasons.MergeNodeReasons(h.NodeName, local, nodeResults)...)
	h.explainUnavailableNode(ctx, w.Reasons)
	switch {
	case len(w.Reasons) == 0:
		w.Earliest = control.Time(now)
	case !slices.ContainsFunc(w.Reasons, func(r control.WaitReason) bool { return r.EndsAt == 0 }):
		for _, r := range w.Reasons {
			w.Earliest = max(w.Earliest, r.EndsAt)
		}
	default:
		w.Earliest = 0 // unknown, because the start depends on other jobs or users
	}
	if j.DueAt <= now {
		err = h.addJobsStartingEarlier(ctx, &j, &w)
	}
	return w, err
}

// explainUnavailableNode changes the text of the reason that a job may run only on one named node. If no service
// runs on that node, the text then says so.
func (h *API) explainUnavailableNode(ctx context.Context, waitReasons []control.WaitReason) {
	for i := range waitReasons {
		r := &waitReasons[i]
		if h.Cluster == nil || r.Kind != reasons.GateReasonKind(queue.GateNode) {
			continue
		}
		nodes, _ := h.NodeRegistry.Nodes(ctx) // ignore the error and use the nodes that were read
		if i := slices.IndexFunc(nodes, func(n store.NodeState) bool {
			return n.Name == r.CauseKey &&
				!n.IsNodeLeaseValid
		}); i >= 0 {
			reasons.ReplaceNodeStateText(r, "a node that is "+newNodeView(&nodes[i]).State)
		}
	}
}

// defaultSimulatedJobs is the default number of jobs whose start is simulated.
const defaultSimulatedJobs = 20

// SimulateNextStarts implements control.API.
func (h *API) SimulateNextStarts(ctx context.Context, p control.SimulateParams) (control.SimulateResult, error) {
	p.MaxJobs = cmp.Or(p.MaxJobs, defaultSimulatedJobs)
	peer := control.PeerFrom(ctx)
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobsRead, func() (control.SimulateResult, error) {
		next, err := h.Store.SimulateClaims(ctx, p.MaxJobs)
		out := control.SimulateResult{Jobs: h.newJobViewsFor(ctx, &peer, next.StartingJobs),
			MayBeIncomplete: next.IsIncomplete}
		for i := range out.Jobs {
			// Clear the fields that describe the simulated start, because the reply describes the current state of each job.
			out.Jobs[i].HeldUnits, out.Jobs[i].MainWaitReason = nil, nil
			shortenJobTexts(&out.Jobs[i])
		}
		return out, err
	})
}

// These constants limit the numbers of jobs and of dependencies in one tree of dependencies.
const (
	maxDependencyTreeJobs  = 1000
	maxDependencyTreeEdges = 20_000
)

// ReadDependencyTree implements control.API.
func (h *API) ReadDependencyTree(ctx context.Context, p control.DependencyTreeParams) (control.DependencyTree, error) {
	v := control.DependencyTree{Jobs: []control.DependencyTreeJob{}, Dependencies: []control.JobDependency{}}
	root, err := h.findVisibleJob(ctx, p.ID)
	if err != nil {
		return v, err
	}
	seen := map[int64]bool{root.Seq: true}
	v.Jobs = append(v.Jobs, control.DependencyTreeJob{ID: root.ID, Seq: root.Seq, State: root.State.String()})
	type edge struct{ parent, child int64 }
	known := map[edge]bool{}
	for _, toParents := range []bool{true, false} {
		for list := []int64{root.Seq}; len(list) > 0; list = list[1:] {
			seq := list[0]
			var links []store.DependencyLink
			err := h.UserLimits.RunInSlot(ctx, control.ClassManyJobsRead, func() error {
				parents, children, err := h.Store.DependencyLinks(ctx, seq, reasons.MaxDependencyLinks)
				if links = children; toParents {
					links = parents
				}
				return err
			})
			if err != nil {
				return v, err
			}
			for _, l := range links {
				e := edge{seq, l.LinkedJobSeq}
				if toParents {
					e = edge{l.LinkedJobSeq, seq}
				}
				if !seen[l.LinkedJobSeq] {
					if len(v.Jobs) == maxDependencyTreeJobs {
						v.More = true
						continue
					}
					seen[l.LinkedJobSeq] = true
					v.Jobs = append(v.Jobs, control.DependencyTreeJob{ID: l.LinkedJobID, Seq: l.LinkedJobSeq,
						State: l.LinkedJobState.String()})
					if l.LinkedJobState != 0 {
						list = append(list, l.LinkedJobSeq)
					}
				}
				if known[e] {
					continue
				}
				if v.More = v.More || len(v.Dependencies) == maxDependencyTreeEdges; len(v.Dependencies) < maxDependencyTreeEdges {
					known[e] = true
					v.Dependencies = append(v.Dependencies, control.JobDependency{ParentSeq: e.parent, ChildSeq: e.child,
						Condition: l.Condition.String(),
						Status:    dependencyStatusTexts[l.Status]})
				}
			}
			v.More = v.More || len(links) == reasons.MaxDependencyLinks
		}
	}
	return v, nil
}

// dependencyStatusTexts contains the texts that replies use for the statuses of a dependency.
var dependencyStatusTexts = map[store.DependencyStatus]string{store.Unresolved: "open", store.Satisfied: "met",
	store.Broken: "failed"}

// maxListedUsersAhead is the maximum number of users that API.ExplainWaiting lists because their jobs start
// before the given job.
const maxListedUsersAhead = 5

// addJobsStartingEarlier explains the position of a job that could start now. It adds to w which users have jobs that
// start before this job, and why.
func (h *API) addJobsStartingEarlier(ctx context.Context, j *queue.Job, w *control.WaitingExplanation) error {
	peer := control.PeerFrom(ctx)
	return h.UserLimits.RunInSlot(ctx, control.ClassManyJobsRead, func() error {
		screen, err := h.Store.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: store.MaxScreenRowsPerPart,
			DetailsForUID: new(-1)})
		if err != nil {
			return err
		}
		ahead := screen.Ready
		if i := slices.IndexFunc(ahead, func(other queue.Job) bool { return other.Seq == j.Seq }); i >= 0 {
			w.JobsAhead, ahead = &i, ahead[:i]
		} else {
			w.MinJobsAhead = len(ahead)
		}
		w.JobsAheadByUser = h.earlierJobsByUser(j, slices.DeleteFunc(slices.Clone(ahead),
			func(other queue.Job) bool { return h.Guard.HidesJob(&peer, &other) }))
		return nil
	})
}

// earlierJobsByUser groups earlierJobs, the jobs that start before job j, by user. It returns at most
// maxListedUsersAhead groups, the largest first.
func (h *API) earlierJobsByUser(j *queue.Job, earlierJobs []queue.Job) (groups []control.UserJobsAhead) {
	order := h.Store.RankOrder()
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
			groups = append(groups, control.UserJobsAhead{User: h.Owners.UserName(other.UID), HighestPriority: other.Priority})
		}
		g := &groups[i]
		g.Jobs++
		g.HighestPriority = max(g.HighestPriority, other.Priority)
		byTurn[g.User] = byTurn[g.User] || cmp.Or(cmp.Compare(rank(other), rank(j)), cmp.Compare(other.Seq, j.Seq)) > 0
	}
	slices.SortStableFunc(groups, func(a, b control.UserJobsAhead) int { return cmp.Compare(b.Jobs, a.Jobs) })
	groups = groups[:min(len(groups), maxListedUsersAhead)]
	for i := range groups {
		g := &groups[i]
		switch {
		case order.Scheduling != queue.SchedulingByArrival && g.HighestPriority > j.Priority:
			g.Text = fmt.Sprintf("%d from %s because of higher priority (up to %d)", g.Jobs, g.User, g.HighestPriority)
		case byTurn[g.User]:
			g.Text = fmt.Sprintf("%d from %s because users take turns", g.Jobs, g.User)
		default:
			g.Text = fmt.Sprintf("%d from %s because of longer waiting", g.Jobs, g.User)
		}
	}
	return groups
}
