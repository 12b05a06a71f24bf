package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// The time limit of a read starts when it gets a connection, regardless of how long it waited for one. A read
// stops waiting if its caller gives up or the store is closed.
func TestAReadsTimeBeginsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, t.TempDir())
		enqueue(t, s, 3)
		var taken []database.ReadConn
		for range MaxReaders {
			c, err := s.readers.take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, c)
		}
		list := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				page, err := s.List(ctx, store.Filter{Limit: 9})
				if err == nil && len(page.Jobs) != 3 {
					t.Errorf("%d jobs were listed", len(page.Jobs))
				}
				done <- err
			}()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		patient, impatient := list(t.Context()), list(ctx)
		time.Sleep(100 * ReadTimeout) // this is fake time of the synctest bubble, so it takes no real time
		cancel()
		if err := <-impatient; !errors.Is(err, context.Canceled) {
			t.Errorf("the read whose caller gave up: %v", err)
		}
		select {
		case err := <-patient:
			t.Fatalf("the patient read ended without a connection: %v", err)
		default:
		}
		s.readers.put(taken[0], true)
		if err := <-patient; err != nil {
			t.Errorf("the patient read: %v", err)
		}
		if _, err := s.readers.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := list(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		if err := <-waiting; !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("the read whose store was closed: %v", err)
		}
		for _, c := range taken {
			s.readers.put(c, true)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// A read that exceeds its time limit ends, and its connection serves the next read.
func TestALongReadEnds(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 1)
	s.readBudget = 250 * time.Millisecond
	endless := func(r *Reader) error {
		_, err := r.Number(`WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c`)
		return err
	}
	begun := time.Now()
	if err := s.Read(t.Context(), endless); !errors.Is(err, queue.ErrUnavailable) || time.Since(begun) > ReadTimeout {
		t.Errorf("the endless read ended after %v with %v", time.Since(begun), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := s.Read(ctx, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("the read whose caller gave up: %v", err)
	}
	if j, err := s.Get(t.Context(), "1"); err != nil || j.Seq != 1 {
		t.Errorf("the next read: %+v, %v", j, err)
	}
	if len(s.readers.idle) != 1 {
		t.Errorf("%d connections were opened", len(s.readers.idle))
	}
}

// All statements of one read see the same state of the database.
func TestAReadSeesOneMoment(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 2)
	err := s.Read(t.Context(), func(r *Reader) error {
		before, err := r.Number(`SELECT count(*) FROM jobs`)
		if err != nil {
			return err
		}
		enqueue(t, s, 5)
		after, err := r.Number(`SELECT count(*) FROM jobs`)
		if before != 2 || after != 2 {
			t.Errorf("the snapshot contains %d jobs, then %d; want 2 both times", before, after)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
