package sqlite

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
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// OpenReadOnly opens the database of a directory in which no service runs. The store refuses all changes.
//
// OpenReadOnly changes no file in the directory, not even to clean up after a crash. It takes no lock, so a
// service can start while the store is open. Once that service writes, the store refuses reads. If there is no
// database, OpenReadOnly returns fs.ErrNotExist. See docs/decisions/0068.
func OpenReadOnly(o Options) (*Store, error) {
	path := filepath.Join(o.Dir, sqlitedb.DatabaseName)
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 { // an empty file means that no queue was ever stored
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	s := newStore(o)
	s.statesAtOpen = readFileStates(path)
	name, err := readOnlyURI(path, s.statesAtOpen)
	if err != nil {
		return nil, err
	}
	s.readPath, s.readFlags = name, sqlite3.SQLITE_OPEN_READONLY|sqlite3.SQLITE_OPEN_URI
	if s.conn, err = sqlitedb.OpenWithFlags(name, s.readFlags, sqlitedb.ReaderPragmas()...); err != nil {
		return nil, cannotOpenError(path, err)
	}
	if err = s.loadReadOnly(o.OrderFromSettings); err != nil {
		s.conn.Close()
		return nil, sqlitedb.ExplainOpenError(path, err)
	}
	s.AllowWrites()
	return s, nil
}

// loadReadOnly loads the data that the store keeps in memory, all from one snapshot of the database.
func (s *Store) loadReadOnly(deriveOrder func([]store.Setting) (queue.Order, error)) error {
	if err := s.conn.Exec(`BEGIN`); err != nil {
		return err
	}
	defer s.conn.Exec(`ROLLBACK`) // ends the snapshot; nothing was written
	if err := sqlitedb.CheckUsable(s.conn, s.dir); err != nil {
		return err
	}
	version, err := s.conn.QueryNumber(`PRAGMA user_version`)
	if err != nil {
		return err
	}
	if version < int64(len(database.Migrations)) {
		return sqlitedb.OldSchemaError(s.dir, version)
	}
	return s.LoadReadOnly(s.conn, deriveOrder)
}

// cannotOpenError replaces SQLite's error for a database that it could not open for reading by one that says
// what the user can do. It returns other errors unchanged.
func cannotOpenError(path string, err error) error {
	if e, ok := errors.AsType[*sqlitedb.Error](err); ok && e.Code&0xff == sqlite3.SQLITE_CANTOPEN {
		return queue.Errorf(queue.CodeDenied, "no service is running for %s, and you may not read the files there; ask "+
			"their owner or root (%v)", filepath.Dir(path), err)
	}
	return sqlitedb.ExplainOpenError(path, err)
}

// fileState describes a file, to detect changes of its content.
type fileState struct {
	size    int64 // in bytes; -1 if the file does not exist
	modTime time.Time
}

// fileStates holds the states of the database and of its write-ahead log, in this order.
type fileStates [2]fileState

func readFileStates(path string) (states fileStates) {
	for i, p := range []string{path, path + "-wal"} {
		states[i].size = -1
		if info, err := os.Stat(p); err == nil {
			states[i] = fileState{info.Size(), info.ModTime()}
		}
	}
	return states
}

// readOnlyURI returns the URI with which SQLite opens a database without writing. If there is a write-ahead
// log, SQLite builds an index of the log in memory. It then needs the -shm file, but does not change it. If
// there is no log, the database file is complete, and SQLite opens it as immutable.
func readOnlyURI(path string, states fileStates) (string, error) {
	name := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "immutable=1"}
	if !strings.HasPrefix(name.Path, "/") {
		name.Path = "/" + name.Path // a Windows path that starts with a drive letter
	}
	if states[1].size > 0 {
		name.RawQuery = "readonly_shm=1"
		if _, err := os.Stat(path + "-shm"); err != nil {
			return "", queue.Errorf(queue.CodeWrongState,
				"the database in %s has a write-ahead log (%[2]s-wal) without its index (%[2]s-shm), so only a service can "+
					"open it; start the service with: queuectl --dir %[3]s service start",
				filepath.Dir(path), sqlitedb.DatabaseName, queue.QuoteShellWord(filepath.Dir(path)))
		}
	}
	return name.String(), nil
}

// checkUnchanged returns an error if a service has changed the files since this store opened them for reading only.
func (s *Store) checkUnchanged() error {
	if s.statesAtOpen == (fileStates{}) || s.statesAtOpen == readFileStates(filepath.Join(s.dir, sqlitedb.DatabaseName)) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "a service started while this command read the files in %s; "+
		"run the command again", s.dir)
}
