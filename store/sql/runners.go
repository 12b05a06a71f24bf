package sql

import (
	"context"
	"encoding/json"
	"strconv"
)

// Keys of the table notes.
const (
	noteRunners = "runners" // directories of the runners that may have leases, as JSON
	noteFile    = "file"    // id of the database, which differs from that of every copy
)

// runnersNote returns the key of the note about a node's runners.
func runnersNote(node int64) string {
	if node == 0 {
		return noteRunners
	}
	return noteRunners + "/" + strconv.FormatInt(node, 10)
}

// NoteRunners stores the directories of the runners that may have leases.
func (s *engine) NoteRunners(ctx context.Context, dirs []string) error {
	list, err := json.Marshal(dirs)
	if err != nil {
		return err
	}
	return s.do(ctx, urgent, func(t *tx) error {
		for key, value := range map[string]string{runnersNote(s.node): string(list), noteFile: s.databaseID} {
			if err := t.exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key,
				value); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadFile sets the id of the database. If the stored id differs, the database is a copy or was moved.
func (s *engine) loadFile(id string) error {
	s.databaseID = id
	old, err := readNote(s.db, noteFile)
	s.isCopy = old != "" && old != s.databaseID
	return err
}

// readNote reads the note with a key. It returns "" if there is no such note.
func readNote(c interface {
	query(each func(r row) (more bool, err error), sql string, args ...any) error
}, key string) (value string, err error) {
	err = c.query(func(r row) (bool, error) {
		value = r.text(0)
		return false, nil
	}, noteQuery, key)
	return value, err
}

const noteQuery = `SELECT value FROM notes WHERE key = ?`
