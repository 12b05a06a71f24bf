package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
)

// readers are the connections that reads share.
type readers struct {
	path   string
	flags  int32         // of SQLite, by which it is opened
	places chan struct{} // one for each connection that may be in use
	closed chan struct{}

	mu   sync.Mutex
	idle []*conn // the one used last is used next; guarded by mu
}

// maxReaders is how many reads are carried out at once.
const maxReaders = 4

// newReaders are readers of a database that is opened by these flags of SQLite.
func newReaders(path string, flags int32) *readers {
	return &readers{path: path, flags: flags, places: make(chan struct{}, maxReaders), closed: make(chan struct{})}
}

// readerPragmas are those of a connection that reads.
func readerPragmas() []string {
	return []string{`busy_timeout = 2000`, `query_only = 1`, `cache_size = -1024`, `trusted_schema = 0`}
}

// take waits for a connection.
func (r *readers) take(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-r.closed:
		return nil, errClosed
	default:
	}
	select {
	case r.places <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.closed:
		return nil, errClosed
	}
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	c, err := openAs(r.path, r.flags, readerPragmas()...)
	if err != nil {
		<-r.places
	}
	return c, err
}

// put gives a connection back; one that is not sound is closed.
func (r *readers) put(c *conn, sound bool) {
	if sound {
		r.mu.Lock()
		r.idle = append(r.idle, c)
		r.mu.Unlock()
	} else {
		c.close() // what went wrong was told
	}
	<-r.places
}

// close ends the connections once those in use are given back. It is called once.
func (r *readers) close() (err error) {
	close(r.closed)
	for range maxReaders {
		r.places <- struct{}{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.idle {
		err = errors.Join(err, c.close())
	}
	r.idle = nil
	return err
}

// reader is a connection during one read. All its statements see the same state of the
// database, and it ends with its context.
type reader struct {
	*conn
	ctx context.Context
}

// query is conn.query, unless the read is over.
func (r *reader) query(each func(r row) (more bool, err error), sql string, args ...any) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.conn.query(each, sql, args...)
}

// number reads the one integer of a statement's first row, 0 if there is none.
func (r *reader) number(sql string, args ...any) (n int64, err error) {
	err = r.query(func(r row) (bool, error) {
		n = r.num(0)
		return false, nil
	}, sql, args...)
	return n, err
}

func interrupted(err error) bool {
	var e *sqliteError
	return errors.As(err, &e) && e.code&0xff == sqlite3.SQLITE_INTERRUPT
}

// reading calls f with a connection for reading. The read has a deadline, because a
// reader pins the WAL; its time begins when it has the connection. The caller bounds the
// wait for a connection by ctx.
func (s *Store) reading(ctx context.Context, f func(*reader) error) error {
	c, err := s.read.take(ctx)
	if err != nil {
		return s.cannotRead(err)
	}
	budget := s.readBudget()
	within, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	release := c.endWith(within)
	r := &reader{c, within}
	_, err = c.exec(`BEGIN`)
	if err == nil {
		err = f(r)
	}
	release()
	if changed := s.unchanged(); changed != nil {
		err = changed
	}
	_, ended := c.exec(`ROLLBACK`) // nothing was written
	s.read.put(c, ended == nil)
	if interrupted(err) && within.Err() != nil {
		err = within.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return s.late(budget)
	}
	return s.cannotRead(err)
}

// cannotRead is the answer to a read that met an error. An error which means that the
// file or the disk has failed stops the store for good, as it does in a write.
func (s *Store) cannotRead(err error) error {
	var e *sqliteError
	if !errors.As(err, &e) {
		return err
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		if s.frozen != (files{}) {
			return explain(filepath.Join(s.dir, fileName), err)
		}
		s.failed(err)
		return queue.Errorf(queue.CodeUnavailable, "the database failed (%v): the service ends; its log says more", err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}
