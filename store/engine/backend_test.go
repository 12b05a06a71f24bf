package engine

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// Store is an engine on an SQLite file, for the tests in this package. Unlike sqlite.Store, it does not check
// its files, and it does not watch the disk space.
type Store struct {
	*Engine
	conn        *sqlitedb.Conn // the writer's connection
	path        string
	highWater   sqlitedb.HighWaterFile
	readTimeout time.Duration // how long a read may take

	connsMu   sync.Mutex
	readConns []*sqlitedb.Conn // all connections for reading; guarded by connsMu
}

// Options are the parameters of Open.
type Options struct {
	Dir       string
	RankOrder queue.RankPolicy // from which the ranks of jobs are computed
	Log       *slog.Logger
}

// Open opens the database in a directory. It creates a missing database.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{path: filepath.Join(o.Dir, sqlitedb.DatabaseFileName), readTimeout: DefaultReadTimeout}
	var err error
	if s.conn, err = sqlitedb.OpenWriter(s.path); err != nil {
		return nil, err
	}
	s.Engine = New(Config{Backend: fileBackend{s}, DiskSpace: fileBackend{s}, RankOrder: o.RankOrder, Log: o.Log})
	if err = sqlitedb.CheckDatabaseUsable(s.conn, o.Dir); err == nil {
		err = sqlitedb.Migrate(s.conn, database.SchemaMigrations)
	}
	if err == nil {
		s.highWater, err = sqlitedb.OpenHighWaterFile(o.Dir)
	}
	if err == nil {
		err = s.LoadCache(s.conn, sqlitedb.FileID(s.path))
	}
	s.AllowWrites()
	if err == nil {
		err = s.Start(ctx, o.RankOrder, nil)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Verify compares the rows of the database with each other.
func (s *Store) Verify(ctx context.Context) (findings []store.Finding, err error) {
	err = s.RunBetweenTransactions(ctx, func() error {
		findings = integrity.VerifyDatabase(s.conn, nil, store.OutputDirs{}, s.clock())
		return nil
	})
	return findings, err
}

// fileBackend is the Backend and DiskSpace of a Store's engine.
type fileBackend struct{ *Store }

func (s fileBackend) OpenReader() (database.ReadConn, error) {
	c, err := sqlitedb.OpenWithFlags(s.path, sqlitedb.ReadWriteFlags, sqlitedb.ReaderPragmas()...)
	if err != nil {
		return nil, err
	}
	s.connsMu.Lock()
	defer s.connsMu.Unlock()
	s.readConns = append(s.readConns, c)
	return c, nil
}

func (s fileBackend) BeforeCommitGroup() error { return nil }

func (s fileBackend) BeginTx(*Tx) error { return nil }

func (s fileBackend) AddReservationQuery(*database.QueryBatch, func(database.Row)) {}

func (s fileBackend) WriteReservations(t *Tx) (metaListText string, metaListChanged bool, err error) {
	return t.EncodedReservations(), true, nil
}

func (s fileBackend) AfterCommit(metaRowChanged bool) {
	if metaRowChanged {
		s.highWater.Write(sqlitedb.HighWaterMark(s.DatabaseCounters()))
	}
}

func (s fileBackend) RefusedRequestError(kind database.ErrorKind, err error) error {
	if kind == database.DiskFull {
		return queue.Errorf(queue.CodeNoSpace, "%v", err)
	}
	return queue.Errorf(queue.CodeUnavailable, "%v", err)
}

func (s fileBackend) MayStemFromEarlierStatement(error) bool { return false }

func (s fileBackend) OnEngineFailure() {}

func (s fileBackend) ReadTimeout() (time.Duration, error) { return s.readTimeout, nil }

func (s fileBackend) CheckReadable() error { return nil }

func (s fileBackend) ConvertReadError(err error) error { return err }

func (s fileBackend) Close() error { return errors.Join(s.conn.Close(), s.highWater.Close()) }

func (s fileBackend) DatabaseBytes() int64 { return 0 }

func (s fileBackend) CheckDiskSpace() error { return nil }

func (s fileBackend) MaintainDiskReserve() {}

func (s fileBackend) ReleaseDiskReserve(bool) bool { return false }

func (s fileBackend) OnSpaceFreed() {}

// inTransaction calls a function within a write transaction.
func inTransaction(t *testing.T, s *Store, operation func() error) {
	t.Helper()
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		if err := tx.EnsureBegun(); err != nil {
			return err
		}
		return operation()
	})
	if err != nil {
		t.Fatal(err)
	}
}
