package handlers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
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
	waits    *waitReasons
}

// maxLinks is the maximum number of parents or dependants of a job that are read in one query.
const maxLinks = 1000

// linkNames returns the names of a job's dependencies in the syntax of enqueue.
func linkNames(list []store.Link) []string {
	names := make([]string, 0, len(list))
	for _, l := range list {
		names = append(names, dependencyName(l.Seq, l.ID, l.Condition))
	}
	return names
}

// dependencyName returns the name of a dependency in the syntax of enqueue. A removed job has no id, so its
// number is used.
func dependencyName(seq int64, id string, how queue.DependencyCondition) string {
	name := cmp.Or(id, fmt.Sprintf("#%d", seq))
	if how != queue.ParentCompleted {
		name += ":" + how.String()
	}
	return name
}

// Why implements control.API.
func (h *Explanations) Why(ctx context.Context, p control.WhyParams) (control.Why, error) {
	j, err := h.reader.findJob(ctx, p.ID)
	if err != nil {
		return control.Why{}, err
	}
	w := control.Why{ID: j.ID, State: j.State.String(), Reasons: []control.Reason{}}
	add := func(r control.Reason) { w.Reasons = append(w.Reasons, r) }
	now := h.store.Now()
	reason, waits := h.waits.ownReason(&j, now)
	switch {
	case j.State == queue.Blocked:
		return w, h.whyBlocked(ctx, &j, add)
	case waits:
		add(reason)
		w.Earliest = reason.At
	}
	if j.State == queue.Processing {
		return w, nil
	}
	if !j.State.Runnable() {
		h.whyInput(&j, add)
		return w, h.whyParents(ctx, &j, add)
	}
	if h.readOnly { // in read-only mode, there are no other nodes to query and no start order
		w.Reasons = append(w.Reasons, h.waits.nodeReasons(&j, nil)...)
		return w, nil
	}
	local, err := h.waits.localReasons(ctx, &j)
	if err != nil {
		return w, err
	}
	var others []cluster.NodeResult
	if len(local) > 0 { // if this node may start the job, the other nodes' reasons do not matter
		if others, err = h.router.Broadcast(ctx, cluster.NodeRequest{Command: "why", Ref: j.ID}); err != nil {
			return w, err
		}
	}
	w.Reasons = append(w.Reasons, mergeReasons(h.node, local, others)...)
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

// whyInput adds the reason why an ended job whose input was removed cannot run again.
func (h *Explanations) whyInput(j *queue.Job, add func(control.Reason)) {
	if fields := j.InputRemoved.Fields(); len(fields) > 0 {
		add(control.Reason{Kind: "input", Key: strings.Join(fields, ","),
			Text: "the job cannot run again, because its input (" + strings.Join(fields, ", ") +
				") was removed to make room for newer jobs (setting max_bytes_per_user)", Next: "enqueue it again with its input"})
	}
}

// If a job was cancelled or is held because of its dependencies, whyParents adds these dependencies.
func (h *Explanations) whyParents(ctx context.Context, j *queue.Job, add func(control.Reason)) error {
	if j.Reason != queue.ReasonDependency {
		return nil
	}
	return h.shares.Do(ctx, control.ClassOne, func() error {
		parents, _, err := h.store.Links(ctx, j.Seq, maxLinks)
		failed := false
		for _, l := range parents {
			if l.Status != store.Broken {
				continue
			}
			failed = true
			id, _, _ := strings.Cut(linkNames([]store.Link{l})[0], ":")
			r := control.Reason{Kind: "dependency", Key: id,
				Text: fmt.Sprintf("the job depended on job %s being %s, but that job is %s", id, l.Condition, l.State),
				Next: "queuectl retry " + id}
			switch {
			case l.State == queue.Cancelled:
				r.Next = "queuectl why " + id
			case l.State == 0:
				r.Text, r.Next = fmt.Sprintf("job %s was removed; a retry runs this job without it", id), "queuectl retry "+j.ID
			case !l.State.Ended() || l.Condition.SatisfiedBy(l.State): // a user has retried the parent without this job
				r.Text, r.Next = fmt.Sprintf("job %s had not ended as required when this job was cancelled; job %[1]s is %s now",
					id, l.State), "queuectl retry "+j.ID
			}
			add(r)
		}
		if err == nil && !failed && len(parents) < maxLinks && j.State == queue.Cancelled && j.InputRemoved == 0 {
			// The dependencies were retried. That retry would have included this job, unless another job
			// had its unique key.
			add(control.Reason{Kind: "unique", Key: j.Unique,
				Text: "the job was not retried together with its dependencies, because another job had the same unique key",
				Next: "queuectl retry " + j.ID})
		}
		return err
	})
}

func because(j *queue.Job) string {
	if j.Reason == "" {
		return ""
	}
	return strings.Replace(fmt.Sprintf(" (%s)", j.Reason), "(disowned)", "(its owner's uid now has another account)", 1)
}

// whyBlocked adds a reason for each dependency that the job is waiting for.
func (h *Explanations) whyBlocked(ctx context.Context, j *queue.Job, add func(control.Reason)) error {
	return h.shares.Do(ctx, control.ClassOne, func() error {
		parents, _, err := h.store.Links(ctx, j.Seq, maxLinks)
		for _, l := range parents {
			if l.Status != store.Unresolved {
				continue
			}
			name := linkNames([]store.Link{l})[0]
			id, _, _ := strings.Cut(name, ":")
			text := fmt.Sprintf("job %s %s, but is %s", id, mustEnd(l.Condition), l.State)
			add(control.Reason{Kind: "dependency", Key: id, Text: text, Next: "queuectl why " + id})
		}
		return err
	})
}

// localReasons returns what keeps this node from starting a job that is due.
func (w *waitReasons) localReasons(ctx context.Context, j *queue.Job) ([]control.Reason, error) {
	all, err := w.store.Obstacles(ctx, []int64{j.Seq})
	if err != nil {
		return nil, err
	}
	list := w.nodeReasons(j, all[j.Seq])
	for i, o := range all[j.Seq] {
		if !o.Paused {
			continue
		}
		pos := slices.IndexFunc(list, func(r control.Reason) bool { return r.Kind == "queue" && r.Key == o.Key })
		w.addPause(ctx, &list[pos], &all[j.Seq][i])
	}
	return list, nil
}

// addPause completes the reason that a queue is paused. It adds who paused the queue, why, and until when.
func (w *waitReasons) addPause(ctx context.Context, r *control.Reason, o *store.Obstacle) {
	rule, err := w.queueList.ruleOf(ctx, o.Key)
	if err != nil || !rule.Paused {
		return // add nothing: the queue was resumed in the meantime, or its details are unavailable
	}
	r.Text += ", by " + w.owners.UserName(rule.PausedBy)
	if rule.Reason != "" {
		r.Text += ": " + rule.Reason
	}
	r.At = control.Time(rule.Until)
}

// markUnavailableNode changes the reasons of a job that may run only on a certain node, if no service is
// running there.
func (h *Explanations) markUnavailableNode(ctx context.Context, list []control.Reason) {
	for i := range list {
		r := &list[i]
		if h.cluster == nil || r.Kind != gateTexts[queue.GateNode].kind {
			continue
		}
		nodes, _ := h.nodeList.Nodes(ctx) // ignore the error, since the nodes that were read are enough
		if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.Name == r.Key && !n.Alive }); i >= 0 {
			state := "a node that is " + viewNode(&nodes[i]).State
			r.Text = strings.NewReplacer(nodeMismatch, state, noNodeMatches, state).Replace(r.Text)
		}
	}
}

// simulatedJobs is the default number of jobs to simulate.
const simulatedJobs = 20

// Simulate implements control.API.
func (h *Explanations) Simulate(ctx context.Context, p control.Simulate) (control.Simulated, error) {
	if p.Next == 0 {
		p.Next = simulatedJobs
	}
	peer := control.PeerFrom(ctx)
	return control.Answer(ctx, h.shares, control.ClassMany, func() (control.Simulated, error) {
		next, err := h.store.Simulate(ctx, p.Next)
		out := control.Simulated{Jobs: h.views.viewsFor(ctx, &peer, next.Jobs), Incomplete: next.Incomplete}
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
				parents, children, err := h.store.Links(ctx, seq, maxLinks)
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
			v.More = v.More || len(links) == maxLinks
		}
	}
	return v, nil
}

var dependencyTexts = map[store.DependencyStatus]string{store.Unresolved: "open", store.Satisfied: "met",
	store.Broken: "failed"}
