package engine

import (
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// moveNotes holds the notes about a move.
type moveNotes struct{ movedTo, movingNote string }

func (n *moveNotes) read(all *database.QueryBatch) {
	all.Add(func(r database.Row) (bool, error) {
		n.movedTo = r.Text(0)
		return false, nil
	}, database.NoteQuery, database.NoteMoved)
	all.Add(func(r database.Row) (bool, error) {
		n.movingNote = r.Text(0)
		return false, nil
	}, database.NoteQuery, database.NoteMoving)
}

func (n *moveNotes) checkNotMoved() error {
	switch {
	case strings.HasSuffix(n.movedTo, sqlitedb.DatabaseName):
		return queue.Errorf(
			queue.CodeInvalid, `this queue has moved to the SQLite file %s; set "store" to "sqlite", and use the directory of that file as the state directory`, n.movedTo)
	case n.movedTo != "":
		return queue.Errorf(
			queue.CodeInvalid, `this queue has moved to %s; set "store" to the URL of that database, or put the URL in the file that store_file names`, database.QuoteLocation(n.movedTo))
	case n.movingNote != "":
		return queue.Errorf(queue.CodeInvalid, "this database is an incomplete copy of the queue in %s, because a move was "+
			"interrupted; repeat the command queuectl migrate that was interrupted", database.MoveSourceText(n.movingNote))
	}
	return nil
}
