package engine_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A node may write a result before it holds the writer lock, because it can predict the result. If the actual
// result differs, the actual one is stored. If the rules record no result at all, nothing is stored.
func TestWrongPrewriteIsCorrected(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openClusterNode(t, url, "a")
	openClusterNode(t, url, "b")
	prewritten := map[string]func(*store.Settlement){
		"an end without output": func(e *store.Settlement) { e.Decision.CountsTowardMaxAttempts = true },
		"an end with output":    func(e *store.Settlement) { e.Attempt.Output = []byte("prewritten") },
	}
	actual := map[string]func(*store.Settlement){
		"nothing":         nil,
		"another output":  func(e *store.Settlement) { e.Attempt.Output = []byte("actual") },
		"another outcome": func(e *store.Settlement) { e.Decision.NextState, e.Attempt.ExitCode = queue.Dead, 3 },
		"no output":       func(e *store.Settlement) { e.Decision.CountsTowardMaxAttempts = true },
	}
	for was, prewrite := range prewritten {
		for is, modify := range actual {
			enqueueOnNode(t, a, engine.NewDraft())
			j := claimOnNode(t, a, 1)[0]
			expected, got := completedSettlementOnNode(a, &j), completedSettlementOnNode(a, &j)
			prewrite(&expected)
			if modify != nil {
				modify(&got)
			}
			tries := 0
			err := a.DoWithForecast(t.Context(), []store.Settlement{expected}, 0,
				func(t *engine.Tx) (err error) {
					tries++
					if modify != nil {
						_, err = t.Rules().ReportAndClaim(&store.LeaseReport{Settlements: []store.Settlement{got}})
					}
					return err
				})
			if err != nil || tries > 2 {
				t.Fatalf("prewritten %s, actual %s: %v after %d tries", was, is, err, tries)
			}
			found, err := a.GetJob(t.Context(), j.ID)
			list, err2 := a.AttemptHistory(t.Context(), j.Seq, 0, 9)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if modify == nil {
				if found.State != queue.Pending || found.EndedAt != 0 || len(list) != 0 {
					t.Errorf("prewritten %s, actual nothing: %v with %d attempts", was, found.State, len(list))
				}
				if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{got}}); err != nil {
					t.Errorf("the end of the attempt was rejected: %v", err)
				}
				continue
			}
			last, err := a.Attempt(t.Context(), j.Seq, 0)
			if err != nil || found.State != got.Decision.NextState || len(list) != 1 || last.ExitCode != got.Attempt.ExitCode ||
				string(last.Output) != string(got.Attempt.Output) {
				t.Errorf("prewritten %s, actual %s: %v with %d attempts, %d with %q, %v", was, is, found.State, len(list),
					last.ExitCode, last.Output, err)
			}
		}
	}
}

// If the jobs of a node were taken over, the node stops when it next writes, even if it writes results before
// it holds the writer lock. Every waiting caller gets an answer.
func TestPrewriteOfAnExpelledNodeIsRejected(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openClusterNode(t, url, "a"), openClusterNode(t, url, "b")
	enqueueOnNode(t, a, engine.NewDraft())
	j := claimOnNode(t, a, 1)[0]
	reportJobStarted(t, a, &j)
	expireNodeLease(t, url, "a")
	lost, err := b.TakeOverLeases(t.Context())
	if err != nil || len(lost) != 1 {
		t.Fatal(len(lost), err)
	}
	theirs := completedSettlementOnNode(b, &lost[0].Job)
	theirs.Decision = queue.AttemptDecision{NextState: queue.Failed, RecordsAttempt: true, CountsTowardMaxAttempts: true,
		Reason: queue.ReasonInterrupted}
	if _, err := b.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{theirs}}); err != nil {
		t.Fatal(err)
	}
	mine := completedSettlementOnNode(a, &j)
	mine.Attempt.Output = []byte("an output")
	release := a.BlockCommits()
	answers := make(chan error, 2)
	go func() {
		_, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{mine}})
		answers <- err
	}()
	for a.CountWaitingOperations() < 1 {
		time.Sleep(time.Millisecond)
	}
	go func() {
		answers <- a.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return nil })
	}()
	release()
	for range 2 {
		select {
		case err := <-answers:
			var e *queue.Error
			if err == nil || errors.As(err, &e) && e.Code == queue.CodeInternal {
				t.Errorf("got %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("an operation still waits")
		}
	}
	if a.Err() == nil {
		t.Error("the node still works after the failure")
	}
}

// All results of a large report are written before the node holds the writer lock. None of them is written a
// second time.
func TestLargePrewriteIsWrittenOnce(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a := openClusterNode(t, url, "a")
	openClusterNode(t, url, "b")
	enqueueOnNode(t, a, slices.Repeat([]queue.Job{engine.NewDraft()}, 40)...)
	var ended []store.Settlement
	for _, j := range claimOnNode(t, a, 40) {
		e := completedSettlementOnNode(a, &j)
		e.Attempt.Output = bytes.Repeat([]byte("x"), 32<<10)
		ended = append(ended, e)
	}
	foreseen := 0
	err := a.DoWithForecast(t.Context(), ended, 0, func(t *engine.Tx) (err error) {
		foreseen = t.CountUnconfirmedPrewrittenJobs()
		_, err = t.Rules().ReportAndClaim(&store.LeaseReport{Settlements: ended})
		return err
	})
	if err != nil || foreseen != len(ended) {
		t.Errorf("%d of %d were foreseen, %v", foreseen, len(ended), err)
	}
}
