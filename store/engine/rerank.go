package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// rerankedJobsPerTx is the number of waiting jobs that get a new rank in one transaction. It is small so that other
// callers do not wait long. See docs/decisions/0010.
const rerankedJobsPerTx = 250

// rerankingProgress says how far the computation of new ranks for the waiting jobs has come. The computation processes
// one state after another. All jobs in earlier states have new ranks. In stateBeingReranked, the jobs with a seq up to
// rankedUpToSeq have new ranks. If stateBeingReranked is 0, all jobs have new ranks.
//
// A claim computes the ranks of the jobs that it takes. So a job is not missed if it later returns to a state
// that was already processed.
type rerankingProgress struct {
	stateBeingReranked queue.State
	rankedUpToSeq      int64
}

// formatRankOrder encodes an order for the table meta.
func formatRankOrder(o queue.RankPolicy) string {
	return fmt.Sprintf("%s %s %d", o.Scheduling, o.AgingUnit, o.AgingInterval.Milliseconds())
}

// parseRankOrder decodes what formatRankOrder wrote.
func parseRankOrder(text string) (o queue.RankPolicy) {
	words := strings.Split(text, " ")
	if len(words) != 3 { // there is no stored order in a new database
		return o
	}
	ms, _ := strconv.ParseInt(words[2], 10, 64) // no error, because formatRankOrder wrote a number
	return queue.RankPolicy{Scheduling: queue.Scheduling(words[0]), AgingUnit: queue.AgingUnit(words[1]),
		AgingInterval: time.Duration(ms) * time.Millisecond}
}

// SetRankOrder changes the order of jobs, from which ranks are computed. Calls of RerankWaitingJobs then give the
// waiting jobs new ranks.
func (e *Engine) SetRankOrder(ctx context.Context, o queue.RankPolicy) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		if t.order == o {
			return nil
		}
		t.order = o
		return t.beginReranking()
	})
}

// resumeReranking restarts the computation of new ranks, if the last service did not finish it or the order was changed
// while no service ran.
func (e *Engine) resumeReranking(ctx context.Context) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		if t.storedRanksOrderText == formatRankOrder(t.order) {
			return nil
		}
		return t.beginReranking()
	})
}

// beginReranking gives the leased jobs new ranks. Later calls of RerankWaitingJobs do this for the waiting jobs.
func (t *Tx) beginReranking() error {
	t.rerankProgress,
		t.storedRanksOrderText = rerankingProgress{stateBeingReranked: queue.Blocked}, ""
	t.Exec(`UPDATE meta SET ranked_by = '', ordered_by = ?`, formatRankOrder(t.order))
	for seq := range t.leases {
		j := t.Lease(seq).Job
		if err := t.rules.UpdateRank(&j); err != nil {
			return err
		}
	}
	c := &t.JobCountByState
	if c[queue.Blocked]+c[queue.Held]+c[queue.Pending]+c[queue.Failed] == 0 {
		t.endReranking()
	}
	return t.statementErr
}

// endReranking records that all jobs have new ranks.
func (t *Tx) endReranking() {
	t.rerankProgress, t.storedRanksOrderText = rerankingProgress{}, formatRankOrder(t.order)
	t.Exec(`UPDATE meta SET ranked_by = ?`, t.storedRanksOrderText)
}

// RerankWaitingJobs gives the next waiting jobs new ranks, if the order has changed. more is true if more jobs need new
// ranks.
func (e *Engine) RerankWaitingJobs(ctx context.Context) (more bool, err error) {
	if !e.JobReader.Counts().IsRerankUnfinished {
		return false, nil
	}
	return executeWithResult(ctx, e, NormalClass, func(t *Tx) (more bool, err error) {
		at := &t.rerankProgress
		if at.stateBeingReranked == 0 {
			return false, nil
		}
		list, err := t.readJobs(rerankedJobsPerTx, `jobs INDEXED BY jobs_state WHERE state = ? AND seq > ? ORDER BY seq`,
			at.stateBeingReranked, at.rankedUpToSeq)
		if err != nil {
			return false, err
		}
		for i := range list {
			if err := t.rules.UpdateRank(&list[i]); err != nil {
				return false, err
			}
			at.rankedUpToSeq = list[i].Seq
		}
		switch {
		case len(list) == rerankedJobsPerTx:
		case at.stateBeingReranked < queue.Failed:
			*at = rerankingProgress{stateBeingReranked: at.stateBeingReranked + 1}
		default:
			t.endReranking()
		}
		return at.stateBeingReranked != 0, t.statementErr
	})
}
