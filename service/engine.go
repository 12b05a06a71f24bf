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

// These functions come from the packages of the storage engine. They are listed here so that no other file of this
// package imports those packages.
var (
	restoreStore          = integrity.PrepareRestore
	examineStoppedStore   = integrity.ExamineStoppedDatabase
	examineDatabaseServer = pgdb.ExamineDatabase
	examineStateDir       = integrity.ExamineStateDir
	storeFileID           = sqlitedb.FileID
	errStateDirCopied     = postgres.ErrStateDirCopied
	moveQueue             = move.MoveQueue
)

// storeLocation says in which directory or database a queue is stored. migrationNode identifies the node whose state
// directory is used when a queue is moved from one store to another. MigrateResult describes a finished move. Source
// and Target are the two stores.
type (
	storeLocation = move.QueueLocation
	migrationNode = move.NodeIdentity
	MigrateResult struct {
		move.MoveResult
		Source string `json:"from"`
		Target string `json:"to"`
	}
)

// storeOpener opens the store in a directory. The store calls loadOrder to compute, from the stored settings, how it
// ranks jobs.
type storeOpener func(ctx context.Context, dir string, log *slog.Logger, loadOrder loadRankOrderFunc) (store.Store,
	error)

// loadRankOrderFunc computes from the stored settings how the store ranks jobs.
type loadRankOrderFunc = func([]store.Setting) (queue.RankPolicy, error)

// openSQLiteStore is the storeOpener for a queue in files.
func openSQLiteStore(ctx context.Context, dir string, log *slog.Logger, loadRankOrder loadRankOrderFunc) (store.Store,
	error) {
	if err := checkStoreMatchesIDFile(dir); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, sqlite.Options{Dir: dir, Log: log, RankOrderFromSettings: loadRankOrder})
}

// nodeIdentity is the identity of a node that shares a queue.
type nodeIdentity = postgres.NodeConfig

// postgresOpener returns an opener for the store in the database server at url. The opener ignores its
// directory. identity distinguishes this service from the other nodes that share the store.
func postgresOpener(url string, identity nodeIdentity) storeOpener {
	return func(ctx context.Context, _ string, log *slog.Logger, loadOrder loadRankOrderFunc) (store.Store, error) {
		return postgres.Open(ctx, url, postgres.Options{Log: log, RankOrderFromSettings: loadOrder, Node: identity})
	}
}

// openStoreReadOnly opens the store in a directory read-only. No service may be using the directory.
func openStoreReadOnly(_ context.Context, dir string, log *slog.Logger, loadRankOrder loadRankOrderFunc) (store.Store,
	error) {
	return sqlite.OpenReadOnly(sqlite.Options{Dir: dir, Log: log, RankOrderFromSettings: loadRankOrder})
}
