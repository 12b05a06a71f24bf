package integrity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// RestoreResult holds the numbers of jobs and output files in a restored backup.
type RestoreResult struct {
	Jobs    int64
	Outputs int64
}

// PreparedFileName is the name of the database file while Restore prepares it.
const PreparedFileName = "restore.tmp"

// Restore checks a backup and prepares it in a directory that no service uses. It corrects the counts in the
// backup, and creates each output file with createOutput. It reports to reportProgress how many bytes of the
// backup are copied. Restore does not change the existing database. The returned function replaceDatabase
// does: it moves the old files into asideDir, calls beforeInstall, and installs the backup.
//
// If the existing database or its high-water mark can be read, the numbers of jobs and events that were
// assigned after the backup are not assigned a second time.
func Restore(dir, backupPath string, createOutput func(ref string) (io.WriteCloser, error),
	reportProgress func(done, total int64)) (
	done RestoreResult, replaceDatabase func(asideDir string, beforeInstall func() error) error, err error) {
	path := filepath.Join(dir, PreparedFileName)
	DeleteUnfinishedRestore(path) // otherwise SQLite would apply an old journal to the new file
	defer func() {
		if err != nil {
			DeleteUnfinishedRestore(path)
		}
	}()
	if err := CopyFile(path, backupPath, reportProgress); err != nil {
		return done, nil, err
	}
	c, err := sqlitedb.Open(path, `trusted_schema = 0`, `journal_mode = delete`, `cache_size = -2048`)
	if err == nil {
		err = checkBackup(c)
	}
	if err = notBackupError(backupPath, err); err == nil {
		done, err = unpackOutputs(c, createOutput)
	}
	if err == nil {
		err = raiseNumbers(c, filepath.Join(dir, sqlitedb.DatabaseName))
	}
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return done, nil, err
	}
	if err := syncFile(path); err != nil {
		return done, nil, err
	}
	return done, func(asideDir string, beforeInstall func() error) error {
		return installPrepared(dir, path, asideDir, beforeInstall)
	}, nil
}

// DeleteUnfinishedRestore deletes the files that a killed Restore has left behind.
func DeleteUnfinishedRestore(path string) {
	for _, end := range []string{"", "-journal", "-wal", "-shm"} {
		os.Remove(path + end)
	}
}

// notBackupError returns the error for a file that is not a valid backup. It returns nil and errors that are
// already written for the user unchanged.
func notBackupError(file string, err error) error {
	if err == nil || errors.As(err, new(*queue.Error)) {
		return err
	}
	return queue.Errorf(queue.CodeInvalid, "%s is not a valid backup of a queue (%v); nothing was changed", file, err)
}

// copyPieceBytes is how many bytes are copied between two reports of progress.
const copyPieceBytes = 1 << 20

// CopyFile copies a file to a new one. It reports its progress to the callback.
func CopyFile(targetPath, sourcePath string, reportProgress func(doneBytes, totalBytes int64)) error {
	in, err := os.Open(sourcePath)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(targetPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := in.Stat()
	for done := int64(0); err == nil; {
		var n int64
		n, err = io.CopyN(out, in, copyPieceBytes)
		done += n
		if err == nil || err == io.EOF {
			reportProgress(done, info.Size())
		}
	}
	if err == io.EOF {
		err = nil
	}
	return errors.Join(err, out.Close())
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// checkBackup checks the copy of a backup, updates its schema and repairs it. If it returns an error, the
// backup cannot be used.
func checkBackup(c *sqlitedb.Conn) error {
	if err := CheckPages(c); err != nil {
		return err
	}
	next, err := c.QueryNumber(`SELECT next_seq FROM meta`)
	if err == nil && next < 1 {
		err = errors.New(`the counters in its table "meta" are missing`)
	}
	if err == nil {
		err = sqlitedb.Migrate(c, database.Migrations)
	}
	if err == nil {
		err = Repair(c)
	}
	if err != nil {
		return err
	}
	wrong, err := SchemaFaults(c)
	if err == nil && len(wrong) > 0 {
		err = errors.New(wrong[0].message)
	}
	return err
}

// unpackOutputs writes the outputs that a backup contains to files, and removes them from the database.
func unpackOutputs(c *sqlitedb.Conn, createOutput func(ref string) (io.WriteCloser, error)) (
	result RestoreResult, err error) {
	if result.Jobs, err = c.QueryNumber(
		`SELECT blocked + held + pending + failed + processing + completed + dead + cancelled FROM meta`); err != nil {
		return result, err
	}
	there, err := c.QueryNumber(`SELECT count(*) FROM sqlite_schema WHERE name = 'outputs'`)
	if err != nil || there == 0 {
		return result, err
	}
	var outputFile io.WriteCloser
	open := ""
	finish := func() error {
		if outputFile == nil {
			return nil
		}
		err := outputFile.Close()
		outputFile = nil
		return err
	}
	err = c.Query(func(r database.Row) (bool, error) {
		if ref := r.Text(0); ref != open || outputFile == nil {
			if err := finish(); err != nil {
				return false, err
			}
			open = ref
			result.Outputs++
			if outputFile, err = createOutput(ref); err != nil {
				return false, err
			}
		}
		_, err := io.WriteString(outputFile, r.Text(2))
		return true, err
	}, `SELECT ref, n, bytes FROM outputs ORDER BY ref, n`)
	if err = errors.Join(err, finish()); err != nil {
		return result, err
	}
	if err := c.Exec(`DROP TABLE outputs`); err != nil {
		return result, err
	}
	if result.Outputs == 0 {
		return result, nil
	}
	err = c.Exec(`VACUUM`) // shrink the file, which still has the size that it had with the outputs
	return result, err
}

// raiseNumbers raises the next numbers of jobs and events in the backup, at least to those of the existing
// database, if it can be read, and to those of the high-water mark, a file that records them.
func raiseNumbers(c *sqlitedb.Conn, path string) error {
	p := sqlitedb.ReadHighWater(filepath.Dir(path))
	err := c.Exec(`UPDATE meta SET commits = max(commits, ?), next_seq = max(next_seq, ?),
		next_event = max(next_event, ?)`, p.Commits, p.NextSeq, p.NextEvent)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	old, err := sqlitedb.Open(path, `query_only = 1`, `trusted_schema = 0`)
	if err != nil {
		return nil
	}
	defer old.Close()
	var epoch, nextSeq, nextEvent int64
	if _, err = database.FirstRow(old, func(r database.Row) { epoch, nextSeq, nextEvent = r.Num(0), r.Num(1), r.Num(2) },
		`SELECT epoch, next_seq, next_event FROM meta`); err != nil {
		return nil
	}
	return c.Exec(`UPDATE meta SET epoch = max(epoch, ?), next_seq = max(next_seq, ?), next_event = max(next_event, ?)`,
		epoch, nextSeq, nextEvent)
}

// installPrepared moves the existing files to asideDir, calls beforeInstall, and renames the prepared
// database. Between these steps a service refuses to start, because the high-water mark shows that a database
// is missing. If the process is killed then, the user can run restore again.
func installPrepared(dir, preparedPath, asideDir string, beforeInstall func() error) error {
	m, err := sqlitedb.OpenHighWater(dir)
	if err == nil {
		err = m.File.Close()
	}
	if err != nil {
		return err
	}
	for _, name := range append(sqlitedb.DatabaseFiles(), sqlitedb.CheckMarkerName) {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(asideDir, name)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot move the old database aside, so nothing was restored: %w; solve this, then repeat "+
				"the restore", err)
		}
	}
	if err := errors.Join(atomicfile.SyncDir(asideDir), atomicfile.SyncDir(dir)); err != nil {
		return err
	}
	if err := beforeInstall(); err != nil {
		return err
	}
	if err := os.Rename(preparedPath, filepath.Join(dir, sqlitedb.DatabaseName)); err != nil {
		return fmt.Errorf("cannot move the backup into place: %w; run queuectl restore again (the old database is in %s)",
			err, asideDir)
	}
	return atomicfile.SyncDir(dir)
}
