package main

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlite"
)

// The rows that the benchmark inserts directly into the database fit the current schema.
func TestBenchmarkRowsFitDatabaseSchema(t *testing.T) {
	dir := t.TempDir()
	open := func() *sqlite.Store {
		s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir,
			RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
				AgingInterval: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	open().Close()
	b := &bench{dir: t.TempDir()}
	raw, err := b.newSQLiteOnlyQueue(&service{dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.close()
	if err := raw.commitJobs(3); err != nil {
		t.Error(err)
	}
	db, err := openDB(filepath.Join(dir, "queuectl.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range insertEndedJobsSQL {
		if _, err := db.Exec(text, sql.Named("n", 10), sql.Named("from", time.Now().Add(-time.Hour).UnixMilli()),
			sql.Named("step", 1000)); err != nil {
			t.Errorf("insert rows: %v: %s", err, text)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := open()
	defer s.Close()
	list, err := s.VerifyData(t.Context(), store.OutputDirs{}, func(int64, int64) error { return nil })
	for _, f := range list {
		if f.Level != store.LevelOK {
			t.Errorf("doctor on a queue with ended jobs: %+v", f)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
