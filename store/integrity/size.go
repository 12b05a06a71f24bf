package integrity

import (
	"fmt"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// ExamineSize reports the size of the database and how much of it is free.
func ExamineSize(c *sqlitedb.Conn) []store.Finding {
	pages, err := sqlitedb.CountPages(c)
	if err != nil {
		return []store.Finding{{Check: "size", Level: store.LevelFailure, Message: err.Error(), Next: replaceAdvice}}
	}
	return []store.Finding{{Check: "size", Level: store.LevelOK,
		Message: fmt.Sprintf("the database uses %d MiB, of which %d MiB are free for new rows",
			pages.All*sqlitedb.PageSize>>20, pages.Free*sqlitedb.PageSize>>20)}}
}
