package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// readOperations contains the operations that only read, but wait in the write queue, because they use state
// in memory that only a transaction may use.
var readOperations = map[string]func(context.Context, *Store) error{
	"WaitReasons": func(ctx context.Context, s *Store) error { _, err := s.WaitReasons(ctx, []int64{1}); return err },
	"Simulate":    func(ctx context.Context, s *Store) error { _, err := s.SimulateClaims(ctx, 1); return err },
	"Queues":      func(ctx context.Context, s *Store) error { _, err := s.Queues(ctx); return err },
	"Gates":       func(ctx context.Context, s *Store) error { _, err := s.Gates(ctx, 1, store.GateState{}); return err },
	"Settings":    func(ctx context.Context, s *Store) error { _, err := s.Settings(ctx); return err },
}

// If the context of a read ends while the read waits in the write queue, the read ends and leaves the queue.
// The read also ends if its transaction waits for another connection to the database.
func TestReadsStopWhenContextEnds(t *testing.T) {
	for name, read := range readOperations {
		t.Run("behind a write: "+name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			enqueue(t, s, 1)
			occupyWriter(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := read(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
			}
			awaitWaitingOperations(t, s, 0)
		})
	}
	t.Run("another connection", func(t *testing.T) {
		s := openStore(t, t.TempDir())
		enqueue(t, s, 1)
		other, err := sqlitedb.OpenWriter(s.path)
		if err == nil {
			err = other.Exec(`BEGIN IMMEDIATE`)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err = s.WaitReasons(ctx, []int64{1})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("got %v after %v, want %v immediately", err, took, context.DeadlineExceeded)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}}); err != nil {
			t.Errorf("a write after that: %v", err)
		}
	})
}
