package sql

import (
	"strconv"

	"github.com/queuectl/queuectl/store/database"
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

// readNote reads the note with a key. It returns "" if there is no such note.
func readNote(c interface {
	Query(each func(r database.Row) (more bool, err error), sql string, args ...any) error
}, key string) (value string, err error) {
	err = c.Query(func(r database.Row) (bool, error) {
		value = r.Text(0)
		return false, nil
	}, noteQuery, key)
	return value, err
}

const noteQuery = `SELECT value FROM notes WHERE key = ?`

// Keys of the notes about a move.
const (
	noteMoved = "moved" // names the queue's new location; no service opens a database with this note
	// noteMoving identifies the source of an incomplete copy, as JSON. No service opens a database with this
	// note.
	noteMoving = "moving"
)
