package engine

import (
	"context"
	"encoding/json"

	"github.com/queuectl/queuectl/store/database"
)

// StoreRunnerDirs stores the directories of the runners that may have leased jobs.
func (e *Engine) StoreRunnerDirs(ctx context.Context, dirs []string) error {
	list, err := json.Marshal(dirs)
	if err != nil {
		return err
	}
	return e.RunAndCommit(ctx, UrgentClass, func(t *Tx) error {
		for key, value := range map[string]string{database.RunnerDirsNoteKey(e.nodeID): string(list),
			database.NoteKeyDatabaseID: e.databaseID} {
			t.Exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
		}
		return t.statementErr
	})
}
