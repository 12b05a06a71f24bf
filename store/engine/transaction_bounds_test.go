package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// countChangedRows counts the rows that each transaction changes. The returned function returns the highest
// number of rows that one transaction has changed since the last call, and how many transactions have changed
// rows.
func countChangedRows(t *testing.T, s *Store) (maxChanged func() (rows int64, transactions int)) {
	t.Helper()
	idle := func() {
		if err := s.RunAndCommit(t.Context(), UrgentClass, func(*Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var changesBefore, maxRows int64
	var transactionCount int
	clock := s.clock
	hook := func() queue.UnixMillis { // each transaction begins by reading the clock
		n, err := s.conn.QueryNumber(`SELECT total_changes()`)
		if err != nil {
			t.Error(err)
		}
		if n > changesBefore {
			maxRows, changesBefore = max(maxRows, n-changesBefore), n
			transactionCount++
		}
		return clock()
	}
	s.RunAndCommit(t.Context(), UrgentClass, func(*Tx) error { s.clock = hook; return nil })
	return func() (int64, int) {
		idle()
		rows, n := maxRows, transactionCount
		maxRows, transactionCount = 0, 0
		return rows, n
	}
}

// stageBatchJobs adds n jobs to a batch in requests of 1,000 jobs, and does not commit it. If withChosenIDs is set, the
// jobs have ids that a user chose.
func stageBatchJobs(t *testing.T, s *Store, batchName string, n int, withChosenIDs bool) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		drafts := make([]queue.Job, min(1000, n-from))
		for i := range drafts {
			drafts[i] = newDraft()
			if withChosenIDs {
				drafts[i].ID = fmt.Sprintf("%s-%d", batchName, from+i)
			}
		}
		if _, err := s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: batchName, Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
}

// dropDamagedBatch aborts a batch that is partly unreadable, and checks that the ids of its jobs can be used
// again.
func dropDamagedBatch(t *testing.T, s *Store) {
	t.Helper()
	jobs := []queue.Job{newDraft(func(j *queue.Job) { j.ID = "of-a-damaged-frame" })}
	_, err := s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: "e", Drafts: jobs})
	if err == nil {
		err = s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
			b, _ := t.findOpenBatch(0, "e")
			err := t.Exec(`UPDATE frames SET jobs = x'ff' WHERE batch = ?`, b.number)
			return err
		})
	}
	if err == nil {
		err = s.AbortBatch(t.Context(), 0, "e")
	}
	if err == nil { // the ids in batches are checked only while there is a batch
		_, err = s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: "f", Drafts: []queue.Job{newDraft()}})
	}
	if err == nil {
		_, err = s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: jobs})
	}
	if err == nil {
		err = s.AbortBatch(t.Context(), 0, "f")
	}
	if err != nil {
		t.Error(err)
	}
}

// enqueueMany enqueues n jobs, 1,000 per request.
func enqueueMany(t *testing.T, s *Store, n int, change func(*queue.Job)) {
	t.Helper()
	for range n / 1000 {
		drafts := make([]queue.Job, 1000)
		for i := range drafts {
			drafts[i] = newDraft(change)
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
}

// runStepUntilDone repeats a step while it reports that there is more to do.
func runStepUntilDone(t *testing.T, step func(context.Context) (more bool, err error)) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// applyBatch moves all jobs of a committed batch into the queue.
func applyBatch(t *testing.T, s *Store, receipt store.Receipt) {
	t.Helper()
	runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.ApplyBatch(ctx, receipt.Batch) })
}

// Each transaction changes a limited number of rows, even if very many jobs are due, too old or in one batch.
// So other callers need not wait long for their own transactions.
func TestTransactionsChangeBoundedRows(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	const many = 5 * maxDeletedRowsPerStep
	s := openStore(t, t.TempDir())
	now := s.clock() // advanced only by the cases below
	s.clock = func() queue.UnixMillis { return now }
	most := countChangedRows(t, s)
	promote := func() {
		runStepUntilDone(t, func(ctx context.Context) (bool, error) {
			next, err := s.ApplyDueChanges(ctx)
			return next == 0, err
		})
	}
	var committed store.Receipt
	due, expiry := now.Add(time.Hour), now.Add(2*time.Hour)
	for _, c := range []struct {
		what    string
		prepare func()
		do      func()
		rows    int64 // maximum number of changed rows per transaction
		atLeast int   // minimum number of transactions
	}{
		{"jobs due in the same millisecond", func() {
			enqueueMany(t, s, many, func(j *queue.Job) { j.RunAt, j.ExpiresAt = due, expiry })
			now = due
		}, promote, maxChangedJobsPerStep, many / maxChangedJobsPerStep},
		{"jobs that expire in the same millisecond", func() { now = expiry }, promote, 2 * maxChangedJobsPerStep,
			many / maxChangedJobsPerStep},
		{"jobs that are too old", func() { now = now.Add(time.Hour) }, func() {
			runStepUntilDone(t, func(ctx context.Context) (bool, error) {
				n, err := s.PurgeEndedJobs(ctx, store.EndedJobFilter{States: []queue.State{queue.Cancelled}, EndedBefore: now}, 200,
					nil)
				return n == 200, err
			})
			if left := s.Counts().JobsByState[queue.Cancelled]; left != 0 {
				t.Errorf("%d cancelled jobs remain", left)
			}
		}, 4 * 200, many / 200},
		{"events that are too old", func() {}, func() {
			runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.TrimEvents(ctx, now.Add(1), 0) })
		}, maxDeletedRowsPerStep, 3 * many / maxDeletedRowsPerStep},
		{"keys that are too old", func() {
			for n := range many {
				r := store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.Delay = 1000 * time.Hour })},
					IdempotencyKey: fmt.Sprint("key", n)}
				if _, err := s.Enqueue(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(2 * store.IdempotencyKeyRetention)
		}, func() {
			promote()
			if n := queryNumber(t, s, `SELECT count(*) FROM keys`); n != 0 {
				t.Errorf("%d keys remain", n)
			}
		}, maxDeletedRowsPerStep, many / maxDeletedRowsPerStep},
		{"a batch, staged", func() {}, func() { stageBatchJobs(t, s, "a", many, true) }, 1000, many / 1000},
		{"a batch, moved into the queue", func() {
			var err error
			if committed, err = s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "a"}); err != nil {
				t.Fatal(err)
			}
		}, func() { applyBatch(t, s, committed) }, 3 * 1000, many / 1000},
		{"a batch, given up", func() { stageBatchJobs(t, s, "b", many, true) }, func() {
			if err := s.AbortBatch(t.Context(), 0, "b"); err != nil {
				t.Fatal(err)
			}
		}, 1000, many / 1000},
		{"a batch, forgotten", func() { stageBatchJobs(t, s, "c", many, true); now = now.Add(2 * store.BatchStagingTimeout) },
			promote,
			1000,
			many / 1000},
	} {
		c.prepare()
		most()
		c.do()
		const heads = 10 // additional rows that each transaction may change: meta, the batch and similar ones
		if rows, n := most(); rows > c.rows+heads || n < c.atLeast {
			t.Errorf("%s: %d rows in a transaction of %d; want %d at most in %d at least", c.what, rows, n, c.rows+heads,
				c.atLeast)
		}
	}
	if left := s.cache.batches; len(left) != 0 {
		t.Errorf("remaining batches: %+v", left)
	}
	// The ids of removed batches can be used again; those of jobs cannot.
	if _, err := s.Enqueue(t.Context(),
		store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "b-4999" }),
			newDraft(func(j *queue.Job) { j.ID = "c-0" })}}); err != nil {
		t.Error(err)
	}
	if _, err := s.Enqueue(
		t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "a-7" })}}); err == nil {
		t.Error("the id of a job was taken again")
	}
}

// If the service dies while it removes a batch, the next start removes the rest of the batch and frees the
// ids of its jobs.
func TestRemovalOfABatchIsFinishedAtStart(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	stageBatchJobs(t, s, "a", 3000, true)
	err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
		b, _ := t.findOpenBatch(0, "a")
		t.markBatchForRemoval(b)
		t.removeNextBatchFrame(b.number)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = openStore(t, dir)
	var left int64
	err = s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) (err error) {
		left, err = t.QueryNumber(
			`SELECT (SELECT count(*) FROM batches) + (SELECT count(*) FROM frames) + (SELECT count(*) FROM staged_ids)`)
		return err
	})
	if err != nil || left != 0 || len(s.cache.batches) != 0 {
		t.Errorf("%d rows and %d batches remain, %v", left, len(s.cache.batches), err)
	}
	if _, err := s.Enqueue(
		t.Context(),
		store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "a-2999" })}}); err != nil {
		t.Error(err)
	}
}

// A removed job with many attempts disappears immediately. Its attempts are removed later in small steps,
// which continue after the store is opened again. Until then, doctor finds no faults.
func TestLongAttemptHistoryIsRemovedInSteps(t *testing.T) {
	const many = 2600
	dir := t.TempDir()
	s := openStore(t, dir)
	seq := enqueueForUser(t, s, 1, 1)[0]
	damageRow(t, s, `UPDATE jobs SET runs = ?`, int64(many))
	damageRow(t, s, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, counted,
			cpu_us, peak_rss, leftovers, dropped, error, output, output_bytes)
		SELECT 1, i, i, '', '', 1, 1, 1, 0, 0, '', 0, 0, 0, 0, 0, '', zeroblob(iif(i > 2500, 60000, 0)),
			iif(i > 2500, 60000, 0) FROM n`, int64(many))
	damageRow(t, s, `UPDATE meta SET output_bytes = 6000000`)
	s.Close()
	s = openStore(t, dir)
	most := countChangedRows(t, s)
	most()
	if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbRemove}); err != nil {
		t.Fatal(err)
	}
	if rows, _ := most(); rows > 10 {
		t.Errorf("the removal changed %d rows", rows)
	}
	expectNoFaults(t, s, "right after it")
	if _, err := s.ApplyDueChanges(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows, n := most(); rows > maxRowsRemovedPerJobStep+10 || n != 1 {
		t.Errorf("a step changed %d rows in %d transactions", rows, n)
	}
	s.Close()
	s = openStore(t, dir)
	most = countChangedRows(t, s)
	most()
	applyAllDueChanges(t, s)
	if rows, n := most(); rows > maxRowsRemovedPerJobStep+10 || n < 4+100*60_000/(maxBytesRemovedPerStep+60_000) {
		t.Errorf("%d rows changed in one of %d transactions", rows, n)
	}
	if n := queryNumber(t, s, `SELECT (SELECT count(*) FROM attempts) + (SELECT count(*) FROM removed)`); n != 0 ||
		s.Counts().OutputBytes != 0 {
		t.Errorf("%d rows and %d bytes of output remain", n, s.Counts().OutputBytes)
	}
	expectNoFaults(t, s, "at last")
}

// A transaction that removes several jobs removes a limited number of attempts, however many attempts the
// jobs have.
func TestRemovalTransactionRemovesBoundedAttempts(t *testing.T) {
	const jobs, each = 50, 150
	s := openStore(t, t.TempDir())
	now := s.clock()
	s.clock = func() queue.UnixMillis { return now }
	seqs := enqueueForUser(t, s, 1, jobs)
	for _, seq := range seqs {
		if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbCancel}); err != nil {
			t.Fatal(err)
		}
	}
	damageRow(t, s, `UPDATE jobs SET runs = ?`, int64(each))
	damageRow(t, s, `WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, counted,
			cpu_us, peak_rss, leftovers, dropped, error)
		SELECT 1 + i / 150, 1 + i % 150, i, '', '', 1, 1, 1, 0, 0, '', 0, 0, 0, 0, 0, '' FROM n`, int64(jobs*each-1))
	most := countChangedRows(t, s)
	most()
	if n, err := s.PurgeEndedJobs(t.Context(), store.EndedJobFilter{States: []queue.State{queue.Cancelled},
		EndedBefore: now + 1}, jobs,
		nil); err != nil || n != jobs {
		t.Fatal(n, err)
	}
	if rows, _ := most(); rows > maxRowsRemovedPerTx+4*jobs+10 {
		t.Errorf("%d rows were changed", rows)
	}
	applyAllDueChanges(t, s)
	if n := queryNumber(t, s, `SELECT (SELECT count(*) FROM attempts) + (SELECT count(*) FROM removed)`); n != 0 {
		t.Errorf("%d rows remain", n)
	}
	expectNoFaults(t, s, "at last")
}

// If a claim finds many expired jobs, each transaction cancels a limited number of them. The claim continues
// until it finds a job that can start.
func TestClaimCancelsLimitedExpiredJobsPerTransaction(t *testing.T) {
	s := openStore(t, t.TempDir())
	now := s.clock()
	s.clock = func() queue.UnixMillis { return now }
	const many = 2000 // more than one transaction can handle; a multiple of 1,000
	enqueueMany(t, s, many, func(j *queue.Job) { j.ExpiresAt = now + 1 })
	good := enqueue(t, s, 1).Seqs[0]
	s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		tx.engine.clock = func() queue.UnixMillis {
			return now +
				2
		}
		return nil
	})
	most := countChangedRows(t, s)
	most()
	jobs, err := s.AwaitJobs(t.Context(), 1)
	if err != nil || len(jobs) != 1 || jobs[0].Seq != good {
		t.Fatalf("awaited %v, %v", jobs, err)
	}
	if rows, n := most(); rows > 2*(rules.MaxLaneStepsPerTx+1)+10 || n < many/rules.MaxLaneStepsPerTx {
		t.Errorf("%d rows changed in one of %d transactions", rows, n)
	}
	if n := s.Counts().JobsByState[queue.Cancelled]; n != many {
		t.Errorf("%d were cancelled", n)
	}
}
