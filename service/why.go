package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// maxLinks is how many jobs that one waits for, or that wait for it, are told at once.
const maxLinks = 1000

// linkNames names what a job waits or waited for, as a person writes it.
func linkNames(list []store.Link) []string {
	names := make([]string, 0, len(list))
	for _, l := range list {
		name := l.ID
		if name == "" {
			name = fmt.Sprintf("#%d", l.Seq) // it was removed
		}
		if l.How != queue.ParentCompleted {
			name += ":" + l.How.String()
		}
		names = append(names, name)
	}
	return names
}

// Why implements control.API.
func (s *Service) Why(ctx context.Context, p control.WhyParams) (control.Why, error) {
	j, err := s.named(ctx, p.ID)
	if err != nil {
		return control.Why{}, err
	}
	w := control.Why{ID: j.ID, State: j.State.String(), Reasons: []control.Reason{}}
	add := func(r control.Reason) { w.Reasons = append(w.Reasons, r) }
	now := s.store.Now()
	switch {
	case j.State == queue.Blocked:
		return w, s.whyBlocked(ctx, &j, add)
	case j.State == queue.Held:
		add(control.Reason{Kind: "held", Text: "it is held" + because(&j), Next: "queuectl release " + j.ID})
		return w, s.whyParents(ctx, &j, add)
	case j.State == queue.Processing:
		s.whyPaused(&j, add)
		return w, nil
	case !j.State.Runnable():
		return w, s.whyParents(ctx, &j, add)
	case j.DueAt > now && j.State == queue.Failed:
		w.Earliest = control.Time(j.DueAt)
		add(control.Reason{Kind: "retry", At: w.Earliest, Text: fmt.Sprintf("attempt %d failed; it is run again then", j.Attempts), Next: "queuectl retry " + j.ID})
	case j.DueAt > now:
		w.Earliest = control.Time(j.DueAt)
		add(control.Reason{Kind: "time", At: w.Earliest, Text: "it is not due before then", Next: "queuectl edit " + j.ID + " --run-at now"})
	}
	if s.looks { // there is nobody who claims
		add(control.Reason{Kind: "workers", Text: "no service runs here", Next: "queuectl service start"})
		return w, nil
	}
	here, err := s.whyHere(ctx, &j)
	if err != nil {
		return w, err
	}
	var others []fromNode
	if len(here) > 0 { // else this one may start it
		if others, err = s.askOthers(ctx, ask{Do: "why", Ref: j.ID}); err != nil {
			return w, err
		}
	}
	w.Reasons = append(w.Reasons, reasonsOf(s.node, here, others)...)
	s.whyAway(ctx, w.Reasons)
	switch {
	case len(w.Reasons) == 0:
		w.Earliest = control.Time(now)
	case !slices.ContainsFunc(w.Reasons, func(r control.Reason) bool { return r.At == 0 }):
		for _, r := range w.Reasons {
			w.Earliest = max(w.Earliest, r.At)
		}
	default:
		w.Earliest = 0 // that hangs on others
	}
	if j.DueAt <= now {
		err = s.whyOrder(ctx, &j, &w)
	}
	return w, err
}

// whyPaused tells who has a job that runs stand still.
func (s *Service) whyPaused(j *queue.Job, add func(control.Reason)) {
	at, by := s.pauseOf(j)
	if at == 0 {
		return
	}
	next := "queuectl resume " + j.ID
	if j.PausedAt == 0 {
		next = "queuectl resume --all"
	}
	add(control.Reason{Kind: "paused", Text: fmt.Sprintf("it is paused, by %s since %s", s.userName(by), at), Next: next})
}

// whyParents tells for whose sake a job was cancelled or is held.
func (s *Service) whyParents(ctx context.Context, j *queue.Job, add func(control.Reason)) error {
	if j.Reason != queue.ReasonDependency {
		return nil
	}
	return s.shares.Do(ctx, control.One, func() error {
		parents, _, err := s.store.Links(ctx, j.Seq, maxLinks)
		failed := false
		for _, l := range parents {
			if l.Met != store.Failed {
				continue
			}
			failed = true
			id, _, _ := strings.Cut(linkNames([]store.Link{l})[0], ":")
			r := control.Reason{Kind: "dependency", Key: id, Text: fmt.Sprintf("it waited until job %s is %s, which is %s", id, l.How, l.State), Next: "queuectl retry " + id}
			switch {
			case l.State == 0:
				r.Text, r.Next = fmt.Sprintf("it waited for job %s, which was removed", id), "queuectl retry "+j.ID
			case !l.State.Ended() || l.How.Met(l.State): // which was retried alone
				r.Text, r.Next = fmt.Sprintf("job %s, which it waited for, had ended otherwise; by now that is %s", id, l.State), "queuectl retry "+j.ID
			}
			add(r)
		}
		if err == nil && !failed && len(parents) < maxLinks && j.State == queue.Cancelled { // what it waited for was retried, which retries it too
			add(control.Reason{Kind: "unique", Key: j.Unique, Text: "it was not retried with what it waited for: another job had its unique key", Next: "queuectl retry " + j.ID})
		}
		return err
	})
}

func because(j *queue.Job) string {
	if j.Reason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", j.Reason)
}

// whyBlocked tells of each job that one waits for.
func (s *Service) whyBlocked(ctx context.Context, j *queue.Job, add func(control.Reason)) error {
	return s.shares.Do(ctx, control.One, func() error {
		parents, _, err := s.store.Links(ctx, j.Seq, maxLinks)
		for _, l := range parents {
			if l.Met != store.Open {
				continue
			}
			name := linkNames([]store.Link{l})[0]
			id, _, _ := strings.Cut(name, ":")
			text := fmt.Sprintf("it waits until job %s is %s, which is %s now", id, l.How, l.State)
			if l.How == queue.ParentEnded {
				text = fmt.Sprintf("it waits until job %s has ended, which is %s now", id, l.State)
			}
			add(control.Reason{Kind: "dependency", Key: id, Text: text, Next: "queuectl why " + id})
		}
		return err
	})
}

// whyHere tells what keeps this node from starting a job that is due.
func (s *Service) whyHere(ctx context.Context, j *queue.Job) (list []control.Reason, err error) {
	add := func(r control.Reason) { list = append(list, r) }
	s.whyNobody(add)
	err = s.whyGates(ctx, j, add)
	return list, err
}

// whyAway tells of a node that no service runs there, where a job is for it.
func (s *Service) whyAway(ctx context.Context, list []control.Reason) {
	for i := range list {
		r := &list[i]
		if s.cluster == nil || r.Kind != gateWords[queue.GateNode].kind {
			continue
		}
		nodes, _ := s.nodes(ctx) // what is known suffices
		if at := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.Name == r.Key && !n.Alive }); at >= 0 {
			is := "which is " + viewNode(&nodes[at]).State
			r.Text = strings.NewReplacer(notHere, is, notAnywhere, is).Replace(r.Text)
		}
	}
}

// whyNobody tells why no job at all is started.
func (s *Service) whyNobody(add func(control.Reason)) {
	workers, busy := s.pool.Workers(), s.pool.Busy()
	switch {
	case s.paused.Load() != nil:
		add(control.Reason{Kind: "paused", Text: "everything is paused", Next: "queuectl resume --all"})
	case s.pool.Draining():
		add(control.Reason{Kind: "draining", Text: "no job is started while the service drains", Next: s.endDrain()})
	case workers == 0:
		add(control.Reason{Kind: "workers", Used: new(0), Most: new(0), Text: "there are no workers", Next: "queuectl worker start"})
	case busy >= workers:
		text := fmt.Sprintf("all %d workers run jobs", workers)
		if workers == 1 {
			text = "the one worker runs a job"
		}
		add(control.Reason{Kind: "workers", Used: &busy, Most: &workers, Text: text, Next: "queuectl worker start"})
	}
}

// whyGates tells of each gate that lacks room, by the looks of the claim.
func (s *Service) whyGates(ctx context.Context, j *queue.Job, add func(control.Reason)) error {
	list, err := s.store.Obstacles(ctx, j.Seq)
	for _, o := range list {
		r := control.Reason{Kind: gateWords[o.Gate].kind, Key: o.Key, Used: new(o.Used), Most: new(o.Most), Next: "queuectl list -s processing"}
		switch {
		case o.Paused:
			r.Used, r.Most = nil, nil
			r.Text, r.Next = fmt.Sprintf("queue %s is paused", o.Key), "queuectl queue resume "+o.Key
			if rule, err := s.ruleOf(ctx, o.Key); err == nil && rule.Paused {
				r.Text += ", by " + s.userName(rule.PausedBy)
				if rule.Reason != "" {
					r.Text += ": " + rule.Reason
				}
				r.At = control.Time(rule.Until)
			}
		default:
			gateWords[o.Gate].tell(&o, j, &r)
		}
		add(r)
	}
	return err
}

// simulatedJobs is how many jobs are simulated, if nobody says.
const simulatedJobs = 20

// Simulate implements control.API.
func (s *Service) Simulate(ctx context.Context, p control.Simulate) (control.Simulated, error) {
	if p.Next == 0 {
		p.Next = simulatedJobs
	}
	peer := control.PeerFrom(ctx)
	return control.Answer(ctx, &s.shares, control.Many, func() (control.Simulated, error) {
		jobs, err := s.store.Simulate(ctx, p.Next)
		out := control.Simulated{Jobs: s.viewsTo(ctx, &peer, jobs)}
		for i := range out.Jobs {
			out.Jobs[i].Units = nil // which it would have, and has not
			shorten(&out.Jobs[i])
		}
		return out, err
	})
}

// Of a tree are told so many jobs, and so many edges between them.
const (
	maxNodes = 1000
	maxEdges = 20_000
)

// Tree implements control.API.
func (s *Service) Tree(ctx context.Context, p control.Tree) (control.TreeView, error) {
	v := control.TreeView{Nodes: []control.TreeNode{}, Edges: []control.TreeEdge{}}
	root, err := s.named(ctx, p.ID)
	if err != nil {
		return v, err
	}
	seen := map[int64]bool{root.Seq: true}
	v.Nodes = append(v.Nodes, control.TreeNode{ID: root.ID, Seq: root.Seq, State: root.State.String()})
	type edge struct{ parent, child int64 }
	known := map[edge]bool{}
	for _, up := range []bool{true, false} {
		for list := []int64{root.Seq}; len(list) > 0; list = list[1:] {
			at := list[0]
			var links []store.Link
			err := s.shares.Do(ctx, control.Many, func() error {
				parents, children, err := s.store.Links(ctx, at, maxLinks)
				if links = children; up {
					links = parents
				}
				return err
			})
			if err != nil {
				return v, err
			}
			for _, l := range links {
				e := edge{at, l.Seq}
				if up {
					e = edge{l.Seq, at}
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
					v.Edges = append(v.Edges, control.TreeEdge{Parent: e.parent, Child: e.child, How: l.How.String(), Met: metWords[l.Met]})
				}
			}
			v.More = v.More || len(links) == maxLinks
		}
	}
	return v, nil
}

var metWords = map[store.Met]string{store.Open: "open", store.Well: "met", store.Failed: "failed"}
