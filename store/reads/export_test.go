package reads

import (
	"context"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// FindJob looks up a job by its id on a connection, and reports whether it exists.
func FindJob(ctx context.Context, conn database.Statements, id string) (found bool, err error) {
	_, found, err = (&ReadSnapshot{conn, ctx}).selectJob(nil, records.JobColumns, `WHERE `+JobWithIDCondition,
		JobWithIDArgs(id)...)
	return found, err
}
