package sqlite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// openStoreWithSmallWAL returns a store with low limits for its WAL (write-ahead log): it tries to empty a WAL
// of more than 256 KiB, and warns above 1 MiB. log receives the warnings.
func openStoreWithSmallWAL(t *testing.T) (s *Store, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), RankOrder: defaultJobOrder,
		Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		// Empty the WAL, which creating the schema has filled.
		if err := tx.Conn.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
			return err
		}
		err := tx.Conn.Exec(`PRAGMA journal_size_limit = 262144`)
		return err
	})
	s.walState.waitForReadersAboveBytes, s.walState.warnAboveBytes = 256<<10, 1<<20
	return s, log
}

// growWAL enqueues a job of 64 KiB.
func growWAL(t *testing.T, s *Store) {
	t.Helper()
	growWALByJobs(t, s, 1)
}

// growWALByJobs enqueues jobCount jobs of 64 KiB.
func growWALByJobs(t *testing.T, s *Store, jobCount int) {
	t.Helper()
	big := newDraft(func(j *queue.Job) { j.Command = strings.Repeat("x", 64<<10) })
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: slices.Repeat([]queue.Job{big},
		jobCount)}); err != nil {
		t.Fatal(err)
	}
}

func walSize(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName+"-wal"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// allowCheckpoint lets the next commit checkpoint the WAL, even if the last attempt was a moment ago.
func allowCheckpoint(t *testing.T, s *Store) {
	s.RunAndCommit(t.Context(), engine.UrgentClass,
		func(*engine.Tx) error { s.walState.nextReaderWaitAt = time.Time{}; return nil })
}

// While another program's read transaction does not end, the WAL grows. The store logs one warning,
// shortens the time limit of all reads, and refuses no request. After the transaction has
// ended, the WAL is small again.
func TestStoreToleratesEndlessReader(t *testing.T) {
	s, log := openStoreWithSmallWAL(t)
	growWAL(t, s)
	path := filepath.Join(s.stateDir, sqlitedb.DatabaseFileName)
	way := sqlitedb.ListFileUsersCommand(path)
	said, stop := startSQLProgram(t, path, `BEGIN;SELECT count(*) FROM jobs`)
	if said != "<nil>" {
		t.Fatalf("the other program got %s", said)
	}
	for walSize(t, s) <= s.walState.warnAboveBytes {
		if s.CheckpointError() != nil {
			t.Fatalf("starved at %d bytes", walSize(t, s))
		}
		growWAL(t, s)
	}
	allowCheckpoint(t, s)
	for range 5 {
		growWAL(t, s)
		allowCheckpoint(t, s)
	}
	if err := s.CheckpointError(); err == nil || !strings.Contains(err.Error(), way) {
		t.Fatalf("at %d bytes: %v", walSize(t, s), err)
	}
	begun := time.Now()
	err := s.RunRead(t.Context(), func(r *reads.ReadSnapshot) error {
		_, err := r.QueryNumber(`WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c`)
		return err
	})
	if took := time.Since(begun); !errors.Is(err, queue.ErrUnavailable) || took >= engine.DefaultReadTimeout ||
		!strings.Contains(err.Error(), way) {
		t.Errorf("a read that does not end: %v after %v", err, took)
	}
	if _, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 5}); err != nil {
		t.Errorf("a short read: %v", err)
	}
	stop()
	allowCheckpoint(t, s)
	for range 3 {
		growWAL(t, s)
	}
	if size := walSize(t, s); s.CheckpointError() != nil || size > 2*s.walState.waitForReadersAboveBytes {
		t.Errorf("after the reader has ended: %d bytes, %v", size, s.CheckpointError())
	}
	if timeLimit, _ := (engineBackend{s}).ReadTimeout(); timeLimit != engine.DefaultReadTimeout {
		t.Errorf("reads are still kept short")
	}
	text := log.String()
	if strings.Count(text, "level=WARN") != 1 || strings.Count(text, "level=INFO") != 1 {
		t.Errorf("the log says:\n%s", text)
	}
}

// While a reader prevents the WAL from being emptied, only a few commits wait for the reader.
func TestEndlessReaderDelaysOnlyFewCommits(t *testing.T) {
	s, _ := openStoreWithSmallWAL(t)
	_, stop := startSQLProgram(t, filepath.Join(s.stateDir, sqlitedb.DatabaseFileName), `BEGIN;SELECT count(*) FROM jobs`)
	defer stop()
	begun := time.Now()
	for range 60 {
		growWAL(t, s)
	}
	if took := time.Since(begun); took > 3*time.Second { // 60 waits would take 6 s
		t.Errorf("60 commits took %v", took)
	}
	s.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error {
		if s.walState.readerWaitPause < walMinReaderWaitPause {
			t.Errorf("the pause is %v", s.walState.readerWaitPause)
		}
		s.walState.readerWaitPause, s.walState.nextReaderWaitAt = walMaxReaderWaitPause, time.Time{}
		return nil
	})
	growWAL(t, s)
	if s.walState.readerWaitPause != walMaxReaderWaitPause {
		t.Errorf("the longest pause is %v", s.walState.readerWaitPause)
	}
}

// readSlowly executes a query that counts up to the given number. The query stops when ctx ends.
func readSlowly(ctx context.Context, s *Store, countLimitText string) {
	s.RunRead(ctx, func(r *reads.ReadSnapshot) error {
		_, err := r.QueryNumber(`WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ` +
			countLimitText +
			`) SELECT count(*) FROM c, meta`)
		return err
	})
}

// keepReadersBusy calls read repeatedly, in reads.MaxConcurrentReads goroutines, until the test ends.
func keepReadersBusy(t *testing.T, read func(context.Context)) {
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range reads.MaxConcurrentReads {
		readers.Go(func() {
			for ctx.Err() == nil {
				read(ctx)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		readers.Wait()
	})
}

// Overlapping reads do not let the WAL grow, even if at least one read is running at every moment.
func TestOverlappingReadersDoNotGrowTheWAL(t *testing.T) {
	s, _ := openStoreWithSmallWAL(t)
	keepReadersBusy(t, func(ctx context.Context) { readSlowly(ctx, s, `5000`) })
	var worst int64
	for range 20 { // writes 20 MiB in total
		growWALByJobs(t, s, 16)
		allowCheckpoint(t, s)
		worst = max(worst, walSize(t, s))
	}
	if worst > 6<<20 { // the WAL is restarted after 1,000 pages, which are 4 MiB
		t.Errorf("the WAL grew to %d bytes", worst)
	}
}

// Long reads that overlap let the WAL grow only until the store shortens their time limit.
func TestLongOverlappingReadersDoNotGrowTheWAL(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	s, _ := openStoreWithSmallWAL(t)
	keepReadersBusy(t, func(ctx context.Context) {
		readSlowly(ctx, s, `1000000000`)
	})
	deadline := time.Now().Add(20 * time.Second)
	for s.CheckpointError() == nil {
		growWALByJobs(t, s, 4)
		allowCheckpoint(t, s)
		if time.Now().After(deadline) {
			t.Fatalf("not starved at %d bytes", walSize(t, s))
		}
	}
	for s.CheckpointError() != nil {
		growWAL(t, s)
		allowCheckpoint(t, s)
		if time.Now().After(deadline) {
			t.Fatalf("still starved at %d bytes", walSize(t, s))
		}
	}
	for range 2 {
		growWAL(t, s)
	}
	if size := walSize(t, s); size > 2*s.walState.waitForReadersAboveBytes {
		t.Errorf("the WAL has %d bytes", size)
	}
}
