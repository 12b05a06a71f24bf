package reads

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// SettingsOf reads the stored settings from a connection, sorted by key.
func SettingsOf(c database.Statements) (list []store.Setting, err error) {
	err = c.Query(func(r database.Row) (bool, error) {
		list = append(list, store.Setting{
			Key: r.Text(0), Value: r.Text(1), UID: int(r.Num(2)), SetAt: queue.Millis(r.Num(3))})
		return true, nil
	}, `SELECT key, value, uid, at FROM settings ORDER BY key`)
	return list, err
}
