// Package reads reads the stored jobs. It reads snapshots of the database, so that reads do not delay writes.
//
// Start with JobReader. Package store/engine embeds it.
package reads

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

type readConnPool struct {
	openConn     func() (database.ReadConn, error)
	closedErr    error                  // error of reads after the pool is closed
	connSlots    chan struct{}          // semaphore: one element for each connection in use
	closedSignal chan struct{}          // closed by the method close
	idleConns    chan database.ReadConn // the open connections that are not in use
}

// MaxConcurrentReads is the maximum number of concurrent reads.
const MaxConcurrentReads = 4

// newReadConnPool returns a pool that creates its connections with openConn.
func newReadConnPool(openConn func() (database.ReadConn, error), closedErr error) *readConnPool {
	return &readConnPool{openConn: openConn, closedErr: closedErr, connSlots: make(chan struct{}, MaxConcurrentReads),
		closedSignal: make(chan struct{}), idleConns: make(chan database.ReadConn, MaxConcurrentReads)}
}

// takeConn waits until a connection may be used, and opens one if no open one is idle.
func (r *readConnPool) takeConn(ctx context.Context) (database.ReadConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case r.connSlots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.closedSignal:
		return nil, r.closedErr
	}
	select {
	case c := <-r.idleConns:
		return c, nil
	default:
	}
	c, err := r.openConn()
	if err != nil {
		<-r.connSlots
	}
	return c, err
}

// returnConn returns a connection to the pool. If reusable is false, it closes the connection instead.
func (r *readConnPool) returnConn(c database.ReadConn, reusable bool) {
	if reusable {
		r.idleConns <- c
	} else {
		c.Close() // ignore an error: the connection cannot be used any more
	}
	<-r.connSlots
}

// close waits until the connections in use have been returned, and closes all. It must be called only once.
func (r *readConnPool) close() (err error) {
	close(r.closedSignal)
	for range MaxConcurrentReads {
		r.connSlots <- struct{}{}
	}
	close(r.idleConns)
	for c := range r.idleConns {
		err = errors.Join(err, c.Close())
	}
	return err
}

// ReadDatabase opens connections for reading, and translates the errors of reads. Its methods are called on the
// goroutine that reads.
type ReadDatabase interface {
	// OpenReader opens a connection for reading. If it fails, its error is passed to ConvertReadError.
	OpenReader() (database.ReadConn, error)
	// ReadTimeout returns how long a read that begins now may take. If a problem makes this time shorter than usual,
	// it also returns that problem.
	ReadTimeout() (timeLimit time.Duration, problem error)
	// CheckReadable is called at the end of each read. It returns an error if the read may not have seen the
	// stored state, for example because a service has changed the files of a read-only store.
	CheckReadable() error
	// ConvertReadError returns the error that the caller of a failed read gets. If err says that the database
	// is damaged, it also makes the store fail for good.
	ConvertReadError(err error) error
}

// JobReader reads the stored jobs from snapshots of the database. It implements those methods of store.Reader and
// store.Quotas that need no transaction of package store/engine. It is safe for concurrent use.
type JobReader struct {
	PublishedState
	database ReadDatabase
	connPool *readConnPool
}

// New returns a JobReader for a database. now is the store's clock. After StopReading, the reads fail with the error
// closedErr.
func New(db ReadDatabase, now func() queue.UnixMillis, closedErr error) *JobReader {
	return &JobReader{PublishedState: PublishedState{now: now, state: ReaderState{UsageByUID: map[int]UserUsage{},
		LastTurnsByQueue: map[string]map[int]int64{}}},
		database: db, connPool: newReadConnPool(db.OpenReader, closedErr)}
}

// StopReading waits until the running reads have ended, and closes all connections. It must be called only
// once.
func (s *JobReader) StopReading() error { return s.connPool.close() }

// ReadSnapshot is the connection of one read. All its statements see the same state of the database. The read ends
// when ctx ends.
type ReadSnapshot struct {
	database.Statements
	ctx context.Context
}

// Query executes a query. It returns an error instead if the context of the read has ended.
func (r *ReadSnapshot) Query(handleRow func(r database.Row) (hasMore bool, err error), sql string, args ...any) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.Statements.Query(handleRow, sql, args...)
}

// QueryNumber returns the integer in the first row of a query, or 0 if there is no row.
func (r *ReadSnapshot) QueryNumber(sql string, args ...any) (int64, error) {
	return database.QueryNumber(r, sql, args...)
}

// RunRead calls read once with a connection for reading. The call has a time limit, because SQLite cannot restart its
// write-ahead log during a long read. The limit does not include the wait for a free connection, which ends
// with ctx.
func (s *JobReader) RunRead(ctx context.Context, read func(*ReadSnapshot) error) (err error) {
	for try := 0; ; try++ {
		c, err := s.connPool.takeConn(ctx)
		if err != nil {
			return s.database.ConvertReadError(err)
		}
		lost, err := s.runReadOnConn(ctx, c, read)
		if !lost || try == MaxConcurrentReads {
			return err
		}
	}
}

// runReadOnConn calls read with a connection, and returns the connection to the pool. connLost reports that the
// connection was lost before anything was read, so that the caller can try again with another one.
func (s *JobReader) runReadOnConn(ctx context.Context, c database.ReadConn, read func(*ReadSnapshot) error) (
	connLost bool, err error) {
	timeLimit, problem := s.database.ReadTimeout()
	within, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	release := c.InterruptWhenDone(within)
	if err = c.BeginSnapshot(); err == nil {
		err = read(&ReadSnapshot{c, within})
	} else {
		connLost = within.Err() == nil
	}
	release()
	if changed := s.database.CheckReadable(); changed != nil {
		err = changed
	}
	ended := c.EndSnapshot()
	s.connPool.returnConn(c, ended == nil && !connLost)
	if err != nil && within.Err() != nil && c.IsInterruption(err) {
		err = within.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, readTimeoutError(timeLimit, problem)
	}
	return connLost, s.database.ConvertReadError(err)
}

// readTimeoutError returns the error for a read that took longer than timeLimit. problem is the problem that made this
// time shorter than usual, or nil.
func readTimeoutError(timeLimit time.Duration, problem error) error {
	if problem != nil {
		return queue.Errorf(queue.CodeUnavailable, "reading the database took longer than %v, the limit while the "+
			"following problem lasts: %v", timeLimit, problem)
	}
	return queue.Errorf(queue.CodeUnavailable, "reading the database took longer than the limit of %v; request "+
		"less, or try again later", timeLimit)
}
