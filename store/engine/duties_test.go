package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// periodicDuties lists the periodic tasks of the service's upkeep. In the store that newStoreWithEndedJobs returns,
// each task has enough work for one step.
var periodicDuties = []struct {
	name string
	do   func(t *testing.T, s *Store) error
}{
	{"Promote", func(t *testing.T, s *Store) error {
		_, err := s.ApplyDueChanges(t.Context())
		return err
	}},
	{"Rerank", func(t *testing.T, s *Store) error {
		_, err := s.RerankWaitingJobs(t.Context())
		return err
	}},
	{"Purge of old jobs", func(t *testing.T, s *Store) error {
		n, err := s.PurgeEndedJobs(t.Context(), store.EndedJobFilter{States: []queue.State{queue.Completed},
			EndedBefore:    s.Now(),
			RetentionQueue: new("")}, 100, nil)
		return errors.Join(err, errorUnlessEqual(n, 100))
	}},
	{"Purge of nothing", func(t *testing.T, s *Store) error {
		n, err := s.PurgeEndedJobs(t.Context(), store.EndedJobFilter{States: []queue.State{queue.Completed}, EndedBefore: 1,
			RetentionQueue: new("")}, 100, nil)
		return errors.Join(err, errorUnlessEqual(n, 0))
	}},
	{"OwnRetentionQueues", func(t *testing.T, s *Store) error {
		list, err := s.QueuesWithOwnRetention(t.Context())
		return errors.Join(err, errorUnlessEqual(len(list), 1))
	}},
	{"TrimJobs", newTrimJobsDuty("", 1)},
	{"TrimJobs of a queue", newTrimJobsDuty("own", 1)},
	{"TrimJobs where all may be kept", newTrimJobsDuty("", 0)},
	{"TrimOutputs", func(t *testing.T, s *Store) error {
		more, err := s.TrimOutputs(t.Context(), s.Counts().OutputBytes/2)
		return errors.Join(err, errorUnlessEqual(more, true))
	}},
	{"TrimQueueOutputs of a queue", func(t *testing.T, s *Store) error {
		list, err := s.QueuesWithOwnRetention(t.Context())
		if err != nil {
			return err
		}
		more, err := s.TrimQueueOutputs(t.Context(), "own", list[0].OutputBytes/2)
		return errors.Join(err, errorUnlessEqual(more, true))
	}},
	{"TrimQueueOutputs of a queue whose outputs may be kept", func(t *testing.T, s *Store) error {
		more, err := s.TrimQueueOutputs(t.Context(), "own", 1<<40)
		return errors.Join(err, errorUnlessEqual(more, false))
	}},
	{"TrimUserData", func(t *testing.T, s *Store) error {
		before := s.StoredBytesOfUser(3)
		_, err := s.TrimUserData(t.Context(), 3, before-300)
		return errors.Join(err, errorUnlessEqual(s.StoredBytesOfUser(3), before-300))
	}},
	{"TrimUserData of a job with many attempts", func(t *testing.T, s *Store) error {
		before := s.StoredBytesOfUser(uidWithManyAttempts)
		_, err := s.TrimUserData(t.Context(), uidWithManyAttempts, before-300)
		return errors.Join(err, errorUnlessEqual(s.StoredBytesOfUser(uidWithManyAttempts), before-300))
	}},
	{"RemovableBytes", func(t *testing.T, s *Store) error {
		n, err := s.RemovableUserBytes(t.Context(), 3, 300)
		return errors.Join(err, errorUnlessEqual(n >= 300, true))
	}},
	{"RemovableBytes of inputs", func(t *testing.T, s *Store) error {
		n, err := s.RemovableUserBytes(t.Context(), uidWithInputs, 5000)
		return errors.Join(err, errorUnlessEqual(n >= 5000 && n < 10_000, true))
	}},
	{"TrimEvents", func(t *testing.T, s *Store) error {
		last, _ := s.LastEventSeq()
		more, err := s.TrimEvents(t.Context(), 0, last/2)
		return errors.Join(err, errorUnlessEqual(more, true))
	}},
	{"TrimEvents of nothing", func(t *testing.T, s *Store) error {
		more, err := s.TrimEvents(t.Context(), 0, 1<<40)
		return errors.Join(err, errorUnlessEqual(more, false))
	}},
	{"deleting outputs", func(t *testing.T, s *Store) error {
		refs, err := s.DeletableOutputs(t.Context(), 100)
		return errors.Join(err, errorUnlessEqual(len(refs), 100), s.ForgetDeletedOutputs(t.Context(), refs))
	}},
	{"DueSchedules", func(t *testing.T, s *Store) error {
		_, _, err := s.DueSchedules(t.Context(), "boot", 16)
		return err
	}},
	{"Unowned", func(t *testing.T, s *Store) error {
		_, err := s.MarkUnownedOutputs(t.Context(), []string{"1-1", "2-1", "none"})
		return err
	}},
}

// newTrimJobsDuty returns a task that executes one step of TrimEndedJobs for a queue. With halvesToRemove 1, half
// of the jobs are to be removed, which takes several steps. With 0, none are.
func newTrimJobsDuty(queueName string, halvesToRemove int64) func(t *testing.T, s *Store) error {
	return func(t *testing.T, s *Store) error {
		kept := s.Counts().JobsUnderGeneralRetention()
		if queueName != "" {
			kept = s.Counts().JobsUnderQueueRetention
		}
		more, err := s.TrimEndedJobs(t.Context(), queueName, kept-kept*halvesToRemove/2, 100)
		return errors.Join(err, errorUnlessEqual(more, halvesToRemove > 0))
	}
}

// errorUnlessEqual returns an error if the result of a measured operation is not the wanted one.
func errorUnlessEqual[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("the measured operation returned %v, want %v", got, want)
	}
	return nil
}

// These users exist in the store that newStoreWithEndedJobs returns. uidWithManyAttempts has one job that
// has had n attempts, the newest ten of them with output, and waits for its next attempt. uidWithInputs has
// n jobs without output, each with an input that may be removed.
const (
	uidWithManyAttempts = 8
	uidWithInputs       = 9
)

// newStoreWithEndedJobs returns a store with n ended jobs, each with an attempt, an output and two events. Half of
// them ended while their queue had its own retention. The store also has the jobs of uidWithManyAttempts and
// uidWithInputs.
func newStoreWithEndedJobs(t *testing.T, n int) *Store {
	dir := t.TempDir()
	s := openStore(t, dir)
	if err := s.conn.Exec(`PRAGMA synchronous = OFF`); err != nil {
		t.Fatal(err)
	}
	now, count := int64(s.Now()), int64(n)
	numbers := `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) `
	damageRow(t, s, numbers+`INSERT INTO jobs (seq, id, uid, state, place, lane, rank, priority, max_attempts, attempts,
		runs, fence, created_at, updated_at, run_at, due_at, since, arrival, started_at, ended_at, exit_code,
		kept, outputs, queue, terms, stored)
		SELECT i, i, i % 7, iif(i % 5 = 0, 8, 6), 0, 0, i, 5, 4, 1, 1, 1, ?2 - i, ?2, ?2, ?2, ?2, i, ?2, ?2 - i,
		0, i % 2, 10, iif(i % 2, 'own', 'default'), '{"command":"true"}', 600 FROM n`, count, now)
	damageRow(t, s, numbers+`INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code,
		signal, reason, error, counted, cpu_us, peak_rss, leftovers, dropped, output_bytes, output)
		SELECT i, 1, 1, 'w1', 'here', 4711, ?2 - i, ?2 - i, 0, 0, '', '', 1, 900, 2000000, 0, 0, 10,
		x'00112233445566778899' FROM n`, count, now)
	const columns = `INSERT INTO jobs (seq, id, uid, state, place, lane, rank, priority, max_attempts, runs, fence,
		created_at, updated_at, run_at, due_at, since, arrival, ended_at, outputs, terms, stored, input) `
	damageRow(t, s, columns+`SELECT ?1 + 1, ?1 + 1, 8, 4, 2, 0, 1, 5, 1000000, ?1, 1, ?2, ?2, ?2, ?2 + 3600000, ?2, 1, 0,
		1000, '{"command":"true"}', 600, ''`, count, now)
	damageRow(t, s, numbers+`INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code,
		signal, reason, error, counted, cpu_us, peak_rss, leftovers, dropped, output_bytes, output)
		SELECT ?1 + 1, i, 1, 'w1', 'here', 4711, ?2, ?2, 1, 0, '', '', 1, 900, 2000000, 0, 0,
		iif(i > ?1 - 10, 100, -2), iif(i > ?1 - 10, zeroblob(100), NULL) FROM n`, count, now)
	damageRow(t, s, numbers+columns+`SELECT ?1 + 1 + i, ?1 + 1 + i, 9, 6, 0, 0, 1, 5, 1, 1, 1, ?2, ?2, ?2, ?2, ?2, 1,
		?2 - i, 0, '{"command":"true"}', 2600, NULL FROM n`, count, now)
	damageRow(t, s, numbers+`INSERT INTO inputs (seq, input) SELECT ?1 + 1 + i, printf('{"env":["A=%01990d"]}', 0) FROM n`,
		count)
	damageRow(t, s, numbers+`INSERT INTO events (seq, at, kind, job, id, state, detail)
		SELECT i, ?2 - i, 'ended', i, i, 6, '{}' FROM n`, 2*count, now)
	damageRow(t, s, numbers+`INSERT INTO keys (n, uid, key, at, sum, ids) SELECT i, 1, i, ?2, x'00', '' FROM n`, count,
		now)
	damageRow(t, s, numbers+`INSERT INTO garbage (ref, node) SELECT 'g' || i || '-1', '' FROM n`, count)
	damageRow(t, s, numbers+`INSERT INTO figures (grain, at, queue, started, completed, failed, dead, cancelled,
		returned, waits, runs)
		SELECT 0, ?2 - ?2 % 60000 - i * 60000, 'default', 1, 1, 0, 0, 0, 0, x'', x'' FROM n`, min(count/10, 1000), now)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := sqlitedb.Open(filepath.Join(dir, sqlitedb.DatabaseFileName))
	if err == nil {
		err = errors.Join(c.Exec(`UPDATE meta SET next_seq = 2 * ? + 2, enqueued = ?, next_event = 2 * ? + 1`, count, count,
			count), integrity.RepairBackup(c), c.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return openStore(t, dir)
}

// countSQLiteInstructions returns how many instructions SQLite's virtual machine has executed for the store since the
// last call. One instruction reads at most one row.
func countSQLiteInstructions(t *testing.T, s *Store) (n int64) {
	t.Helper()
	of := func(c *sqlitedb.Conn) {
		for _, p := range c.PreparedStmts {
			n += int64(sqlite3.Xsqlite3_stmt_status(c.TLS, p, sqlite3.SQLITE_STMTSTATUS_VM_STEP, 1))
		}
	}
	err := s.RunAndCommit(t.Context(), UrgentClass, func(*Tx) error {
		of(s.conn)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.readConns {
		of(c)
	}
	return n
}

// One step of a periodic task reads the same number of rows, however much is stored. `make duties` runs this
// test with a million jobs.
func TestDutiesReadAsMuchWhateverIsStored(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	many := 100_000
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_ENDED")); err == nil {
		many = n
	}
	few := map[string]int64{}
	for _, n := range []int{10_000, many} {
		s := newStoreWithEndedJobs(t, n)
		// the first call does additional work, which is not measured
		if _, err := s.ApplyDueChanges(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, d := range periodicDuties {
			countSQLiteInstructions(t, s)
			began := time.Now()
			if err := d.do(t, s); err != nil {
				t.Errorf("%s with %d ended jobs: %v", d.name, n, err)
			}
			took := countSQLiteInstructions(t, s)
			t.Logf("%s with %d ended jobs: %d steps, %v", d.name, n, took, time.Since(began).Round(time.Microsecond))
			if less, compare := few[d.name]; compare && took > less+less/5+100 {
				t.Errorf("%s takes %d steps with %d ended jobs, but %d with 10,000", d.name, took, n, less)
			}
			few[d.name] = took
		}
		var faults []string
		err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) (err error) {
			faults, err = integrity.FindWrongStoredCounts(t.Conn)
			return err
		})
		if err = errors.Join(err, s.Close()); err != nil || len(faults) > 0 {
			t.Errorf("after all duties the counts are wrong: %q, %v", faults, err)
		}
	}
}
