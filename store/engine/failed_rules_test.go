package engine

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// After an error in the rules, a transaction executes no further statement, and nothing of the transaction is stored.
func TestNoStatementAfterRulesFailed(t *testing.T) {
	s := openStore(t, t.TempDir())
	seq := enqueue(t, s, 1).Seqs[0]
	err := s.Do(t.Context(), Urgent, func(tx *Tx) error {
		j, err := tx.Job(seq, rules.ReadSummary)
		if err != nil {
			return err
		}
		tx.rules.Move(&j, queue.Dead, "", nil) // this move is not allowed for a pending job
		if tx.Exec(`UPDATE jobs SET priority = 7`) == nil ||
			tx.WriteRow(`UPDATE jobs SET rank = 7 WHERE seq = ?`, seq) == nil {
			t.Error("a statement was executed after the rules had failed")
		}
		return tx.rules.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "cannot change from state pending to state dead") {
		t.Errorf("got the error %v; want that of the rules", err)
	}
	if n := number(t, s, `SELECT count(*) FROM jobs WHERE priority = 7 OR rank = 7`); n != 0 {
		t.Errorf("%d jobs were changed", n)
	}
}
