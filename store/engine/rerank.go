package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// rankStep is the number of waiting jobs that get a new rank in one transaction. It is small so that other
// callers do not wait long. See docs/decisions/0010.
const rankStep = 250

// rankingProgress says how far the computation of new ranks for the waiting jobs has come. It processes one
// state after another. All jobs in earlier states have new ranks. In the current state (the field state), the
// jobs up to seq have new ranks. If state is 0, all jobs have new ranks.
//
// A claim computes the ranks of the jobs that it takes. So a job is not missed if it later returns to a state
// that was already processed.
type rankingProgress struct {
	state queue.State
	seq   int64
}

// formatOrder encodes an order for the table meta.
func formatOrder(o queue.Order) string {
	return fmt.Sprintf("%s %s %d", o.Scheduling, o.AgingUnit, o.AgingInterval.Milliseconds())
}

// parseOrder decodes what formatOrder wrote.
func parseOrder(text string) (o queue.Order) {
	words := strings.Split(text, " ")
	if len(words) != 3 { // there is no stored order in a new database
		return o
	}
	ms, _ := strconv.ParseInt(words[2], 10, 64) // no error, because formatOrder wrote a number
	return queue.Order{Scheduling: queue.Scheduling(words[0]), AgingUnit: queue.AgingUnit(words[1]),
		AgingInterval: time.Duration(ms) * time.Millisecond}
}

// SetOrder changes the order of jobs, from which ranks are computed. Calls of Rerank then give the waiting
// jobs new ranks.
func (e *Engine) SetOrder(ctx context.Context, o queue.Order) error {
	return e.Do(ctx, Prompt, func(t *Tx) error {
		if t.engine.mem.order == o {
			return nil
		}
		t.engine.mem.order = o
		return t.beginRanking()
	})
}

// resumeRanking begins again to compute new ranks, if the last service did not finish or the order was
// changed while no service ran.
func (e *Engine) resumeRanking(ctx context.Context) error {
	return e.Do(ctx, Prompt, func(t *Tx) error {
		if t.engine.mem.rankedByOrder == formatOrder(t.engine.mem.order) {
			return nil
		}
		return t.beginRanking()
	})
}

// beginRanking gives the leased jobs new ranks. Later calls of Rerank do this for the waiting jobs.
func (t *Tx) beginRanking() error {
	t.engine.mem.ranking, t.engine.mem.rankedByOrder = rankingProgress{state: queue.Blocked}, ""
	t.Exec(`UPDATE meta SET ranked_by = '', ordered_by = ?`, formatOrder(t.engine.mem.order))
	for seq := range t.engine.mem.leases {
		j := t.Lease(seq).Job
		if err := t.rules.Rerank(&j); err != nil {
			return err
		}
	}
	c := &t.engine.mem.jobCounts
	if c[queue.Blocked]+c[queue.Held]+c[queue.Pending]+c[queue.Failed] == 0 {
		t.endRanking()
	}
	return t.err
}

// endRanking records that all jobs have new ranks.
func (t *Tx) endRanking() {
	t.engine.mem.ranking, t.engine.mem.rankedByOrder = rankingProgress{}, formatOrder(t.engine.mem.order)
	t.Exec(`UPDATE meta SET ranked_by = ?`, t.engine.mem.rankedByOrder)
}

// Rerank gives the next waiting jobs new ranks, if the order has changed. more is true if there are more jobs
// to do.
func (e *Engine) Rerank(ctx context.Context) (more bool, err error) {
	if !e.Reads.Counts().Reranking {
		return false, nil
	}
	return doWithResult(ctx, e, &op{priorityClass: Normal}, func(t *Tx) (more bool, err error) {
		at := &t.engine.mem.ranking
		if at.state == 0 {
			return false, nil
		}
		list, err := t.readJobs(rankStep, `jobs INDEXED BY jobs_state WHERE state = ? AND seq > ? ORDER BY seq`,
			int64(at.state), at.seq)
		if err != nil {
			return false, err
		}
		for i := range list {
			if err := t.rules.Rerank(&list[i]); err != nil {
				return false, err
			}
			at.seq = list[i].Seq
		}
		switch {
		case len(list) == rankStep:
		case at.state < queue.Failed:
			*at = rankingProgress{state: at.state + 1}
		default:
			t.endRanking()
		}
		return at.state != 0, t.err
	})
}
