package sqlite

import (
	"context"
	"os"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// Examine checks the database, its directory and its disk, for "queuectl doctor". It does not read the whole
// database, so it is fast. It is safe for concurrent use.
func (s *Store) Examine(ctx context.Context) []store.Finding {
	list := integrity.ExamineStateDir(s.stateDir)
	if err := s.DiskSpaceError(); err != nil {
		list = append(list, store.Failure("disk", err.Error(), ""))
	}
	wait := slowCommitTime // how long to wait for the writer, which may hang in a commit
	if s.SlowCommitError() != nil {
		wait = 0
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := s.RunBetweenTransactions(ctx, func() error {
		list = append(list, integrity.ExamineDatabase(s.writerConn)...)
		return nil
	})
	switch slow := s.SlowCommitError(); {
	case slow != nil:
		list = append(list, store.Failure("disk", slow.Error(), "check the disk"))
	case err != nil:
		list = append(list, integrity.ExaminationFailedFinding(err))
	}
	return list
}

// VerifyData copies the database, as Backup does, and checks the copy: its rows must agree with each other and with
// the output files in the given directories. It calls reportProgress with the progress of the copy.
func (s *Store) VerifyData(ctx context.Context, outputs store.OutputDirs,
	reportProgress func(done, total int64) error) (findings []store.Finding, err error) {
	// List the files before the copy is made, so that the copy contains the attempts of all listed files.
	files, err := integrity.ListOutputFiles(outputs.Dirs)
	if err != nil {
		return nil, err
	}
	path, err := s.copyToTempFile(ctx, 0, reportProgress, func(c *sqlitedb.Conn) error {
		findings = integrity.VerifyDatabase(c, files, outputs, s.Now())
		return nil
	})
	if err == nil {
		os.Remove(path)
	}
	return findings, err
}
