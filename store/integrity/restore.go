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
	RestoredJobs    int64
	RestoredOutputs int64
}

// PreparedDatabaseFileName is the name of the database file while PrepareRestore prepares it.
const PreparedDatabaseFileName = "restore.tmp"

// PrepareRestore checks a backup and prepares it in a directory that no service uses. It corrects the counts in the
// backup, and creates each output file with createOutputFile. It reports to reportProgress how many bytes of the backup
// are copied. PrepareRestore does not change the existing database. Only the returned function replaceDatabase changes
// it: it moves the old files into oldFilesDir, calls beforeInstall, and installs the backup.
//
// If the existing database or its high-water mark can be read, the numbers of jobs and events that were
// assigned after the backup are not assigned a second time.
func PrepareRestore(targetDir, backupPath string, createOutputFile func(ref string) (io.WriteCloser, error),
	reportProgress func(doneBytes, totalBytes int64)) (
	result RestoreResult, replaceDatabase func(oldFilesDir string, beforeInstall func() error) error, err error) {
	path := filepath.Join(targetDir, PreparedDatabaseFileName)
	DeleteUnfinishedRestore(path) // otherwise SQLite would apply an old journal to the new file
	defer func() {
		if err != nil {
			DeleteUnfinishedRestore(path)
		}
	}()
	if err := CopyFile(path, backupPath, reportProgress); err != nil {
		return result, nil, err
	}
	c, err := sqlitedb.Open(path, `trusted_schema = 0`, `journal_mode = delete`, `cache_size = -2048`)
	if err == nil {
		err = checkAndRepairBackup(c)
	}
	if err = notBackupError(backupPath, err); err == nil {
		result, err = extractOutputFiles(c, createOutputFile)
	}
	if err == nil {
		err = raiseNextNumbers(c, filepath.Join(targetDir, sqlitedb.DatabaseFileName))
	}
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return result, nil, err
	}
	if err := syncFile(path); err != nil {
		return result, nil, err
	}
	return result, func(oldFilesDir string, beforeInstall func() error) error {
		return installPreparedDatabase(targetDir, path, oldFilesDir, beforeInstall)
	}, nil
}

// DeleteUnfinishedRestore deletes the files that PrepareRestore left behind when its process was killed.
func DeleteUnfinishedRestore(preparedPath string) {
	for _, end := range []string{"", "-journal", "-wal", "-shm"} {
		os.Remove(preparedPath + end)
	}
}

// notBackupError returns the error for a file that is not a valid backup. If err is nil, or is already written for the
// user, it returns err unchanged.
func notBackupError(backupFile string, err error) error {
	if err == nil || errors.As(err, new(*queue.Error)) {
		return err
	}
	return queue.Errorf(queue.CodeInvalid, "%s is not a valid backup of a queue (%v); nothing was changed", backupFile,
		err)
}

// bytesPerProgressReport is how many bytes are copied between two reports of progress.
const bytesPerProgressReport = 1 << 20

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
		n, err = io.CopyN(out, in, bytesPerProgressReport)
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

// checkAndRepairBackup checks the copy of a backup, updates its schema and repairs it. If it returns an error, the
// backup cannot be used.
func checkAndRepairBackup(c *sqlitedb.Conn) error {
	if err := CheckDatabasePages(c); err != nil {
		return err
	}
	next, err := c.QueryNumber(`SELECT next_seq FROM meta`)
	if err == nil && next < 1 {
		err = errors.New(`the counters in its table "meta" are missing`)
	}
	if err == nil {
		err = sqlitedb.Migrate(c, database.SchemaMigrations)
	}
	if err == nil {
		err = RepairBackup(c)
	}
	if err != nil {
		return err
	}
	wrong, err := FindSchemaFaults(c)
	if err == nil && len(wrong) > 0 {
		err = errors.New(wrong[0].message)
	}
	return err
}

// extractOutputFiles writes the outputs that a backup contains to files, and removes them from the database.
func extractOutputFiles(c *sqlitedb.Conn, createOutputFile func(ref string) (io.WriteCloser, error)) (
	result RestoreResult, err error) {
	if result.RestoredJobs, err = c.QueryNumber(
		`SELECT blocked + held + pending + failed + processing + completed + dead + cancelled FROM meta`); err != nil {
		return result, err
	}
	there, err := c.QueryNumber(`SELECT count(*) FROM sqlite_schema WHERE name = 'outputs'`)
	if err != nil || there == 0 {
		return result, err
	}
	refs, err := database.ReadRows(c, database.FirstColumnText, `SELECT DISTINCT ref FROM outputs ORDER BY ref`)
	if err != nil {
		return result, err
	}
	for _, ref := range refs {
		f, err := createOutputFile(ref)
		if err != nil {
			return result, err
		}
		err = c.Query(func(r database.Row) (bool, error) {
			_, err := f.Write(r.BytesView(0))
			return true, err
		}, `SELECT bytes FROM outputs WHERE ref = ? ORDER BY n`, ref)
		if err = errors.Join(err, f.Close()); err != nil {
			return result, err
		}
		result.RestoredOutputs++
	}
	if err := c.Exec(`DROP TABLE outputs`); err != nil {
		return result, err
	}
	if result.RestoredOutputs == 0 {
		return result, nil
	}
	err = c.Exec(`VACUUM`) // shrink the file, which still has the size that it had with the outputs
	return result, err
}

// raiseNextNumbers raises the next numbers of jobs and events in the backup. Afterwards, they are at least as high as
// in the existing database, if it can be read, and as in the high-water mark, a file that records these numbers.
func raiseNextNumbers(c *sqlitedb.Conn, oldDatabasePath string) error {
	p := sqlitedb.ReadHighWaterMark(filepath.Dir(oldDatabasePath))
	err := c.Exec(`UPDATE meta SET commits = max(commits, ?), next_seq = max(next_seq, ?),
		next_event = max(next_event, ?)`, p.CommitCount, p.NextJobSeq, p.NextEventNumber)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(oldDatabasePath); err != nil {
		return nil
	}
	old, err := sqlitedb.Open(oldDatabasePath, `query_only = 1`, `trusted_schema = 0`)
	if err != nil {
		return nil
	}
	defer old.Close()
	var epoch, nextSeq, nextEvent int64
	if _, err = database.ScanFirstRow(old, []any{&epoch, &nextSeq, &nextEvent},
		`SELECT epoch, next_seq, next_event FROM meta`); err != nil {
		return nil
	}
	return c.Exec(`UPDATE meta SET epoch = max(epoch, ?), next_seq = max(next_seq, ?), next_event = max(next_event, ?)`,
		epoch, nextSeq, nextEvent)
}

// installPreparedDatabase moves the existing files to oldFilesDir, calls beforeInstall, and renames the prepared
// database. Between these steps a service refuses to start, because the high-water mark shows that a database is
// missing. If the process is killed between these steps, the user can run restore again.
func installPreparedDatabase(dir, preparedPath, oldFilesDir string, beforeInstall func() error) error {
	m, err := sqlitedb.OpenHighWaterFile(dir)
	if err == nil {
		err = m.File.Close()
	}
	if err != nil {
		return err
	}
	for _, name := range append(sqlitedb.DatabaseFileNames(), sqlitedb.StartupCheckFileName) {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(oldFilesDir, name)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot move the old database aside, so nothing was restored: %w; solve this, then repeat "+
				"the restore", err)
		}
	}
	if err := errors.Join(atomicfile.SyncDir(oldFilesDir), atomicfile.SyncDir(dir)); err != nil {
		return err
	}
	if err := beforeInstall(); err != nil {
		return err
	}
	if err := os.Rename(preparedPath, filepath.Join(dir, sqlitedb.DatabaseFileName)); err != nil {
		return fmt.Errorf("cannot move the backup into place: %w; run queuectl restore again (the old database is in %s)",
			err, oldFilesDir)
	}
	return atomicfile.SyncDir(dir)
}
