package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// The WAL is SQLite's write-ahead log. After every thousand pages, SQLite makes a checkpoint: it copies frames
// (changed pages) from the WAL into the database. SQLite writes to the beginning of the WAL file again only
// when no reader uses the WAL. So overlapping readers, or one reader that does not end, would let the file grow
// without limit. See docs/decisions/0036.
const (
	walWarningBytes         = 256 << 20              // if the WAL is larger, a warning is shown and reads get less time
	walReaderWaitMillis     = `100`                  // time in ms that the writer waits for readers
	walLongReaderWaitMillis = `400`                  // the same while the warning is shown; longer than any read may take
	walMinReaderWaitPause   = time.Second            // minimum time between two attempts to wait for readers
	walMaxReaderWaitPause   = 30 * time.Second       // maximum time between two attempts, if a reader does not end
	stuckWALReadTimeout     = 250 * time.Millisecond // time limit of reads while the warning is shown
)

// walState holds the limits and times that the writer uses to keep the WAL small.
type walState struct {
	// If the WAL is larger than waitForReadersAboveBytes, the writer waits for readers. If it is larger than
	// warnAboveBytes, a warning is shown.
	waitForReadersAboveBytes, warnAboveBytes int64
	nextReaderWaitAt                         time.Time     // earliest time of the next wait for readers
	readerWaitPause                          time.Duration // time from the last wait to nextReaderWaitAt
}

// checkpointWALIfLarge copies the WAL into the database if its size in bytes is above the limit, so that the next
// commit writes to the beginning of the WAL file. The writer waits a moment for readers that still use the WAL. New
// readers use only the database, so they do not prevent the checkpoint. If the checkpoint fails, the commit continues.
func (s *Store) checkpointWALIfLarge(walBytes int64) {
	w := &s.walState
	if walBytes <= w.waitForReadersAboveBytes {
		w.readerWaitPause = 0
		s.setWALStuckReason("")
		return
	}
	if time.Now().Before(w.nextReaderWaitAt) {
		return
	}
	err := s.runWALCheckpoint(`RESTART`)
	if err == nil {
		w.readerWaitPause = 0
	}
	w.readerWaitPause = min(max(2*w.readerWaitPause, walMinReaderWaitPause), walMaxReaderWaitPause)
	w.nextReaderWaitAt = time.Now().Add(w.readerWaitPause)
	path := filepath.Join(s.stateDir, sqlitedb.DatabaseFileName)
	switch {
	case err == nil:
		s.setWALStuckReason("")
	case walBytes <= w.warnAboveBytes: // the WAL is not large enough for a warning
	case errors.Is(err, errWALInUse):
		s.setWALStuckReason(fmt.Sprintf(
			"the write-ahead log %s-wal has grown beyond %s because another program keeps reading "+
				"the database; find that program with: %s, and end it",
			path, queue.FormatSize(w.warnAboveBytes), sqlitedb.ListFileUsersCommand(path)))
	default:
		s.setWALStuckReason(fmt.Sprintf("the write-ahead log %s-wal has grown beyond %s because it cannot be emptied "+
			"(%v); check the disk", path, queue.FormatSize(w.warnAboveBytes), err))
	}
}

var errWALInUse = errors.New("another program keeps reading the database")

// runWALCheckpoint moves all changes in the write-ahead log into the database. checkpointMode is a mode of SQLite's
// wal_checkpoint: after RESTART, the next commit writes to the beginning of the log file; after TRUNCATE, the file is
// empty. If another connection reads from the log for too long, the error is errWALInUse.
func (s *Store) runWALCheckpoint(checkpointMode string) error {
	wait := `PRAGMA busy_timeout = ` + walReaderWaitMillis
	if s.walStuckReason.Load() != nil {
		wait = `PRAGMA busy_timeout = ` + walLongReaderWaitMillis
	}
	if err := s.writerConn.Exec(wait); err != nil {
		return err
	}
	held, err := s.writerConn.QueryNumber(`PRAGMA wal_checkpoint(` + checkpointMode + `)`)
	err2 := s.writerConn.Exec(`PRAGMA ` + sqlitedb.BusyTimeoutPragma)
	if err == nil && held != 0 {
		err = errWALInUse
	}
	return errors.Join(err, err2)
}

// setWALStuckReason records why the WAL cannot be emptied; "" means that it can. It logs the beginning and
// the end of this problem.
func (s *Store) setWALStuckReason(reason string) {
	old := s.walStuckReason.Load()
	switch {
	case reason != "" && old == nil:
		s.Log().Warn(reason)
		s.walStuckReason.Store(&reason)
	case reason == "" && old != nil:
		s.Log().Info("the write-ahead log of the database can be emptied again")
		s.walStuckReason.Store(nil)
	}
}

// slowCommitTime is the duration above which health checks report a running commit: the disk may hang or fail.
const slowCommitTime = 10 * time.Second

// SlowCommitError returns an error while a commit takes longer than slowCommitTime. It never blocks, and is
// safe for concurrent use.
func (s *Store) SlowCommitError() error {
	if took := s.RunningCommitTime(); took >= slowCommitTime {
		return queue.Errorf(queue.CodeUnavailable, "the database has been waiting for the disk of %s for %s, and stores "+
			"nothing until the disk responds",
			s.stateDir, queue.FormatDuration(took.Truncate(time.Second)))
	}
	return nil
}

// CheckpointError returns an error while the WAL has grown too large and cannot be emptied. It is safe for concurrent
// use.
func (s *Store) CheckpointError() error {
	if why := s.walStuckReason.Load(); why != nil {
		return queue.Errorf(queue.CodeUnavailable, "%s", *why)
	}
	return nil
}

// ReadTimeout implements reads.ReadDatabase. It returns the time limit of a read, which is shorter while the WAL cannot
// be emptied.
func (b engineBackend) ReadTimeout() (timeLimit time.Duration, problem error) {
	if err := b.CheckpointError(); err != nil {
		return stuckWALReadTimeout, err
	}
	return engine.DefaultReadTimeout, nil
}
