package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/records"
)

// damageRow executes a statement that simulates damage, and checks that it changes a row.
func damageRow(t *testing.T, s *Store, sql string, args ...any) {
	t.Helper()
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		n, err := tx.ExecRowsAffected(sql, args...)
		if n == 0 {
			t.Errorf("%s: no row was changed", sql)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// detachDamagedFrame commits a batch with one frame (a list of jobs), which is completely unreadable. The engine then
// detaches the frame from the batch.
func detachDamagedFrame(t *testing.T, s *Store) {
	t.Helper()
	stageBatchJobs(t, s, "h", 1, true)
	damageRow(t, s, `UPDATE frames SET jobs = x'ff'`)
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "h"})
	if err != nil {
		t.Fatal(err)
	}
	applyBatch(t, s, committed)
}

// Jobs in a frame (a part of a batch) are read as they were written. Damaged jobs are left out. Damage never
// changes a job into a different valid job.
func TestReadFrameSkipsDamagedJobs(t *testing.T) {
	var frame []byte
	var want []records.StagedJob
	var ends []int
	for i := range 5 {
		f := records.StagedJob{
			Seq: int64(i + 1000),
			Draft: queue.Job{Queue: queue.DefaultQueue, Priority: -int64(i), MaxAttempts: i, RunAt: 7, Delay: 9,
				ExpiresAt: 1 << 40},
			ChosenID:     fmt.Sprint("job", i),
			EncodedTexts: records.EncodedTexts{Labels: `{"a":"b"}`, Settings: `{"command":"` + strings.Repeat("x", 50*i) + `"}`},
		}
		frame, _ = f.AppendEncoding(frame)
		want, ends = append(want, f), append(ends, len(frame))
	}
	same := func(a, b records.StagedJob) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
	if got, whole := records.DecodeFrame(frame); !whole || !slices.EqualFunc(got, want, same) {
		t.Fatalf("got %v, %t", got, whole)
	}
	for at := range frame {
		for bit := range 8 {
			damaged := bytes.Clone(frame)
			damaged[at] ^= 1 << bit
			got, whole := records.DecodeFrame(damaged)
			if whole || len(got) == len(want) {
				t.Fatalf("bit %d of byte %d: the damage was not detected", bit, at)
			}
			next := 0 // index in want of the first job that may equal the next job read
			for _, j := range got {
				for next < len(want) && !same(j, want[next]) {
					next++
				}
				if next == len(want) {
					t.Fatalf("bit %d of byte %d: read a job that was not written: %v", bit, at, j)
				}
			}
			of := slices.IndexFunc(ends, func(end int) bool { return at < end })
			if len(got) < of {
				t.Fatalf("bit %d of byte %d: %d jobs were read, want at least the %d jobs before the damage", bit, at, len(got), of)
			}
		}
	}
	for n := range frame {
		if got, whole := records.DecodeFrame(frame[:n]); whole && !slices.Contains(ends, n) && n > 0 || len(got) > len(want) {
			t.Fatalf("cut after %d bytes: %d, %t", n, len(got), whole)
		}
	}
}

// If a frame (a part of a committed batch) is damaged, its readable jobs and the other frames still get into
// the queue. The ids of the lost jobs can be used again. Doctor and the log report the lost jobs. Restoring a
// backup that contains the frame removes it. The same is true if the service finds the frame at its start.
func TestDamagedFrameIsDetached(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir)
			stageBatchJobs(t, s, "a", 3000, true)
			committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "a"})
			if err != nil {
				t.Fatal(err)
			}
			// Damage one bit of a job in the middle of the second request's jobs, and all jobs of the third
			// request.
			var raw []byte
			inTransaction(t, s, func() error {
				return s.conn.Query(func(r database.Row) (bool, error) { raw = bytes.Clone(r.BytesView(0)); return false, nil },
					`SELECT jobs FROM frames WHERE n = 2`)
			})
			raw[bytes.Index(raw, []byte("a-1500"))] ^= 0x20
			damageRow(t, s, `UPDATE frames SET jobs = ? WHERE n = 2`, raw)
			damageRow(t, s, `UPDATE frames SET jobs = x'ffffffffff' WHERE n = 3`)
			var log bytes.Buffer
			if restart {
				s.Close()
				if s, err = Open(t.Context(), Options{Dir: dir, RankOrder: defaultRankOrder,
					Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
			} else {
				s.log = slog.New(slog.NewTextHandler(&log, nil))
			}
			applyBatch(t, s, committed)
			applyAllDueChanges(t, s)
			if n := s.Counts().JobsByState[queue.Pending]; n != 1999 || len(s.cache.batches) != 0 ||
				s.cache.unqueuedCommittedJobs != 0 {
				t.Errorf("%d jobs wait, want 1999; %d batches remain", n, len(s.cache.batches))
			}
			if n := queryNumber(t, s, `SELECT count(*) FROM staged_ids`); n != 0 {
				t.Errorf("%d ids remain reserved", n)
			}
			if n := strings.Count(log.String(), "damaged"); n != 2 {
				t.Errorf("the log reports the damage %d times: %s", n, log.String())
			}
			var said []string
			var found []store.Finding
			inTransaction(t, s, func() error { found = integrity.ExamineBatchFrames(s.conn); return nil })
			for _, f := range found {
				if f.CheckName == "batches" && f.Level == store.LevelFailure && f.Advice != "" {
					said = append(said, f.Message)
				}
			}
			if len(said) != 1 || !strings.Contains(said[0], "1001 jobs") {
				t.Errorf("doctor says %q", said)
			}
			if got := findFaults(t, s); !slices.Equal(got, said) {
				t.Errorf("doctor --verify says %q, want %q", got, said)
			}
			if _, err := s.Enqueue(
				t.Context(),
				store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "a-2500" })}}); err != nil {
				t.Errorf("the id of a lost job: %v", err)
			}
			if err := integrity.RepairBackup(s.conn); err != nil {
				t.Fatal(err)
			}
			expectNoFaults(t, s, "after restoring")
		})
	}
}

// For each user, the number of jobs with ids that the user chose is limited, for all uncommitted batches
// together.
func TestChosenIDsInBatchesAreBounded(t *testing.T) {
	s := openStore(t, t.TempDir())
	stageBatchJobs(t, s, "a", 2, true)
	s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		b, _ := tx.engine.cache.findOpenBatch(0, "a")
		b.userChosenIDCount = store.MaxStagedChosenIDs - 1
		tx.cacheBatch(b.number, b)
		return nil
	})
	add := func(uid int, batch, id string) error {
		_, err := s.StageBatch(t.Context(), store.EnqueueRequest{UID: uid, BatchName: batch,
			Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = id })}})
		return err
	}
	for _, c := range []struct {
		uid       int
		batch, id string
		want      error
	}{{0, "b", "x1", nil}, {0, "b", "x2", store.ErrTooManyChosenIDs}, {0, "c", "x2", store.ErrTooManyChosenIDs},
		{0, "c", "", nil},
		{1, "b", "x2", nil}} {
		if err := add(c.uid, c.batch, c.id); err != c.want {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	if err := s.AbortBatch(t.Context(), 0, "a"); err != nil {
		t.Fatal(err)
	}
	if err := add(0, "b", "x3"); err != nil {
		t.Errorf("after another batch was aborted: %v", err)
	}
}

// If users have chosen many numbers as ids of their jobs, an enqueue must skip these numbers. It needs only a
// limited number of queries for this.
func TestEnqueueSkipsTakenNumbersCheaply(t *testing.T) {
	const many = 100_000
	s := openStore(t, t.TempDir())
	enqueue(t, s, 1)
	damageRow(t, s, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO jobs (seq, id, uid, state, place, lane, rank, priority, max_attempts, created_at, updated_at, run_at,
			due_at, since, arrival, terms, stored)
		SELECT -i, i + 1, 7, 8, 0, 0, 0, 5, 4, 1, 1, 1, 1, 1, 0, '{}', 514 FROM n`, int64(many))
	looks := func() int64 {
		var n int64
		inTransaction(t, s, func() error {
			for _, of := range []string{`id = ?`, s.conn.ColumnInWordsSQL("id")} {
				n += countStatementStarts(s.conn, userChosenIDsSQL(of))
			}
			return nil
		})
		return n
	}
	before := looks()
	r := enqueue(t, s, 1)
	if n := looks() - before; n < 1 || n > 20 || r.Seqs[0] <= many+1 {
		t.Errorf("it took %d queries to find the number %d", n, r.Seqs[0])
	}
	before = looks()
	if r := enqueue(t, s, 1000); looks()-before < 1 || looks()-before > 2 || !slices.IsSorted(r.Seqs) {
		t.Errorf("the next 1000 took %d looks", looks()-before)
	}
	other := openStore(t, t.TempDir())
	const maxSeq = 1 << 62 // the limit of numbers in package ids
	damageRow(t, other, `UPDATE meta SET next_seq = ?`, int64(maxSeq))
	other.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error { tx.engine.cache.NextJobSeq = maxSeq; return nil })
	if _, err := other.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(),
		newDraft()}}); err == nil ||
		!strings.Contains(err.Error(), "numbers are used up") {
		t.Errorf("beyond the last number: %v", err)
	}
}
