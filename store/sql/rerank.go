package sql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// rankStep is how many waiting jobs are ranked anew in one transaction: few enough
// that nobody who waits for the disk feels it.
// See docs/decisions/0010.
const rankStep = 250

// ranking is how far the waiting jobs have been ranked anew: those of earlier states,
// and of this one up to seq. State 0 is all of them.
type ranking struct {
	state queue.State
	seq   int64
}

// rankingStates are those whose jobs have a rank, in the order in which they are gone
// through. What is claimed meanwhile is ranked as it is claimed, so nothing is missed
// that moves from a state to come into one that is done.
var rankingStates = []queue.State{queue.Blocked, queue.Held, queue.Pending, queue.Failed}

// orderText is an order as meta keeps it.
func orderText(o queue.Order) string {
	return fmt.Sprintf("%s %s %d", o.Scheduling, o.Aging, o.Interval.Milliseconds())
}

// readOrder reads what orderText wrote.
func readOrder(text string) (o queue.Order) {
	words := strings.Split(text, " ")
	if len(words) != 3 { // of a queue that has none yet
		return o
	}
	ms, _ := strconv.ParseInt(words[2], 10, 64) // orderText wrote it
	return queue.Order{Scheduling: queue.Scheduling(words[0]), Aging: queue.Aging(words[1]), Interval: time.Duration(ms) * time.Millisecond}
}

// Order is how ranks are made.
func (s *engine) Order() queue.Order { return *s.order.Load() }

// SetOrder has new jobs ranked by another order, and those that wait by Rerank.
func (s *engine) SetOrder(ctx context.Context, o queue.Order) error {
	return s.do(ctx, prompt, func(t *tx) error {
		if t.s.mem.order == o {
			return nil
		}
		t.s.mem.order = o
		return t.beginRanking()
	})
}

// resumeRanking goes on where the last service stopped, or begins if the order was
// changed while none ran.
func (s *engine) resumeRanking(ctx context.Context) error {
	return s.do(ctx, prompt, func(t *tx) error {
		if t.s.mem.rankedBy == orderText(t.s.mem.order) {
			return nil
		}
		return t.beginRanking()
	})
}

// beginRanking ranks what is leased at once; the rest is Rerank's.
func (t *tx) beginRanking() error {
	t.s.mem.ranking, t.s.mem.rankedBy = ranking{state: rankingStates[0]}, ""
	if err := t.exec(`UPDATE meta SET ranked_by = '', ordered_by = ?`, orderText(t.s.mem.order)); err != nil {
		return err
	}
	for seq := range t.s.mem.leases {
		j := t.Lease(seq).Job
		if err := t.rules.Rerank(&j); err != nil {
			return err
		}
	}
	c := &t.s.mem.counts
	if c[queue.Blocked]+c[queue.Held]+c[queue.Pending]+c[queue.Failed] == 0 {
		return t.endRanking()
	}
	return nil
}

func (t *tx) endRanking() error {
	t.s.mem.ranking, t.s.mem.rankedBy = ranking{}, orderText(t.s.mem.order)
	err := t.exec(`UPDATE meta SET ranked_by = ?`, t.s.mem.rankedBy)
	return err
}

// Rerank ranks the next step of the waiting jobs anew, if the order has changed.
func (s *engine) Rerank(ctx context.Context) (more bool, err error) {
	if !s.counted().Reranking {
		return false, nil
	}
	err = s.do(ctx, normal, func(t *tx) error {
		at := &t.s.mem.ranking
		more = at.state != 0
		if !more {
			return nil
		}
		list, err := t.jobs(rankStep, `jobs INDEXED BY jobs_state WHERE state = ? AND seq > ? ORDER BY seq`, int64(at.state), at.seq)
		if err != nil {
			return err
		}
		for i := range list {
			if err := t.rules.Rerank(&list[i]); err != nil {
				return err
			}
			at.seq = list[i].Seq
		}
		if len(list) == rankStep {
			return nil
		}
		for i, state := range rankingStates {
			if state == at.state && i+1 < len(rankingStates) {
				*at = ranking{state: rankingStates[i+1]}
				return nil
			}
		}
		more = false
		return t.endRanking()
	})
	return more, err
}
