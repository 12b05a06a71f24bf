// Package reads answers questions about the stored jobs from snapshots of the database, so that no question
// delays the writer.
//
// Start with Reads. Package store/engine embeds it.
package reads

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// readerPool is a pool of connections for reading.
type readerPool struct {
	openConn  func() (database.ReadConn, error)
	closedErr error                  // error that reads return after close
	slots     chan struct{}          // semaphore: one element for each connection in use
	closed    chan struct{}          // closed by the method close
	idleConns chan database.ReadConn // the open connections that are not in use
}

// MaxReaders is the maximum number of concurrent reads.
const MaxReaders = 4

// newReaders returns a pool that creates its connections with openConn.
func newReaders(openConn func() (database.ReadConn, error), closedErr error) *readerPool {
	return &readerPool{openConn: openConn, closedErr: closedErr, slots: make(chan struct{}, MaxReaders),
		closed: make(chan struct{}), idleConns: make(chan database.ReadConn, MaxReaders)}
}

// take waits for a free connection, and opens one if necessary.
func (r *readerPool) take(ctx context.Context) (database.ReadConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.closed:
		return nil, r.closedErr
	}
	select {
	case c := <-r.idleConns:
		return c, nil
	default:
	}
	c, err := r.openConn()
	if err != nil {
		<-r.slots
	}
	return c, err
}

// put returns a connection to the pool. If reusable is false, it closes the connection instead.
func (r *readerPool) put(c database.ReadConn, reusable bool) {
	if reusable {
		r.idleConns <- c
	} else {
		c.Close() // ignore an error: the caller has reported why the connection is not reusable
	}
	<-r.slots
}

// close closes the connections, after those in use have been returned. It must be called only once.
func (r *readerPool) close() (err error) {
	close(r.closed)
	for range MaxReaders {
		r.slots <- struct{}{}
	}
	close(r.idleConns)
	for c := range r.idleConns {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Database opens connections for reading, and decides what the errors of reads mean. Its methods are called on the
// goroutine of a read.
type Database interface {
	// OpenReader opens a connection for reading. ConvertReadError receives its error.
	OpenReader() (database.ReadConn, error)
	// ReadTimeout returns how long a read may take now, and ReadTimeoutError the error for a read that took longer.
	ReadTimeout() time.Duration
	ReadTimeoutError(timeLimit time.Duration) error
	// CheckReadable returns an error once a read may no longer show the stored state. It is called at the end
	// of each read.
	CheckReadable() error
	// ConvertReadError returns the error that the caller of a failed read gets. It makes the engine fail if err says
	// that the database is damaged.
	ConvertReadError(err error) error
}

// Reads answers questions about the stored jobs from snapshots of the database. It implements the methods of
// store.Reader and store.Quotas that do not need the writer. It is safe for concurrent use.
type Reads struct {
	Published
	database Database
	readers  *readerPool
}

// New returns the reads of a database. now is the store's clock. After StopReading, the reads fail with the error
// closedErr.
func New(db Database, now func() queue.Millis, closedErr error) *Reads {
	return &Reads{Published: Published{now: now, state: State{Usage: map[int]Usage{},
		LastTurns: map[string]map[int]int64{}}},
		database: db, readers: newReaders(db.OpenReader, closedErr)}
}

// StopReading closes all connections, after the reads in progress have ended. It must be called only once.
func (s *Reads) StopReading() error { return s.readers.close() }

// Reader is a connection during one read. All its statements see the same state of the database. The end of ctx
// also ends the read.
type Reader struct {
	database.Statements
	ctx context.Context
}

// Query executes a query. It returns an error instead if the context of the read has ended.
func (r *Reader) Query(handleRow func(r database.Row) (hasMore bool, err error), sql string, args ...any) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.Statements.Query(handleRow, sql, args...)
}

// QueryNumber returns the integer in the first row of a query, or 0 if there is no row.
func (r *Reader) QueryNumber(sql string, args ...any) (int64, error) {
	return database.QueryNumber(r, sql, args...)
}

// Read calls read with a connection for reading. The read has a time limit, because a long read keeps the
// write-ahead log from being restarted. The limit does not include the wait for a free connection; that wait
// ends with ctx at the latest.
func (s *Reads) Read(ctx context.Context, read func(*Reader) error) (err error) {
	for try := 0; ; try++ {
		c, err := s.readers.take(ctx)
		if err != nil {
			return s.database.ConvertReadError(err)
		}
		lost, err := s.readWith(ctx, c, read)
		if !lost || try == MaxReaders {
			return err
		}
	}
}

// readWith calls read with a connection and returns the connection to the pool. connLost reports that the
// connection was lost before anything was read.
func (s *Reads) readWith(ctx context.Context, c database.ReadConn, read func(*Reader) error) (
	connLost bool, err error) {
	budget := s.database.ReadTimeout()
	within, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	release := c.InterruptWhenDone(within)
	if err = c.BeginReading(); err == nil {
		err = read(&Reader{c, within})
	} else {
		connLost = within.Err() == nil
	}
	release()
	if changed := s.database.CheckReadable(); changed != nil {
		err = changed
	}
	ended := c.EndReading()
	s.readers.put(c, ended == nil && !connLost)
	if err != nil && within.Err() != nil && c.IsInterruption(err) {
		err = within.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, s.database.ReadTimeoutError(budget)
	}
	return connLost, s.database.ConvertReadError(err)
}
