package sql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A copy is one SQLite file: the database with, in a table of its own, the output
// files that it refers to. SQLite's backup interface makes it, on the connection that
// writes: what is written meanwhile goes into the copied pages too, so that it need
// not begin anew and nobody holds the WAL.
// See docs/decisions/0037.
const (
	copyPrefix  = "copy-"
	copyStep    = 256 // pages, 1 MiB: about a millisecond of the writer's turn
	outputPiece = 1 << 20
)

// madeCopy is a backup that has been made.
type madeCopy struct {
	*os.File
	size int64
}

// Size is how many bytes it has.
func (c *madeCopy) Size() int64 { return c.size }

// Close deletes the copy.
func (c *madeCopy) Close() error {
	err := c.File.Close()
	if gone := os.Remove(c.Name()); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// Backup makes a copy, beside the database, that holds every change which was answered
// before Backup was called, and later ones up to some instant. each hears how many
// bytes were copied so far, of about how many. The copy has passed integrity_check.
// One copy is made at a time.
func (s *Store) Backup(ctx context.Context, outputs store.Outputs, each func(done, of int64) error) (store.Copy, error) {
	var made *madeCopy
	err := s.copied(ctx, s.counted().Outputs, each, func(c *liteConn, path string) error {
		if err := s.addOutputs(ctx, c, outputs); err != nil {
			return err
		}
		if err := integrity(c); err != nil {
			return fmt.Errorf("the backup copy is damaged, so the database may be damaged too; check the database with: queuectl doctor --verify: %w", err)
		}
		return nil
	}, func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		made = &madeCopy{f, info.Size()}
		return nil
	})
	if err != nil {
		return nil, err
	}
	os.Remove(made.Name()) // a file that is open stays until it is closed, where the system has that
	return made, nil
}

// copied makes a copy, to which so many bytes will be added, has it looked at through its
// connection and then, if kept is not nil, as a file; else it is deleted. The end of ctx
// ends what SQLite does meanwhile.
func (s *Store) copied(ctx context.Context, added int64, each func(done, of int64) error, look func(c *liteConn, path string) error, kept func(path string) error) (err error) {
	if !s.copying.CompareAndSwap(false, true) {
		return queue.Errorf(queue.CodeUnavailable, "another backup or doctor --verify is running; try again later")
	}
	defer s.copying.Store(false)
	need := s.Counts().Bytes + added + roomToCopy
	if free, err := s.free(); err == nil && free < need {
		const unit = 1 << 10 // both figures in whole KiB are easy to compare; the need is rounded up
		return queue.Errorf(queue.CodeNoSpace,
			"copying the database and its output files needs %s on the disk of %s, but only %s are free; free some space",
			queue.DescribeSize((need+unit-1)/unit*unit), s.dir, queue.DescribeSize(free/unit*unit))
	}
	f, err := os.CreateTemp(s.dir, copyPrefix) // 0600
	if err != nil {
		return err
	}
	path := f.Name()
	if err := f.Close(); err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			os.Remove(path)
		}
	}()
	c, err := openConn(path, `journal_mode = off`, `synchronous = off`, `cache_size = -2048`, `trusted_schema = 0`)
	if err != nil {
		return noRoomFor(err)
	}
	release := c.endWith(ctx)
	err = s.copyPages(ctx, c, each)
	if err == nil {
		err = c.exec(`PRAGMA journal_mode = delete`) // one file, which may be read where nothing can be written
	}
	if err == nil {
		err = look(c, path)
	}
	release()
	if ctx.Err() != nil {
		err = ctx.Err() // not what SQLite was doing then
	}
	if err = noRoomFor(errors.Join(err, c.close())); err != nil || kept == nil {
		return err
	}
	if err := kept(path); err != nil {
		return err
	}
	keep = true
	return nil
}

// roomToCopy is what a copy leaves free for the queue, in bytes: below it new jobs are
// refused, and next the jobs that run lose output.
const roomToCopy = roomBytes + copyStep*pageSize

// leavesRoom is an error once a copy takes space that the queue needs.
func (s *Store) leavesRoom() error {
	if free, err := s.free(); err == nil && free < roomToCopy {
		return errNoRoom
	}
	return nil
}

var errNoRoom = queue.Errorf(queue.CodeNoSpace, "no disk space for a copy of the database; free some space and try again")

// noRoomFor is the error of a copy, which is not the database's.
func noRoomFor(err error) error {
	if err != nil && kindOf(err) == full {
		return errNoRoom
	}
	return err
}

// copyPages copies all pages of the database into an empty one, a step a turn.
func (s *Store) copyPages(ctx context.Context, to *liteConn, each func(done, of int64) error) error {
	main, err := libc.CString("main")
	if err != nil {
		return err
	}
	defer libc.Xfree(to.tls, main)
	err = s.betweenTx(ctx, func() error {
		if s.backup = sqlite3.Xsqlite3_backup_init(s.lite.tls, to.db, main, s.lite.db, main); s.backup == 0 {
			return to.failed(sqlite3.Xsqlite3_errcode(s.lite.tls, to.db))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for more := true; more && err == nil; {
		var left, of int64
		err = s.betweenTx(ctx, func() error {
			if s.backup == 0 {
				return errClosed
			}
			rc := sqlite3.Xsqlite3_backup_step(s.lite.tls, s.backup, copyStep)
			left, of = int64(sqlite3.Xsqlite3_backup_remaining(s.lite.tls, s.backup)), int64(sqlite3.Xsqlite3_backup_pagecount(s.lite.tls, s.backup))
			more = rc == sqlite3.SQLITE_OK
			if !more && rc != sqlite3.SQLITE_DONE {
				return &sqliteError{code: int(rc)}
			}
			return nil
		})
		if err == nil {
			err = s.leavesRoom()
		}
		if err == nil {
			err = each((of-left)*pageSize, of*pageSize)
		}
	}
	// The writer must be rid of it before to is closed, whoever gave up and whatever has
	// ended or failed by now.
	<-s.turn
	s.endBackup()
	s.turn <- struct{}{}
	return err
}

// pageSize is SQLite's usual one, which the database has.
const pageSize = 4096

// endBackup ends the copying, if there is any. The caller has the turn to write.
func (s *Store) endBackup() {
	if s.backup != 0 {
		sqlite3.Xsqlite3_backup_finish(s.lite.tls, s.backup) // it repeats a step's error
		s.backup = 0
	}
}

// addOutputs puts the output files that a copy refers to into it.
func (s *Store) addOutputs(ctx context.Context, c *liteConn, outputs store.Outputs) error {
	statements := []string{`CREATE TABLE outputs (ref TEXT NOT NULL, n INTEGER NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (ref, n)) STRICT, WITHOUT ROWID`, `BEGIN`}
	for _, q := range statements {
		if err := c.exec(q); err != nil {
			return err
		}
	}
	err := eachRef(c, func(ref string, size int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := outputs(ref)
		if errors.Is(err, os.ErrNotExist) {
			return nil // doctor tells of it
		}
		if err != nil {
			return fmt.Errorf("read an output file: %w", err)
		}
		defer f.Close()
		piece, whole := make([]byte, outputPiece), io.LimitReader(f, size) // it may have been made longer
		for n := int64(0); ; n++ {
			got, err := io.ReadFull(whole, piece)
			if failed := errors.Join(ctx.Err(), s.leavesRoom()); failed != nil {
				return failed
			}
			if got > 0 {
				if failed := c.exec(`INSERT INTO outputs (ref, n, bytes) VALUES (?, ?, ?)`, ref, n, piece[:got]); failed != nil {
					return failed
				}
			}
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read an output file: %w", err)
			}
		}
	})
	if err != nil {
		return err
	}
	err = c.exec(`COMMIT`)
	return err
}

// refStep is how many names of outputs are read at once.
const refStep = 1000

// eachRef calls each with the name of every output file that a copy refers to, and its size
// in bytes.
func eachRef(c *liteConn, each func(ref string, size int64) error) error {
	seq, n := int64(0), int64(0)
	for {
		var refs []string
		var sizes []int64
		err := c.query(func(r row) (bool, error) {
			seq, n = r.num(0), r.num(1)
			refs, sizes = append(refs, r.text(2)), append(sizes, r.num(3))
			return len(refs) < refStep, nil
		}, `SELECT seq, n, output_ref, output_bytes FROM attempts WHERE (seq, n) > (?, ?) AND output_ref IS NOT NULL ORDER BY seq, n`, seq, n)
		if err != nil || len(refs) == 0 {
			return err
		}
		for i, ref := range refs {
			if err := each(ref, sizes[i]); err != nil {
				return err
			}
		}
	}
}

// integrity is an error if SQLite finds the database damaged.
func integrity(c *liteConn) error {
	var verdict []string
	err := c.query(func(r row) (bool, error) {
		verdict = append(verdict, r.text(0))
		return true, nil
	}, `PRAGMA integrity_check(5)`)
	if err != nil {
		return err
	}
	if text := strings.Join(verdict, "; "); text != "ok" {
		return errors.New(text)
	}
	return nil
}

// sweepCopies deletes what a service that was killed has left of copies.
func sweepCopies(dir string) {
	list, _ := filepath.Glob(filepath.Join(dir, copyPrefix+"*")) // the pattern is sound
	for _, path := range list {
		os.Remove(path)
	}
}
