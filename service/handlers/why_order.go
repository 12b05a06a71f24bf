package handlers

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// maxAheadUsers limits how many users the command why names. They are users whose jobs start before a given
// job.
const maxAheadUsers = 5

// whyOrder explains the order of a job that could start. It adds which users have jobs that start before
// it, and why.
func (h *Explanations) whyOrder(ctx context.Context, j *queue.Job, w *control.Why) error {
	peer := control.PeerFrom(ctx)
	return h.shares.Do(ctx, control.ClassMany, func() error {
		screen, err := h.store.Screen(ctx, store.ScreenFilter{Rows: store.MaxScreen, Submitter: new(-1)})
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
			func(other queue.Job) bool { return h.guard.Hides(&peer, &other) }))
		return nil
	})
}

// aheadByUser groups by user the jobs in a list, which start before job j. The user with the most jobs
// comes first. It returns at most maxAheadUsers users.
func (h *Explanations) aheadByUser(j *queue.Job, list []queue.Job) (groups []control.AheadOfUser) {
	order := h.store.Order()
	rank := func(j *queue.Job) int64 { return order.Rank(j.Priority, j.Since, j.Arrival) }
	index := map[int]int{}     // index in groups, by uid
	turns := map[string]bool{} // users with a job that ranks behind j but still starts before it
	for i := range list {
		other := &list[i]
		i, known := index[other.UID]
		if !known {
			i = len(groups)
			index[other.UID] = i
			groups = append(groups, control.AheadOfUser{User: h.owners.UserName(other.UID), Priority: other.Priority})
		}
		g := &groups[i]
		g.Jobs++
		g.Priority = max(g.Priority, other.Priority)
		turns[g.User] = turns[g.User] || cmp.Or(cmp.Compare(rank(other), rank(j)), cmp.Compare(other.Seq, j.Seq)) > 0
	}
	slices.SortStableFunc(groups, func(a, b control.AheadOfUser) int { return cmp.Compare(b.Jobs, a.Jobs) })
	groups = groups[:min(len(groups), maxAheadUsers)]
	for i := range groups {
		g := &groups[i]
		switch {
		case order.Scheduling != queue.ByArrival && g.Priority > j.Priority:
			g.Text = fmt.Sprintf("%d from %s because of higher priority (up to %d)", g.Jobs, g.User, g.Priority)
		case turns[g.User]:
			g.Text = fmt.Sprintf("%d from %s because users take turns", g.Jobs, g.User)
		default:
			g.Text = fmt.Sprintf("%d from %s because of longer waiting", g.Jobs, g.User)
		}
	}
	return groups
}
