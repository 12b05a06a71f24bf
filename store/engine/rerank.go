package engine

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// rankStep is the number of jobs that one transaction ranks again. It bounds the size of the transaction and,
// on a server, how long the other nodes wait for it.
// See docs/decisions/0010.
const rankStep = 10_000

// orderText encodes an order for the table meta.
func orderText(o queue.Order) string {
	return fmt.Sprintf("%s %s %d", o.Scheduling, o.Aging, o.Interval.Milliseconds())
}

// readOrder decodes what orderText wrote.
func readOrder(text string) (o queue.Order) {
	words := strings.Split(text, " ")
	if len(words) != 3 { // a new queue has no stored order yet
		return o
	}
	ms, _ := strconv.ParseInt(words[2], 10, 64) // no error, because orderText wrote a number
	return queue.Order{Scheduling: queue.Scheduling(words[0]), Aging: queue.Aging(words[1]),
		Interval: time.Duration(ms) * time.Millisecond}
}

// Order returns the order by which ranks are computed.
func (s *Engine) Order() queue.Order { return *s.order.Load() }

// SetOrder implements store.Ranking. While it runs, meta.ranked_by is empty. If it is interrupted, the next
// call therefore checks the ranks of all jobs again, and writes those that are not right yet.
func (s *Engine) SetOrder(ctx context.Context, o queue.Order) error {
	current := false
	err := s.Do(ctx, Prompt, func(t *Tx) error {
		m := &t.s.mem
		if current = m.rankedBy == orderText(o); current {
			return nil
		}
		t.requireReload()
		m.order, m.rankedBy = o, ""
		return t.Exec(`UPDATE meta SET ranked_by = '', ordered_by = ?`, orderText(o))
	})
	if err != nil || current {
		return err
	}
	for _, state := range queue.States() {
		for from := int64(-1); from != 0 && !state.Ended(); {
			var next int64
			if err := s.Do(ctx, Prompt, func(t *Tx) (err error) {
				next, err = t.rerank(o, state, from)
				return err
			}); err != nil {
				return err
			}
			from = next
		}
	}
	err = s.Do(ctx, Prompt, func(t *Tx) error {
		t.requireReload()
		t.s.mem.rankedBy = orderText(o)
		// The first job of a lane may be another one now, so the next claims must search all lanes again.
		err := t.Exec(`UPDATE lanes SET shut = ?, head_rank = ?, head_seq = ?, priority = ? WHERE demands <> ''`,
			rules.Open, rules.Start.Rank, rules.Start.Seq, int64(rules.UnknownPriority))
		if err != nil {
			return err
		}
		return t.Exec(`UPDATE meta SET ranked_by = ?`, t.s.mem.rankedBy)
	})
	if err != nil {
		return err
	}
	return s.Do(ctx, Prompt, (*Tx).reload)
}

// rerank computes new ranks for the next jobs in a state after the seq from. It returns the seq of the last one,
// or 0 if no such job exists. The statement computes the same as queue.Order.Rank, except for an interval of more than
// a hundred years, which it shortens so that no rank overflows.
func (t *Tx) rerank(o queue.Order, state queue.State, from int64) (last int64, err error) {
	t.requireReload()
	var since, arrival, priority int64 // weights of these columns in the rank
	switch {
	case o.Scheduling == queue.ByPriority:
		priority = 1
	case o.Scheduling == queue.ByArrival:
		since = 1
	case o.Aging == queue.AgingEnqueue:
		arrival, priority = 1, 1
	default:
		since, priority = 1, min(o.Interval.Milliseconds(), math.MaxInt64/(2*queue.MaxPriority))
	}
	last, err = t.Number(`SELECT max(seq) FROM (SELECT seq FROM jobs INDEXED BY jobs_state WHERE state = ? AND seq > ?
		ORDER BY seq LIMIT ?) AS step`, int64(state), from, int64(rankStep))
	if err != nil || last == 0 {
		return 0, err
	}
	const rank = `since * ? + arrival * ? - priority * ?`
	return last, t.Exec(`UPDATE jobs INDEXED BY jobs_state SET rank = `+rank+`
		WHERE state = ? AND seq > ? AND seq <= ? AND rank <> `+rank,
		since, arrival, priority, int64(state), from, last, since, arrival, priority)
}
