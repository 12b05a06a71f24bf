package store

import (
	"context"
	"io"
	"time"
)

// Examiner is a store that can check itself.
type Examiner interface {
	// Examine makes the quick checks that "queuectl doctor" reports.
	Examine(ctx context.Context) []Finding
}

// Finding is the result of one check: what was found, and what the user can do next.
type Finding struct {
	CheckName string
	Level     FindingLevel
	Message   string
	Advice    string
}

// FindingLevel is the severity of a finding.
type FindingLevel string

// The levels. A warning asks for attention, and a failure must be fixed.
const (
	LevelOK      FindingLevel = "ok"
	LevelWarning FindingLevel = "warning"
	LevelFailure FindingLevel = "failure"
)

// Failure returns a finding with LevelFailure.
func Failure(checkName, message, advice string) Finding {
	return Finding{CheckName: checkName, Level: LevelFailure, Message: message, Advice: advice}
}

// Maintainer is a store that keeps its jobs in local files. All methods are safe for concurrent use.
type Maintainer interface {
	Examiner
	// DiskSpaceError returns an error while the disk is too full for new jobs.
	DiskSpaceError() error
	// DiskCapacityBytes returns the size in bytes of the file system that holds the files, or 0 if it is unknown.
	DiskCapacityBytes() int64
	// CheckpointError returns an error while a read transaction that does not end keeps SQLite from moving committed pages
	// from the write-ahead log into the database.
	CheckpointError() error
	// SlowCommitError returns an error while a commit takes so long that the disk may be frozen or failing. It never
	// blocks.
	SlowCommitError() error
	// WatchFiles watches the store's files until ctx ends. If the files are removed or replaced, the store fails, because
	// further changes would be lost.
	WatchFiles(ctx context.Context)
	// CompactFiles returns free space inside the files to the disk, in steps between other changes, until ctx
	// ends.
	CompactFiles(ctx context.Context)
	// VerifyData copies the stored data, and checks whether the rows of the copy contradict each other or the output
	// files. It calls reportProgress with the number of copied bytes and with the total. If reportProgress returns an
	// error, VerifyData stops.
	VerifyData(ctx context.Context, outputs OutputDirs, reportProgress func(done, total int64) error) ([]Finding, error)
	// Backup makes a copy of the database and its output files, and checks the copy. The copy contains every change that
	// was acknowledged before the call, and may contain later changes. Backup reports its progress as VerifyData does.
	// Only one copy is made at a time.
	Backup(ctx context.Context, outputs OutputOpener, reportProgress func(done, total int64) error) (BackupReader, error)
}

// OutputDirs names the directories that may contain output files. An earlier store may have used the same directories.
// If DirsUsedSince is not zero, files last written before DirsUsedSince may belong to that earlier store.
type OutputDirs struct {
	Dirs          []string
	DirsUsedSince time.Time
}

// OutputOpener opens an output file by name. It returns os.ErrNotExist if the file is gone.
type OutputOpener func(ref string) (io.ReadCloser, error)

// BackupReader is a finished backup. Reading starts at the beginning of the backup, and Close deletes the backup.
type BackupReader interface {
	io.ReadCloser
	Size() int64 // size of the backup in bytes
}
