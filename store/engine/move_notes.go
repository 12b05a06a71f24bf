package engine

import (
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// checkQueueNotMoved returns an error if this database must not be opened: because the queue was moved to movedTo,
// or because the database is an incomplete copy, which moveSourceNote describes. The arguments are the contents
// of the notes NoteKeyMovedTo and NoteKeyMoveSource, or "" if there is no such note.
func checkQueueNotMoved(movedTo, moveSourceNote string) error {
	switch {
	case strings.HasSuffix(movedTo, sqlitedb.DatabaseFileName):
		return queue.Errorf(
			queue.CodeInvalid,
			`this queue has moved to the SQLite file %s; set "store" to "sqlite", and use the directory of that file as the state directory`, movedTo)
	case movedTo != "":
		return queue.Errorf(
			queue.CodeInvalid,
			`this queue has moved to %s; set "store" to the URL of that database, or put the URL in the file that store_file names`, database.QuoteQueueLocation(movedTo))
	case moveSourceNote != "":
		return queue.Errorf(queue.CodeInvalid, "this database is an incomplete copy of the queue in %s, because a move was "+
			"interrupted; repeat the command queuectl migrate that was interrupted", database.FormatMoveSource(moveSourceNote))
	}
	return nil
}
