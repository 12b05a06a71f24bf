package database

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// These are the keys of the table "notes".
const (
	noteKeyRunnerDirs = "runners" // directories of the runners that may have leases, as JSON
	NoteKeyDatabaseID = "file"    // id of the database, which differs from that of every copy
	NoteKeyMovedTo    = "moved"   // the queue's new location; no service opens a database with this note
	// NoteKeyMoveSource marks a database into which a move has not yet copied everything. Its value identifies the source,
	// as JSON. A service refuses to open a database with this
	// note.
	NoteKeyMoveSource = "moving"
)

// RunnerDirsNoteKey returns the key of the row in the table "notes" that lists the directories of a node's
// runners. Without a cluster, the node is 0.
func RunnerDirsNoteKey(nodeID int64) string {
	if nodeID == 0 {
		return noteKeyRunnerDirs
	}
	return noteKeyRunnerDirs + "/" + strconv.FormatInt(nodeID, 10)
}

// ReadNote reads the note with a key. It returns "" if there is no such note.
func ReadNote(c Querier, key string) (value string, err error) { return QueryText(c, ReadNoteSQL, key) }

// QuoteQueueLocation formats a location from the note NoteKeyMovedTo for a message: it adds quotation marks to the name
// of a database on a server. A file path is returned unchanged.
func QuoteQueueLocation(location string) string {
	rest, isServer := strings.CutPrefix(location, "the database ")
	if name, host, found := strings.Cut(rest, " at "); isServer && found {
		return fmt.Sprintf("the database %q at %s", name, host)
	}
	return location
}

// FormatMoveSource returns the source of an incomplete copy, for messages. note is the value of NoteKeyMoveSource.
func FormatMoveSource(note string) string {
	var source struct {
		Place string `json:"place"`
	}
	json.Unmarshal([]byte(note), &source) // after an error, the message does not name the place of the source
	return cmp.Or(QuoteQueueLocation(source.Place), "another place")
}

// ReadNoteSQL reads the note with a key.
const ReadNoteSQL = `SELECT value FROM notes WHERE key = ?`
