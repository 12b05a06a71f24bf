package sqlitedb

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// Names of files in the state directory.
const (
	DatabaseFileName = "queuectl.db"
	// HighWaterFileName is the name of the HighWaterFile. If this file exists, the directory has had a database.
	HighWaterFileName = "initialized"
	// StartupCheckFileName is the name of a file that is created after an I/O error. It makes the next
	// start check the database.
	StartupCheckFileName = "check"
)

// DatabaseFileNames returns the names of the database and of the files that SQLite creates next to it.
func DatabaseFileNames() []string {
	return []string{DatabaseFileName, DatabaseFileName + "-wal", DatabaseFileName + "-shm"}
}

// WALSizeLimitBytes is the size in bytes up to which the WAL (write-ahead log) may grow freely. Above it, the writer
// waits for readers to end. SQLite truncates a longer WAL file to this size.
const WALSizeLimitBytes = 64 << 20

// BusyTimeoutPragma is the pragma that makes the writer's connection wait for other programs that
// have locked the database.
const BusyTimeoutPragma = `busy_timeout = 5000` // in milliseconds

// OpenWriter opens a database for writing. For an empty file, it sets auto_vacuum, which compaction needs and
// which SQLite only accepts before the first page is written. So every new database file of a queue must be
// opened with OpenWriter first.
func OpenWriter(path string) (*Conn, error) {
	pragmas := writerPragmas()
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		pragmas = append([]string{`auto_vacuum = INCREMENTAL`}, pragmas...)
	}
	c, err := Open(path, pragmas...)
	if err != nil {
		return nil, err
	}
	if err := allocateWALIndex(path); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// writerPragmas returns the pragmas of the writer's connection. The page cache is small, because after
// compaction has moved pages, a commit visits every page in the cache. See docs/decisions/0007.
func writerPragmas() []string {
	synchronous := "FULL"
	switch {
	case failpoint.IsEnabled("nosync"):
		synchronous = "OFF"
	case failpoint.IsEnabled("normalsync"):
		synchronous = "NORMAL"
	}
	return []string{
		BusyTimeoutPragma, `journal_mode = wal`, `synchronous = ` + synchronous, `wal_autocheckpoint = 1000`,
		`journal_size_limit = ` + strconv.Itoa(WALSizeLimitBytes), `cache_size = -2048`, `temp_store = memory`,
		`foreign_keys = 1`,
		`trusted_schema = 0`,
	}
}

// CheckStateDir returns an error if the directory has lost its database, or if other users can access the database.
// If the directory has never had a database, CheckStateDir creates an empty file.
func CheckStateDir(dir, databasePath string) error {
	mark := filepath.Join(dir, HighWaterFileName)
	_, markErr := os.Stat(mark)
	info, err := os.Lstat(databasePath)
	switch {
	case errors.Is(err, os.ErrNotExist) && markErr == nil:
		return fmt.Errorf("the database %s is missing, but existed before; put the file back, or remove %s to start "+
			"with an empty queue", databasePath, mark)
	case errors.Is(err, os.ErrNotExist):
		f, err := os.OpenFile(databasePath, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("cannot create the database: %w", err)
		}
		return f.Close() // closing releases no lock of SQLite, because the file is new
	case err != nil:
		return fmt.Errorf("cannot open the database: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("the database %s must be a regular file, not a symbolic link or a directory; to use another "+
			"directory, give it with --dir", databasePath)
	case info.Size() == 0 && markErr == nil:
		return fmt.Errorf("the database %s is empty, but contained jobs before; put a copy back, or remove %s to start "+
			"with an empty queue", databasePath, mark)
	}
	if err := cmp.Or(CheckPrivate(databasePath, info, 0o077), CheckWritable(databasePath, info)); err != nil {
		return fmt.Errorf("the database %w", err)
	}
	return nil
}

// DamageAdvice says how to find out what is damaged.
const DamageAdvice = "to see what is damaged: queuectl doctor --verify"

// SQLiteErrorIn returns the SQLite error in err, or nil if err contains none. For damage that this program has
// found itself, it returns an error with SQLite's code for corruption.
func SQLiteErrorIn(err error) *Error {
	if damaged, harmed := errors.AsType[database.DamageError](err); harmed {
		return &Error{Code: sqlite3.SQLITE_CORRUPT, message: string(damaged)}
	}
	e, _ := errors.AsType[*Error](err)
	return e
}

// ExplainOpenError adds advice for the user to an error of opening a database.
func ExplainOpenError(path string, err error) error {
	e := SQLiteErrorIn(err)
	if e == nil {
		return err
	}
	switch e.Code {
	// For these codes, SQLite does not report the error of the operating system, so check
	// whether the disk is full.
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE:
		if disk, failed := DiskSpaceOf(filepath.Dir(path)); failed == nil && disk.FreeBytes < minAuxiliaryFileBytes {
			return noSpaceForDatabaseError(path, err)
		}
	}
	switch e.Code & 0xff {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the database %s is damaged (%w) and was not changed; copy it, then restore a backup with: "+
			"queuectl restore FILE", path, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the database %s cannot be written (%w); give the service's account write access to the file "+
			"and its directory", path, err)
	case sqlite3.SQLITE_FULL:
		return noSpaceForDatabaseError(path, err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("the database %s is locked by another program; end that program and start again (%w)", path, err)
	}
	return fmt.Errorf("cannot open %s: %w; check the file and its disk", path, err)
}

// minAuxiliaryFileBytes is the minimum size in bytes of the files that SQLite creates next to the database.
const minAuxiliaryFileBytes = 64 << 10

// noSpaceForDatabaseError returns the error for a database that cannot be opened because the disk is full.
func noSpaceForDatabaseError(path string, err error) error {
	return queue.Errorf(queue.CodeNoSpace, "no disk space for the database %s; free some space (%v)", path, err)
}

// fileSystem says whether a queue may be stored on a file system. Network and FUSE file systems
// are not suitable: other machines or programs may write to them, and locks, fsync and the WAL's
// shared memory are unreliable.
type fileSystem struct {
	Name          string
	IsUnsupported bool   // true if no queue may be stored on it
	Warning       string // warning for the user; "" if there is nothing to warn about
}

// CheckSupported returns an error if no queue may be stored on the file system of dir.
func (f fileSystem) CheckSupported(dir string) error {
	if !f.IsUnsupported {
		return nil
	}
	return queue.InvalidFieldError("dir",
		"%s is on %s, where locks and fsync are not reliable; choose a directory on a local disk",
		dir, f.Name)
}

// DiskSpace describes the space in a file system.
type DiskSpace struct {
	FreeBytes     int64 // number of bytes that an unprivileged process may still write
	TotalBytes    int64 // size of the file system in bytes
	IsOutOfInodes bool  // no more files can be created, even if bytes are free
}

// These constants describe the disk space that a queue needs.
const (
	ReserveFileName  = "reserve" // name of the file that is shrunk or removed when the disk is full
	ReserveFileBytes = 8 << 20   // size of that file in bytes
	// MinFreeBytesForNewJobs is the free space in bytes below which new jobs are refused.
	MinFreeBytesForNewJobs = 4 << 20
)

// PageCounts holds the number of pages of the database, and how many of them are free.
type PageCounts struct{ Total, Free int64 }

// CountPages counts the pages of a database.
func CountPages(c *Conn) (p PageCounts, err error) {
	if p.Total, err = c.QueryNumber(`PRAGMA page_count`); err == nil {
		p.Free, err = c.QueryNumber(`PRAGMA freelist_count`)
	}
	return p, err
}

// PageSize is the page size of the database in bytes, SQLite's default.
const PageSize = 4096
