package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// After the rules have returned an error, the transaction executes no more statements, and nothing of it is
// stored.
func TestNoStatementAfterRulesFailed(t *testing.T) {
	s := openStore(t, t.TempDir())
	seq := enqueue(t, s, 1).Seqs[0]
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		j, err := tx.Job(seq, rules.ReadScopeSummary)
		if err != nil {
			return err
		}
		tx.rules.MoveToState(&j, queue.Dead, "", nil) // this move is not allowed for a pending job
		if tx.Exec(`UPDATE jobs SET priority = 7`) == nil ||
			tx.WriteRow(`UPDATE jobs SET rank = 7 WHERE seq = ?`, seq) == nil {
			t.Error("a statement was executed after the rules had failed")
		}
		return tx.rules.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "cannot change from state pending to state dead") {
		t.Errorf("got the error %v; want that of the rules", err)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM jobs WHERE priority = 7 OR rank = 7`); n != 0 {
		t.Errorf("%d jobs were changed", n)
	}
}

// If an error rejects an operation, only that operation fails, even if the error comes from a statement or
// from the rules. The other operations of the group are executed.
func TestRejectedStatementFailsOneOperation(t *testing.T) {
	rejection := queue.Errorf(queue.CodeInvalid, "rejected")
	for name, reject := range map[string]func(*Tx) error{
		"query": func(tx *Tx) error {
			return tx.Query(func(database.Row) (bool, error) { return false, rejection }, `SELECT next_seq FROM meta`)
		},
		"ignored": func(tx *Tx) error {
			tx.Query(func(database.Row) (bool, error) { return false, rejection }, `SELECT next_seq FROM meta`)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			results := make(chan error, 2)
			s.RunAsWriter(func() {
				for _, run := range []func(*Tx) error{
					func(tx *Tx) error { tx.Exec(`UPDATE meta SET epoch = epoch + 7`); return reject(tx) },
					func(tx *Tx) error { return tx.Exec(`UPDATE meta SET epoch = epoch + 1`) },
				} {
					n := s.waitingOps.Len()
					go func() {
						err := s.RunAndCommit(t.Context(), UrgentClass, run)
						results <- err
					}()
					for s.waitingOps.Len() == n {
						time.Sleep(time.Millisecond)
					}
				}
			})
			rejected := 0
			for range 2 {
				if err := <-results; errors.Is(err, rejection) {
					rejected++
				} else if err != nil {
					t.Errorf("an operation failed: %v", err)
				}
			}
			if n := queryNumber(t, s, `SELECT epoch FROM meta`); rejected != 1 || n != 1 {
				t.Errorf("%d operations were rejected, and the epoch is %d; want 1 and 1", rejected, n)
			}
		})
	}
}

// A job whose row is lost can end, even if its end should create hooks. No hooks are created for it.
func TestJobWithLostRowEndsWithoutHooks(t *testing.T) {
	s := openStore(t, t.TempDir())
	hooks := store.HookSettings{TriggerEvents: queue.HookEventsOfState(queue.Completed), OwnerName: "hooks",
		MakeHookDrafts: func(*queue.Job, queue.HookEvents) []queue.Job { return []queue.Job{newDraft()} }}
	if err := s.SetHooks(t.Context(), hooks); err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, 2)
	jobs, err := s.AwaitJobs(t.Context(), 2)
	if err != nil || len(jobs) != 2 {
		t.Fatal(len(jobs), err)
	}
	if err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		return tx.Exec(`DELETE FROM jobs WHERE seq = ?`, jobs[0].Seq)
	}); err != nil {
		t.Fatal(err)
	}
	ended := []store.Settlement{completedSettlement(&jobs[0]), completedSettlement(&jobs[1])}
	if _, err = s.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: ended}); err != nil {
		t.Error(err)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM jobs WHERE state = 6`); n != 1 {
		t.Errorf("%d jobs are completed; want 1", n)
	}
	dropped := queryNumber(t, s, `SELECT count(*) FROM events WHERE kind = '`+string(queue.EventHookDropped)+`'`)
	if dropped != 1 {
		t.Errorf("%d hooks were dropped; want 1", dropped)
	}
}
