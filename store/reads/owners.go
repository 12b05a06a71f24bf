package reads

import (
	"context"

	"github.com/queuectl/queuectl/store/database"
)

// Owners returns by uid the name that each user had when first enqueuing a job. A former owner, whose uid now
// belongs to another account, has a uid below 0. movingUIDs lists the uids that may still have jobs of a
// former owner.
func (s *Reads) Owners(ctx context.Context) (ownerNames map[int]string, movingUIDs []int, err error) {
	err = s.Read(ctx, func(r *Reader) error {
		ownerNames, movingUIDs = map[int]string{}, nil
		return database.EachRow(r, func(r database.Row) {
			ownerNames[int(r.Num(0))] = r.Text(1)
			if r.Num(3) > 0 {
				movingUIDs = append(movingUIDs, int(r.Num(2)))
			}
		}, `SELECT uid, name, was, upto FROM owners`)
	})
	return ownerNames, movingUIDs, err
}
