package service

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sql"
)

// The engine that keeps the queue. Nothing else of the service names it.
var (
	restoreEngine = sql.Restore
	examineEngine = sql.ExamineStopped
	moveEngine    = sql.Move
	examineServer = sql.ExamineServer
	examineFolder = sql.ExamineFolder
	fileID        = sql.FileID
	errCopied     = sql.ErrCopied
)

// place is where an engine has a queue, and Migrated says what was moved, from where to where.
type (
	place    = sql.Place
	Migrated struct {
		sql.Moved
		From string `json:"from"`
		To   string `json:"to"`
	}
)

// opener opens the store of a folder; orderOf says by its settings how its jobs are ranked.
type opener func(ctx context.Context, dir string, log *slog.Logger, orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error)

func openEngine(ctx context.Context, dir string, log *slog.Logger, orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error) {
	if err := knowsItsStore(dir); err != nil {
		return nil, err
	}
	s, err := sql.Open(ctx, sql.Options{Dir: dir, Log: log, OrderOf: orderOf})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// member is the node of a store that services share.
type member = sql.Member

// openServer opens the store of a database on a server, as one of its nodes.
func openServer(url string, m member) opener {
	return func(ctx context.Context, _ string, log *slog.Logger, orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error) {
		s, err := sql.OpenServer(ctx, url, sql.Options{Log: log, OrderOf: orderOf, Member: m})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}

// noLook refuses to look at a database on a server: it has tools of its own for that.
func noLook(context.Context, string, *slog.Logger, func([]store.Setting) (queue.Order, error)) (store.Store, error) {
	return nil, queue.Errorf(queue.CodeWrongState, "the service is not running, and a queue in PostgreSQL can be read only through it; start it with: queuectl service start")
}

// lookEngine opens the store of a folder that no service uses, to be read only.
func lookEngine(_ context.Context, dir string, log *slog.Logger, orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error) {
	s, err := sql.OpenReadOnly(sql.Options{Dir: dir, Log: log, OrderOf: orderOf})
	if err != nil {
		return nil, err
	}
	return s, nil
}
