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
	path := filepath.Join(o.Dir, sqlitedb.DatabaseFileName)
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 { // an empty file means that no queue was ever stored
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	s := newStore(o)
	s.readOnlyFileStates = readDatabaseFileStates(path)
	name, err := readOnlyURI(path, s.readOnlyFileStates)
	if err != nil {
		return nil, err
	}
	s.readerDatabasePath, s.readerOpenFlags = name, sqlite3.SQLITE_OPEN_READONLY|sqlite3.SQLITE_OPEN_URI
	if s.writerConn, err = sqlitedb.OpenWithFlags(name, s.readerOpenFlags, sqlitedb.ReaderPragmas()...); err != nil {
		return nil, explainReadOpenError(path, err)
	}
	if err = s.loadReadOnlyState(o.RankOrderFromSettings); err != nil {
		s.writerConn.Close()
		return nil, sqlitedb.ExplainOpenError(path, err)
	}
	s.AllowWrites()
	return s, nil
}

// loadReadOnlyState loads the data that the store keeps in memory, all from one snapshot of the database.
func (s *Store) loadReadOnlyState(rankOrderFromSettings func([]store.Setting) (queue.RankPolicy, error)) error {
	if err := s.writerConn.Exec(`BEGIN`); err != nil {
		return err
	}
	defer s.writerConn.Exec(`ROLLBACK`) // ends the snapshot; nothing was written
	if err := sqlitedb.CheckDatabaseUsable(s.writerConn, s.stateDir); err != nil {
		return err
	}
	version, err := s.writerConn.QueryNumber(`PRAGMA user_version`)
	if err != nil {
		return err
	}
	if version < int64(len(database.SchemaMigrations)) {
		return sqlitedb.OldSchemaError(s.stateDir, version)
	}
	return s.LoadReadOnly(s.writerConn, rankOrderFromSettings)
}

// explainReadOpenError replaces SQLite's error for a database that it could not open for reading by one that says
// what the user can do. It returns other errors unchanged.
func explainReadOpenError(path string, err error) error {
	if e, ok := errors.AsType[*sqlitedb.Error](err); ok && e.Code&0xff == sqlite3.SQLITE_CANTOPEN {
		return queue.Errorf(queue.CodeDenied, "no service is running for %s, and you may not read the files there; ask "+
			"their owner or root (%v)", filepath.Dir(path), err)
	}
	return sqlitedb.ExplainOpenError(path, err)
}

// fileState describes a file, to detect changes of its content.
type fileState struct {
	sizeBytes int64 // in bytes; -1 if the file does not exist
	modTime   time.Time
}

// databaseFileStates holds the states of the database and of its write-ahead log, in this order.
type databaseFileStates [2]fileState

func readDatabaseFileStates(path string) (states databaseFileStates) {
	for i, p := range []string{path, path + "-wal"} {
		states[i].sizeBytes = -1
		if info, err := os.Stat(p); err == nil {
			states[i] = fileState{info.Size(), info.ModTime()}
		}
	}
	return states
}

// readOnlyURI returns the URI with which SQLite opens a database without writing. If there is a write-ahead
// log, SQLite builds an index of the log in memory. It then needs the -shm file, but does not change it. If
// there is no log, the database file is complete, and SQLite opens it as immutable.
func readOnlyURI(path string, states databaseFileStates) (string, error) {
	name := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "immutable=1"}
	if !strings.HasPrefix(name.Path, "/") {
		name.Path = "/" + name.Path // a Windows path that starts with a drive letter
	}
	if states[1].sizeBytes > 0 {
		name.RawQuery = "readonly_shm=1"
		if _, err := os.Stat(path + "-shm"); err != nil {
			return "", queue.Errorf(queue.CodeWrongState,
				"the database in %s has a write-ahead log (%[2]s-wal) without its index (%[2]s-shm), so only a service can "+
					"open it; start the service with: queuectl --dir %[3]s service start",
				filepath.Dir(path), sqlitedb.DatabaseFileName, queue.QuoteShellWord(filepath.Dir(path)))
		}
	}
	return name.String(), nil
}
