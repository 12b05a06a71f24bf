package service

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/move"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/store/sqlite"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// These are the functions of the storage engine. Only this file names the package that implements the
// engine.
var (
	restoreEngine   = integrity.Restore
	examineEngine   = integrity.ExamineStopped
	examineServer   = pgdb.Examine
	examineStoreDir = integrity.ExamineDir
	fileID          = sqlitedb.FileID
	errCopied       = postgres.ErrDirCopied
	moveQueue       = move.Move
)

// storeLocation says where an engine keeps a queue, and storeMember which node moves it. MigrateResult describes what a
// migration has moved, from Source to Target.
type (
	storeLocation = move.Location
	storeMember   = move.Member
	MigrateResult struct {
		move.Result
		Source string `json:"from"`
		Target string `json:"to"`
	}
)

// storeOpener opens the store of a directory.
type storeOpener func(ctx context.Context, dir string, log *slog.Logger, rank orderOf) (store.Store, error)

// orderOf derives from the stored settings how jobs are ranked.
type orderOf = func([]store.Setting) (queue.Order, error)

func openSQLite(ctx context.Context, dir string, log *slog.Logger, rank orderOf) (store.Store, error) {
	if err := checkStoreFile(dir); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, sqlite.Options{Dir: dir, Log: log, OrderFromSettings: rank})
}

// nodeIdentity is the identity of a node that shares a queue.
type nodeIdentity = postgres.NodeConfig

// postgresOpener returns an opener for the store in a server database, which this service joins as node m.
func postgresOpener(url string, m nodeIdentity) storeOpener {
	return func(ctx context.Context, _ string, log *slog.Logger, rank orderOf) (store.Store, error) {
		return postgres.Open(ctx, url, postgres.Options{Log: log, OrderFromSettings: rank, Node: m})
	}
}

// rejectReadOnly returns an error: a queue in a server database cannot be read in read-only mode. The
// database has its own tools for that.
func rejectReadOnly(context.Context, string, *slog.Logger, orderOf) (store.Store, error) {
	return nil, queue.Errorf(queue.CodeWrongState,
		"the service is not running, and a queue in PostgreSQL can be read only through it; start it with: "+
			"queuectl service start")
}

// openReadOnly opens the store of a directory that no service uses, read-only.
func openReadOnly(_ context.Context, dir string, log *slog.Logger, rank orderOf) (store.Store, error) {
	return sqlite.OpenReadOnly(sqlite.Options{Dir: dir, Log: log, OrderFromSettings: rank})
}
