package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// Settings returns the stored settings, sorted by key.
func (s *Reads) Settings(ctx context.Context) (list []store.Setting, err error) {
	err = s.Read(ctx, func(r *Reader) error {
		list = nil // an earlier try may have read some settings
		return r.Query(func(r database.Row) (bool, error) {
			list = append(list, store.Setting{Key: r.Text(0), Value: r.Text(1), UID: int(r.Num(2)),
				SetAt: queue.Millis(r.Num(3))})
			return true, nil
		}, `SELECT key, value, uid, at FROM settings ORDER BY key`)
	})
	return list, err
}
