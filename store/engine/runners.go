package engine

import (
	"context"
	"encoding/json"

	"github.com/queuectl/queuectl/store/database"
)

// StoreRunnerDirs stores the directories of the runners that may have leases.
func (s *Engine) StoreRunnerDirs(ctx context.Context, dirs []string) error {
	list, err := json.Marshal(dirs)
	if err != nil {
		return err
	}
	return s.Do(ctx, Urgent, func(t *Tx) error {
		for key, value := range map[string]string{database.RunnerDirsNoteKey(s.node): string(list),
			database.NoteDatabaseID: s.databaseID} {
			if err := t.Exec(`INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key,
				value); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadDatabaseID sets the id of the database. If the stored id differs, the database is a copy or was moved.
func (s *Engine) loadDatabaseID(id string) error {
	s.databaseID = id
	old, err := database.ReadNote(s.db, database.NoteDatabaseID)
	s.isCopy = old != "" && old != s.databaseID
	return err
}
