package reads

import (
	"context"

	"github.com/queuectl/queuectl/store/database"
)

// Owners returns by uid the name that each user had when first enqueuing a job. A former owner, whose uid now
// belongs to another account, has a uid below 0. disowningUIDs lists the uids that may still have jobs of a
// former owner.
func (s *JobReader) Owners(ctx context.Context) (ownerNames map[int]string, disowningUIDs []int, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		ownerNames = map[int]string{}
		return database.ForEachRow(r, func(r database.Row) {
			ownerNames[int(r.Int64(0))] = r.Text(1)
			if r.Int64(3) > 0 {
				disowningUIDs = append(disowningUIDs, int(r.Int64(2)))
			}
		}, `SELECT uid, name, was, upto FROM owners`)
	})
	return ownerNames, disowningUIDs, err
}
