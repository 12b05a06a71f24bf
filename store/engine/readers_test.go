package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/reads"
)

// The time limit of a read begins when the read gets a connection; time spent waiting for a connection does
// not count. A read stops waiting if its caller gives up or the store is closed.
func TestReadTimeoutStartsWithConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, t.TempDir())
		enqueue(t, s, 3)
		var all sync.WaitGroup
		occupy := func() (release func()) { // use a connection until release is called
			gate := make(chan struct{})
			all.Go(func() {
				s.RunRead(context.Background(), func(*reads.ReadSnapshot) error { <-gate; return nil })
			})
			synctest.Wait()
			return func() { close(gate) }
		}
		var releases []func()
		for range reads.MaxConcurrentReads {
			releases = append(releases, occupy())
		}
		list := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				page, err := s.ListJobs(ctx, store.JobFilter{Limit: 9})
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
		time.Sleep(100 * DefaultReadTimeout) // this is the fake time of synctest, so it takes no real time
		cancel()
		if err := <-impatient; !errors.Is(err, context.Canceled) {
			t.Errorf("the read whose caller gave up: %v", err)
		}
		select {
		case err := <-patient:
			t.Fatalf("the patient read ended without a connection: %v", err)
		default:
		}
		releases[0]()
		if err := <-patient; err != nil {
			t.Errorf("the patient read: %v", err)
		}
		releases[0] = occupy()
		waiting := list(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		if err := <-waiting; !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("the read whose store was closed: %v", err)
		}
		for _, release := range releases {
			release()
		}
		all.Wait()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// A read that exceeds its time limit ends, and its connection serves the next read.
func TestReadTimeoutEndsLongRead(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 1)
	s.readTimeout = 250 * time.Millisecond
	endless := func(r *reads.ReadSnapshot) error {
		_, err := r.QueryNumber(`WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c`)
		return err
	}
	begun := time.Now()
	if err := s.RunRead(t.Context(), endless); !errors.Is(err, queue.ErrUnavailable) ||
		time.Since(begun) > DefaultReadTimeout {
		t.Errorf("the endless read ended after %v with %v", time.Since(begun), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := s.RunRead(ctx, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("the read whose caller gave up: %v", err)
	}
	if j, err := s.GetJob(t.Context(), "1"); err != nil || j.Seq != 1 {
		t.Errorf("the next read: %+v, %v", j, err)
	}
	if len(s.readConns) != 1 {
		t.Errorf("%d connections were opened", len(s.readConns))
	}
}

// All statements of one read see the same state of the database.
func TestReadSeesOneSnapshot(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 2)
	err := s.RunRead(t.Context(), func(r *reads.ReadSnapshot) error {
		before, err := r.QueryNumber(`SELECT count(*) FROM jobs`)
		if err != nil {
			return err
		}
		enqueue(t, s, 5)
		after, err := r.QueryNumber(`SELECT count(*) FROM jobs`)
		if before != 2 || after != 2 {
			t.Errorf("the snapshot contains %d jobs, then %d; want 2 both times", before, after)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
