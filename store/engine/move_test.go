package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/move"
	"github.com/queuectl/queuectl/store/postgres"
	"github.com/queuectl/queuectl/store/sqlite"
	"github.com/queuectl/queuectl/test/pgserver"
)

// dumpQueue returns all contents of a queue as text. The test compares the texts from before and after a
// move.
func dumpQueue(t *testing.T, s store.Store) string {
	t.Helper()
	page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: store.MaxPageRows})
	if err != nil {
		t.Fatal(err)
	}
	parts := []any{s.Counts().JobsByState}
	for _, j := range page.Jobs {
		whole, err := s.GetWithEnvAndStdin(t.Context(), j.ID)
		attempts, err2 := s.AttemptHistory(t.Context(), j.Seq, 0, 100)
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, whole)
		for _, a := range attempts {
			with, err := s.Attempt(t.Context(), j.Seq, a.Number)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, with)
		}
	}
	events, err := s.Events(t.Context(), 0, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(append(parts, events), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A queue that is moved to a server and back keeps its waiting jobs, its history and its outputs. At no time
// can it be used in both places. A move that was interrupted, at any point, can be continued.
func TestMovedQueueKeepsItsData(t *testing.T) {
	p := pgserver.SharedServer(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	engine.CallEveryOperation(t, engine.NewStoreForEngine(s.Engine))
	if err := s.StoreRunnerDirs(t.Context(), []string{"runner/1"}); err != nil {
		t.Fatal(err)
	}
	was := dumpQueue(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	member := move.NodeIdentity{NodeName: "here", StateDirID: "this"}
	file, server := move.QueueLocation{Dir: dir}, move.QueueLocation{URL: p.CreateDatabase(t)}
	cut, cancel := context.WithCancel(t.Context())
	if _, err := move.MoveQueue(cut, file, server, member, func(table string, _ int64) {
		if table == "jobs" {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a move that was interrupted: %v", err)
	}
	if _, err := postgres.Open(t.Context(), server.URL, postgres.Options{}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("opening an incomplete copy: %v", err)
	}
	done, err := move.MoveQueue(t.Context(), file, server, member, func(string, int64) {})
	if err != nil || done.PreviouslyCopiedRows == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("opening a queue that has moved away: %v", err)
	}
	there, err := postgres.Open(t.Context(), server.URL, postgres.Options{RankOrder: s.RankOrder(),
		Node: postgres.NodeConfig{NodeName: member.NodeName, StateDirID: member.StateDirID}})
	if err != nil {
		t.Fatal(err)
	}
	if is := dumpQueue(t, there); is != was {
		t.Errorf("the queue on the server is\n%s\nbefore the move it was\n%s", is, was)
	}
	left, err := there.PreviousSession(t.Context())
	if err != nil || left.IsDatabaseCopy || len(left.RunnerDirs) != 1 {
		t.Errorf("the previous session: %+v, %v", left, err)
	}
	if _, err := there.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{engine.NewDraft()},
		UID: 7}); err != nil {
		t.Error(err)
	}
	was = dumpQueue(t, there)
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := move.MoveQueue(t.Context(), server, file, member, func(string, int64) {}); err != nil {
		t.Fatal(err)
	}
	back := openStore(t, dir)
	if mode, err := engine.NewStoreForEngine(back.Engine).Conn().QueryNumber(`PRAGMA auto_vacuum`); err != nil ||
		mode != 2 {
		t.Errorf("the new file has auto_vacuum %d, %v; want 2 (incremental), without which it is never compacted", mode, err)
	}
	if is := dumpQueue(t, back); is != was {
		t.Errorf("the queue in the file is\n%s\nbefore the move it was\n%s", is, was)
	}
	for _, check := range back.Examine(t.Context()) {
		if check.Level == store.LevelFailure {
			t.Errorf("%+v", check)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "moving.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
	back.Close()
	if done, err := move.MoveQueue(t.Context(), server, file, member, func(string, int64) {}); err != nil ||
		!done.AlreadyMoved {
		t.Errorf("a repeated move: %+v, %v; want AlreadyDone", done, err)
	}
	if done, err := move.MoveQueue(t.Context(), file, server, member, func(string, int64) {}); err != nil ||
		done.AlreadyMoved {
		t.Errorf("moving the queue back to the server: %+v, %v", done, err)
	}
	if done, err := move.MoveQueue(t.Context(), file, server, member, func(string, int64) {}); err != nil ||
		!done.AlreadyMoved {
		t.Errorf("a repeated move: %+v, %v; want AlreadyDone", done, err)
	}
	third := move.QueueLocation{URL: p.CreateDatabase(t)}
	if _, err := move.MoveQueue(t.Context(), file, third, member, func(string, int64) {}); !errors.Is(err,
		queue.ErrWrongState) {
		t.Errorf("a second move of a queue that has moved away: %v", err)
	}
	if _, err := move.MoveQueue(t.Context(), server, third, member, func(string, int64) {}); err != nil {
		t.Error(err)
	}
	if done, err := move.MoveQueue(t.Context(), file, server, member, func(string, int64) {}); err != nil ||
		!done.AlreadyMoved {
		t.Errorf("repeating a move to a server from which the queue has moved on: %+v, %v", done, err)
	}
}

// If a queue is changed after its move was interrupted, the next move copies everything again. If the target
// already contains another queue, that queue is not changed.
func TestInterruptedMoveRecopiesChangedQueue(t *testing.T) {
	p := pgserver.SharedServer(t)
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueue(t, s, 5)
	s.Close()
	member := move.NodeIdentity{NodeName: "here", StateDirID: "this"}
	file, server := move.QueueLocation{Dir: dir}, move.QueueLocation{URL: p.CreateDatabase(t)}
	cut, cancel := context.WithCancel(t.Context())
	move.MoveQueue(cut, file, server, member, func(string, int64) { cancel() })
	s = openStore(t, dir)
	enqueue(t, s, 5)
	s.Close()
	done, err := move.MoveQueue(t.Context(), file, server, member, func(string, int64) {})
	if err != nil || done.JobCount != 10 || done.PreviouslyCopiedRows > 1 {
		t.Errorf("%+v, %v", done, err)
	}
	other := t.TempDir()
	s = openStore(t, other)
	enqueue(t, s, 1)
	s.Close()
	if _, err := move.MoveQueue(t.Context(), move.QueueLocation{Dir: other}, server, member,
		func(string, int64) {}); !errors.Is(err,
		queue.ErrExists) {
		t.Errorf("over another queue: %v", err)
	}
}
