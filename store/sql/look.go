package sql

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// OpenReadOnly opens the database of a folder whose service does not run, for its Reader
// alone: whatever would change something is refused. It changes no file of the folder, not even
// what a crash has left to be recovered, and takes no lock that a service which starts
// meanwhile would wait for: once that has begun to write, reads are refused. An error is
// fs.ErrNotExist where there is no database.
// See docs/decisions/0068.
func OpenReadOnly(o Options) (*Store, error) {
	path := filepath.Join(o.Dir, fileName)
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 { // it was made, and nothing stored
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	s := newStore(o)
	s.ended, s.looks = true, true // which refuses every change
	s.frozen = filesNow(path)
	name, err := readOnlyName(path, s.frozen)
	if err != nil {
		return nil, err
	}
	s.readPath, s.readFlags = name, sqlite3.SQLITE_OPEN_READONLY|sqlite3.SQLITE_OPEN_URI
	s.read = newReaders(s.reader)
	if s.lite, err = openAs(name, s.readFlags, readerPragmas()...); err != nil {
		return nil, cannotOpen(path, err)
	}
	s.db = s.lite
	if err = s.loadReadOnly(o.OrderOf); err != nil {
		s.lite.close()
		return nil, explain(path, err)
	}
	s.turn <- struct{}{}
	return s, nil
}

// loadReadOnly reads what the writer keeps in memory, all as of one moment.
func (s *Store) loadReadOnly(orderOf func([]store.Setting) (queue.Order, error)) error {
	if err := s.lite.exec(`BEGIN`); err != nil {
		return err
	}
	defer s.lite.exec(`ROLLBACK`) // nothing was written
	if err := checkTables(s.lite); err != nil {
		return err
	}
	if err := checkMark(s.lite, s.dir); err != nil {
		return err
	}
	version, err := s.lite.number(`PRAGMA user_version`)
	if err != nil {
		return err
	}
	if version < int64(len(migrations)) {
		return queue.Errorf(queue.CodeWrongState, "the database in %s has schema version %d, but this queuectl needs version %d; start the service of this version once to update the database", s.dir, version, len(migrations))
	}
	if err := s.load(); err != nil || orderOf == nil {
		return err
	}
	settings, err := settingsOf(s.lite)
	if err != nil {
		return err
	}
	order, err := orderOf(settings)
	s.order.Store(&order)
	return err
}

// cannotOpen is why a database cannot be opened to be read only.
func cannotOpen(path string, err error) error {
	if e, ok := errors.AsType[*sqliteError](err); ok && e.code&0xff == sqlite3.SQLITE_CANTOPEN {
		return queue.Errorf(queue.CodeDenied, "no service is running for %s, and you may not read the files there; ask their owner or root (%v)", filepath.Dir(path), err)
	}
	return explain(path, err)
}

// fileState is what tells that a file was changed.
type fileState struct {
	size int64 // -1 if it is not there
	at   time.Time
}

// files are the database and its write-ahead log.
type files [2]fileState

func filesNow(path string) (now files) {
	for i, p := range []string{path, path + "-wal"} {
		now[i].size = -1
		if info, err := os.Stat(p); err == nil {
			now[i] = fileState{info.Size(), info.ModTime()}
		}
	}
	return now
}

// readOnlyName is the name by which SQLite opens a database without writing. Where there is a
// write-ahead log it makes the index of it in memory, for which the file of that index, which
// it does not change, has to be there. Where there is none the database is all there is.
func readOnlyName(path string, now files) (string, error) {
	name := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "immutable=1"}
	if !strings.HasPrefix(name.Path, "/") {
		name.Path = "/" + name.Path // of a drive
	}
	if now[1].size > 0 {
		name.RawQuery = "readonly_shm=1"
		if _, err := os.Stat(path + "-shm"); err != nil {
			return "", queue.Errorf(queue.CodeWrongState, "the database in %s has a write-ahead log (%s-wal) without its index (%s-shm), so only a service can open it; start the service with: queuectl --dir %s service start", filepath.Dir(path), fileName, fileName, queue.Word(filepath.Dir(path)))
		}
	}
	return name.String(), nil
}

// unchanged refuses what was read if a service has begun to write meanwhile.
func (s *Store) unchanged() error {
	if s.frozen == (files{}) || s.frozen == filesNow(filepath.Join(s.dir, fileName)) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "a service started while this command read the files in %s; run the command again", s.dir)
}

var _ store.Reader = (*Store)(nil)
