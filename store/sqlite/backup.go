package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// A backup is one SQLite file. It contains the database and, in an additional table, the output files that
// the database refers to. SQLite's backup interface copies the pages on the connection of the writer, the
// goroutine that commits. If the writer changes a page that is already copied, SQLite changes it in the copy
// too, so the backup need not begin again. A backup holds no read transaction, so SQLite can still empty the
// WAL (write-ahead log). See docs/decisions/0037.
const (
	tempCopyFilePrefix   = "copy-" // start of the name of an unfinished copy
	pagesPerCopyStep     = 256     // pages copied in one step: 1 MiB, about a millisecond of the writer's time
	backupOutputRowBytes = 1 << 20 // bytes of output in one row of the table outputs
)

// backupFile is a finished backup.
type backupFile struct {
	*os.File
	sizeBytes int64
}

// Size returns the size of the backup in bytes.
func (c *backupFile) Size() int64 { return c.sizeBytes }

// Close deletes the backup.
func (c *backupFile) Close() error {
	err := c.File.Close()
	if gone := os.Remove(c.Name()); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// Backup makes a backup next to the database. It contains every change that was acknowledged before Backup was
// called, and possibly later ones. Backup calls reportProgress with the number of bytes copied and the
// approximate total. It checks the backup with integrity_check. Only one backup is made at a time.
func (s *Store) Backup(ctx context.Context, outputs store.OutputOpener,
	reportProgress func(done, total int64) error) (store.BackupReader,
	error) {
	path, err := s.copyToTempFile(ctx, s.Counts().OutputBytes, reportProgress, func(c *sqlitedb.Conn) error {
		if err := s.addOutputsToCopy(ctx, c, outputs); err != nil {
			return err
		}
		if err := integrity.CheckDatabasePages(c); err != nil {
			return fmt.Errorf("the backup copy is damaged (%w), so the database may be damaged too; check the database with: "+
				"queuectl doctor --verify", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	os.Remove(path) // remove the name now: on Unix, the file stays readable while it is open
	if err != nil {
		return nil, err
	}
	made := &backupFile{File: f}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, made.Close())
	}
	made.sizeBytes = info.Size()
	return made, nil
}

// copyToTempFile copies the database into a temporary file and calls processCopy with a connection to the copy. It
// returns the path of the file, which the caller deletes. If it returns an error, it has deleted the file. bytesToAdd
// is how many bytes processCopy will add to the copy. When ctx ends, running statements on the copy are interrupted.
func (s *Store) copyToTempFile(ctx context.Context, bytesToAdd int64, reportProgress func(done, total int64) error,
	processCopy func(c *sqlitedb.Conn) error) (path string, err error) {
	if !s.StartDatabaseCopy() {
		return "", queue.Errorf(queue.CodeUnavailable, "another backup or doctor --verify is running; try again later")
	}
	defer s.EndDatabaseCopy()
	needed := s.Counts().DatabaseBytes + bytesToAdd + minFreeBytesAfterCopy
	if free, err := s.freeDiskBytes(); err == nil && free < needed {
		// Show both sizes in whole KiB, the needed size rounded up, so that they are easy to compare.
		const kib = 1 << 10
		return "", queue.Errorf(queue.CodeNoSpace,
			"copying the database and its output files needs %s on the disk of %s, but only %s are free; free some space",
			queue.DescribeSize((needed+kib-1)/kib*kib), s.stateDir, queue.DescribeSize(free/kib*kib))
	}
	// CreateTemp uses mode 0600, so other accounts cannot read the copy
	f, err := os.CreateTemp(s.stateDir, tempCopyFilePrefix)
	if err != nil {
		return "", err
	}
	path = f.Name()
	defer func() {
		if err != nil {
			os.Remove(f.Name()) // do not use path: a return with an error has set it to ""
		}
	}()
	if err := f.Close(); err != nil {
		return "", err
	}
	c, err := sqlitedb.Open(path, `journal_mode = off`, `synchronous = off`, `cache_size = -2048`, `trusted_schema = 0`)
	if err != nil {
		return "", s.explainCopyError(err)
	}
	release := c.InterruptWhenDone(ctx)
	err = s.copyPages(ctx, c, reportProgress)
	if err == nil {
		// Without a WAL, the copy is a single file that can be read even from a read-only directory.
		err = c.Exec(`PRAGMA journal_mode = delete`)
	}
	if err == nil {
		err = processCopy(c)
	}
	release()
	if ctx.Err() != nil {
		err = ctx.Err() // if ctx has ended, report that instead of the interrupted statement's error
	}
	return path, s.explainCopyError(errors.Join(err, c.Close()))
}

// minFreeBytesAfterCopy is the disk space in bytes that a copy must leave free. With less, new jobs would be refused
// and running jobs could lose output.
const minFreeBytesAfterCopy = sqlitedb.MinFreeBytesForNewJobs + pagesPerCopyStep*sqlitedb.PageSize

// checkFreeSpaceForCopy returns an error if less than minFreeBytesAfterCopy bytes are free on the disk.
func (s *Store) checkFreeSpaceForCopy() error {
	if free, err := s.freeDiskBytes(); err == nil && free < minFreeBytesAfterCopy {
		return s.noSpaceForCopyError()
	}
	return nil
}

func (s *Store) noSpaceForCopyError() error {
	return queue.Errorf(queue.CodeNoSpace, "the disk of %s has no space left for a temporary copy of the database; free "+
		"some space there, then try again", s.stateDir)
}

// explainCopyError replaces an error about a full disk by one that says that the copy failed, not the database
// itself. It returns other errors unchanged.
func (s *Store) explainCopyError(err error) error {
	if err != nil && database.ErrorKindOf(err) == database.DiskFull {
		return s.noSpaceForCopyError()
	}
	return err
}

// copyPages copies all pages of the database into an empty database. It copies pagesPerCopyStep pages at a
// time, and the writer can commit in between.
func (s *Store) copyPages(ctx context.Context, target *sqlitedb.Conn,
	reportProgress func(done, total int64) error) error {
	main, err := libc.CString("main")
	if err != nil {
		return err
	}
	defer libc.Xfree(target.TLS, main)
	err = s.RunBetweenTransactions(ctx, func() error {
		if s.backupHandle = sqlite3.Xsqlite3_backup_init(s.writerConn.TLS, target.DBHandle, main, s.writerConn.DBHandle,
			main); s.backupHandle == 0 {
			return target.ResultError(sqlite3.Xsqlite3_errcode(s.writerConn.TLS, target.DBHandle))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for more := true; more && err == nil; {
		var remainingPages, totalPages int64
		err = s.RunBetweenTransactions(ctx, func() error {
			if s.backupHandle == 0 {
				return engine.ErrClosed
			}
			rc := sqlite3.Xsqlite3_backup_step(s.writerConn.TLS, s.backupHandle, pagesPerCopyStep)
			remainingPages, totalPages = int64(sqlite3.Xsqlite3_backup_remaining(s.writerConn.TLS, s.backupHandle)),
				int64(sqlite3.Xsqlite3_backup_pagecount(s.writerConn.TLS, s.backupHandle))
			more = rc == sqlite3.SQLITE_OK
			if !more && rc != sqlite3.SQLITE_DONE {
				return &sqlitedb.Error{Code: int(rc)}
			}
			return nil
		})
		if err == nil {
			err = s.checkFreeSpaceForCopy()
		}
		if err == nil {
			err = reportProgress((totalPages-remainingPages)*sqlitedb.PageSize, totalPages*sqlitedb.PageSize)
		}
	}
	// End SQLite's backup even if ctx has ended or the store has failed, because this must happen before the
	// target connection is closed.
	s.RunAsWriter(s.finishSQLiteBackup)
	return err
}

// finishSQLiteBackup ends a running backup. Only the writer, the goroutine that commits, may call it.
func (s *Store) finishSQLiteBackup() {
	if s.backupHandle != 0 {
		sqlite3.Xsqlite3_backup_finish(s.writerConn.TLS, s.backupHandle) // its result only repeats the error of a step
		s.backupHandle = 0
	}
}

// addOutputsToCopy copies the output files that a database copy refers to into a table of that copy.
func (s *Store) addOutputsToCopy(ctx context.Context, c *sqlitedb.Conn, outputs store.OutputOpener) error {
	err := c.Exec(`CREATE TABLE outputs (ref TEXT NOT NULL, n INTEGER NOT NULL, bytes BLOB NOT NULL, ` +
		`PRIMARY KEY (ref, n)) STRICT, WITHOUT ROWID`)
	if err == nil {
		err = c.Exec(`BEGIN`)
	}
	if err != nil {
		return err
	}
	err = integrity.EachReferencedOutput(c, func(ref string, size int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := outputs(ref)
		if errors.Is(err, os.ErrNotExist) {
			return nil // continue without the missing file, which "queuectl doctor --verify" reports
		}
		if err != nil {
			return fmt.Errorf("cannot read an output file: %w", err)
		}
		defer f.Close()
		piece, whole := make([]byte, backupOutputRowBytes), io.LimitReader(f, size) // a running job may append more output
		for n := int64(0); ; n++ {
			got, err := io.ReadFull(whole, piece)
			if failed := errors.Join(ctx.Err(), s.checkFreeSpaceForCopy()); failed != nil {
				return failed
			}
			if got > 0 {
				if failed := c.Exec(`INSERT INTO outputs (ref, n, bytes) VALUES (?, ?, ?)`, ref, n, piece[:got]); failed != nil {
					return failed
				}
			}
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return nil
			}
			if err != nil {
				return fmt.Errorf("cannot read an output file: %w", err)
			}
		}
	})
	if err != nil {
		return err
	}
	return c.Exec(`COMMIT`)
}

// deleteUnfinishedDatabaseCopies deletes the files of backups that a killed service has not finished.
func deleteUnfinishedDatabaseCopies(dir string) {
	list, _ := filepath.Glob(filepath.Join(dir, tempCopyFilePrefix+"*")) // Glob fails only for a malformed pattern
	for _, path := range list {
		os.Remove(path)
	}
}
