package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/dir"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// The reserve is a file that is truncated or removed when the disk is full, so that the ends of running jobs
// can be recorded. New jobs are refused earlier, before the disk is full. In a trial on a full disk with 3,000
// running jobs, no end of a job could be recorded without a reserve. With a reserve of 8 MiB, all could. The
// last 2 MiB of the reserve are kept for compaction and for operations that remove data. Otherwise a disk that
// the database itself has filled would stay full.
const (
	reserveBytesForRemovals = 2 << 20
	// freeSpaceCheckInterval is the time between two checks of the free space. In this time, a disk that writes
	// 500 MB/s uses 2.5 MB.
	freeSpaceCheckInterval = 5 * time.Millisecond
	// minFileCheckInterval is the minimum time between two checks of the database files after changes in their directory.
	minFileCheckInterval = time.Second
	// unwatchedFileCheckInterval is the time between two checks of the files if the directory cannot be watched.
	unwatchedFileCheckInterval = 30 * time.Second
)

// spaceCheckResult is the result of the writer's last check of the free space.
type spaceCheckResult struct {
	checkedAt      time.Time
	newJobsRefusal error // why new jobs are refused; nil if there is space
}

// CheckDiskSpace implements engine.DiskSpace. It returns an error if new jobs must be refused, because the disk is
// nearly full and the database has no free pages for them.
func (b engineBackend) CheckDiskSpace() error {
	if time.Since(b.lastSpaceCheck.checkedAt) > freeSpaceCheckInterval {
		if b.missingReserveError.Load() != nil {
			b.createMissingReserveFile() // try to create the reserve, since new jobs are refused while it is missing
		}
		if b.lastSpaceCheck.newJobsRefusal = b.DiskSpaceError(); b.lastSpaceCheck.newJobsRefusal != nil {
			queue.TrySend(b.compactionWakeups, struct{}{})
			if _, err := b.countPages(); err != nil {
				return err
			}
			b.lastSpaceCheck.newJobsRefusal = b.DiskSpaceError()
		}
		b.lastSpaceCheck.checkedAt = time.Now()
	}
	return b.lastSpaceCheck.newJobsRefusal
}

// DiskSpaceError returns an error while new jobs are refused for lack of space: the disk is nearly full and
// the database has no free pages, or the database has nearly reached this process's file size limit. It is
// safe for concurrent use.
func (s *Store) DiskSpaceError() error {
	free, err := s.freeDiskBytes()
	if err != nil {
		free = math.MaxInt64
	}
	inside := s.freePageBytes.Load()
	maxSize, limited := sqlitedb.FileSizeLimit()
	if refusal := s.missingReserveError.Load(); refusal != nil {
		return *refusal
	}
	if free >= sqlitedb.MinFreeBytesForNewJobs && !limited {
		return nil
	}
	now, err := statDatabaseFiles(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName))
	if err != nil {
		return nil // accept new jobs, because the next commit reports the error
	}
	size := fileSizesOf(now)
	// Free pages alone are not enough: SQLite first writes each change to the WAL. But it can reuse
	// the space of the WAL file.
	if free < sqlitedb.MinFreeBytesForNewJobs && (inside < sqlitedb.MinFreeBytesForNewJobs || free+
		size.walBytes < sqlitedb.MinFreeBytesForNewJobs) {
		return s.noSpaceForJobsError()
	}
	if limited && size.databaseBytes+
		size.walBytes-inside > maxSize-sqlitedb.ReserveFileBytes-sqlitedb.MinFreeBytesForNewJobs {
		return queue.Errorf(queue.CodeNoSpace, "the database in %s has almost reached the limit for file sizes "+
			"(LimitFSIZE=, ulimit -f), %s; running jobs continue, but new jobs are refused until the limit is raised",
			s.stateDir,
			queue.DescribeSize(maxSize))
	}
	return nil
}

func (s *Store) noSpaceForJobsError() error {
	return queue.Errorf(queue.CodeNoSpace, "less than %s is free on the disk of %s and inside the database file; "+
		"running jobs continue, but new jobs are refused until there is space (queuectl cleanup removes ended jobs)",
		queue.FormatSize(sqlitedb.MinFreeBytesForNewJobs), s.stateDir)
}

// setMissingReserveError makes DiskSpaceError return err until the reserve file exists again, so
// that new jobs are refused.
func (s *Store) setMissingReserveError(err error) { s.missingReserveError.Store(&err) }

// These constants are minimum values for the process's file size limit, in bytes. The limit must be at least
// minFileSizeLimit, and at least minDatabaseGrowthBytes more than the size of an existing database.
const (
	minFileSizeLimit       = 64 << 20
	minDatabaseGrowthBytes = 1 << 20
)

// checkFileSizeLimit returns an error if the process's file size limit is too low for the database.
func checkFileSizeLimit(path string) error {
	need := int64(minFileSizeLimit)
	if info, err := os.Stat(path); err == nil {
		need = max(need, info.Size()+minDatabaseGrowthBytes)
	}
	if maxSize, limited := sqlitedb.FileSizeLimit(); limited && maxSize < need {
		return queue.Errorf(queue.CodeInvalid, "the file size limit is %s, but the database needs %s; raise the limit "+
			"(LimitFSIZE=, ulimit -f)", queue.DescribeSize(maxSize), queue.DescribeSize(need))
	}
	return nil
}

// ReleaseDiskReserve implements engine.DiskSpace. It frees disk space by shrinking or removing the reserve file. If
// wholeReserve is false, it keeps reserveBytesForRemovals of the file. It reports whether it has freed any space.
func (b engineBackend) ReleaseDiskReserve(wholeReserve bool) bool {
	b.setMissingReserveError(queue.Errorf(queue.CodeNoSpace,
		"the disk of %s was full, and the space reserved for running jobs is used up; new jobs are refused until %s are "+
			"free; remove finished jobs with: queuectl cleanup",
		b.stateDir, queue.FormatSize(sqlitedb.ReserveFileBytes+sqlitedb.MinFreeBytesForNewJobs)))
	path := filepath.Join(b.stateDir, sqlitedb.ReserveFileName)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return false
	case info.Size() > reserveBytesForRemovals:
		return os.Truncate(path, reserveBytesForRemovals) == nil
	case wholeReserve:
		return os.Remove(path) == nil
	}
	return false
}

// maxDiskCapacityAge is how long the measured size of the disk is used. Every enqueue request needs it, and
// measuring it each time took 2.5 % of the service's CPU time.
const maxDiskCapacityAge = time.Minute

// diskCapacity is the size of a file system, in bytes, and when it was measured.
type diskCapacity struct {
	totalBytes int64
	measuredAt time.Time
}

// DiskCapacityBytes returns the size of the database's file system in bytes, at most maxDiskCapacityAge old, and 0 if
// the size is unknown. It is safe for concurrent use.
func (s *Store) DiskCapacityBytes() int64 {
	if known := s.diskCapacity.Load(); known != nil && time.Since(known.measuredAt) < maxDiskCapacityAge {
		return known.totalBytes
	}
	disk, err := sqlitedb.DiskSpaceOf(s.stateDir)
	if err != nil {
		return 0
	}
	s.diskCapacity.Store(&diskCapacity{disk.TotalBytes, time.Now()})
	return disk.TotalBytes
}

// OnSpaceFreed implements engine.DiskSpace. It makes CompactFiles check soon whether the file has enough free pages.
func (b engineBackend) OnSpaceFreed() { queue.TrySend(b.compactionWakeups, struct{}{}) }

// MaintainDiskReserve implements engine.DiskSpace. It creates the reserve if it is missing and there is space for it.
func (b engineBackend) MaintainDiskReserve() { b.createMissingReserveFile() }

// createMissingReserveFile creates the reserve if it is missing and there is space for it.
func (s *Store) createMissingReserveFile() {
	path := filepath.Join(s.stateDir, sqlitedb.ReserveFileName)
	if info, err := os.Stat(path); err == nil && info.Size() == sqlitedb.ReserveFileBytes {
		s.missingReserveError.Store(nil)
		return
	}
	free, err := s.freeDiskBytes()
	if err != nil || free < sqlitedb.ReserveFileBytes+sqlitedb.MinFreeBytesForNewJobs {
		return
	}
	err = writeReserveFile(path)
	errno, _ := errors.AsType[syscall.Errno](err)
	switch {
	case err == nil:
		s.missingReserveError.Store(nil)
	case errno != syscall.ENOSPC && !sqlitedb.IsDiskLimitErrno(errno):
		s.setMissingReserveError(queue.Errorf(queue.CodeNoSpace,
			"cannot create the disk reserve for running jobs: %v; new jobs are refused until this is fixed", err))
	default:
		s.setMissingReserveError(s.noSpaceForJobsError())
	}
}

func writeReserveFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|sqlitedb.RegularFileOpenFlags, 0o600)
	if err != nil {
		return err
	}
	piece := bytes.Repeat([]byte{0x5a}, 64<<10) // not zeros, because some file systems allocate no space for them
	for n := 0; n < sqlitedb.ReserveFileBytes && err == nil; n += len(piece) {
		_, err = f.Write(piece)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(path) // an incomplete reserve is useless
	}
	return err
}

// statDatabaseFiles returns the identity and size of the database and of its WAL, in this order.
func statDatabaseFiles(path string) (files [2]os.FileInfo, err error) {
	for i, p := range []string{path, path + "-wal"} {
		if files[i], err = os.Stat(p); err != nil {
			return files, fmt.Errorf("cannot check the database files: %w", err)
		}
	}
	return files, nil
}

// WatchFiles stops the store soon after the database or its WAL is removed or replaced. It returns when ctx
// ends. If the directory cannot be watched, it checks the files at intervals. A change that it misses is
// detected by the next commit.
func (s *Store) WatchFiles(ctx context.Context) {
	for warned := false; ; {
		err := dir.WaitForChange(ctx, s.stateDir, []string{sqlitedb.DatabaseFileName, sqlitedb.DatabaseFileName + "-wal"},
			func() bool {
				_, err := s.checkFilesNotReplaced()
				return err == nil
			})
		if ctx.Err() != nil {
			return
		}
		wait := minFileCheckInterval
		if err != nil {
			if wait = unwatchedFileCheckInterval; !warned {
				s.Log().Warn("cannot watch the database's directory for changes; checking the database files at intervals instead",
					"error", err, "every", wait)
			}
			warned = true
		}
		// A commit checks the files, and stops the store if they were changed. Other errors of
		// this commit can be ignored.
		s.RunAndCommit(ctx, engine.UrgentClass, func(*engine.Tx) error { return nil })
		select {
		case <-ctx.Done():
			return
		case <-s.StoreFailed():
			return
		case <-time.After(wait):
		}
	}
}

// checkFilesNotReplaced returns the current state of the database and its WAL. It returns an error if one of them was
// deleted or replaced while the store had it open, because later writes to the open file would be lost.
func (s *Store) checkFilesNotReplaced() (files [2]os.FileInfo, err error) {
	if files, err = statDatabaseFiles(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName)); err != nil {
		return files, err
	}
	for i := range files {
		if !os.SameFile(files[i], s.filesWhenOpened[i]) {
			return files, fmt.Errorf("the database in %s was replaced while the service was running; stop the service "+
				"before you restore a copy", s.stateDir)
		}
	}
	return files, nil
}

// fileSizes holds the sizes of the database and its WAL in bytes.
type fileSizes struct{ databaseBytes, walBytes int64 }

func fileSizesOf(files [2]os.FileInfo) fileSizes {
	return fileSizes{files[0].Size(), files[1].Size()}
}

// checkFilesIntact checks the database and its WAL before a commit, and returns the size of the WAL. It returns an
// error if one of them was deleted or replaced, or was truncated since the last commit, because content is then
// lost. Only the writer calls it. See docs/decisions/0034.
func (s *Store) checkFilesIntact() (walBytes int64, err error) {
	files, err := s.checkFilesNotReplaced()
	if err != nil {
		return 0, err
	}
	now := fileSizesOf(files)
	if now.walBytes < s.lastFileSizes.walBytes {
		err = s.checkShrunkWAL(now.walBytes)
	}
	if err == nil && now.databaseBytes < s.lastFileSizes.databaseBytes {
		err = s.checkShrunkDatabase(now.databaseBytes)
	}
	s.lastFileSizes = now
	return now.walBytes, err
}

// checkShrunkWAL is called when the WAL file has shrunk to walBytes bytes. It returns an error if changes are missing.
// If another program has made a checkpoint and then truncated the WAL, none are missing.
func (s *Store) checkShrunkWAL(walBytes int64) error {
	frames, _, err := s.countWALFrames()
	if err == nil && frames > 0 && walBytes < walHeaderBytes+frames*(walFrameHeaderBytes+sqlitedb.PageSize) {
		err = fmt.Errorf("the write-ahead log of the database in %s was truncated while the service was running: it has %d "+
			"bytes, too few for its %d changed pages", s.stateDir, walBytes, frames)
	}
	return err
}

// Sizes in bytes of the headers of a WAL and of its frames.
const (
	walHeaderBytes      = 32
	walFrameHeaderBytes = 24
)

// checkShrunkDatabase is called when the database file has shrunk to databaseBytes bytes. It returns an error if pages
// are missing. If another program has made a VACUUM, none are missing.
func (s *Store) checkShrunkDatabase(databaseBytes int64) error {
	pages, err := s.writerConn.QueryNumber(`PRAGMA page_count`)
	if err == nil && databaseBytes < pages*sqlitedb.PageSize {
		err = fmt.Errorf("the database in %s was truncated while the service was running: it has %d bytes, too "+
			"few for its %d pages", s.stateDir, databaseBytes, pages)
	}
	return err
}
