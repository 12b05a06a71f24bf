package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// enqueueWithOwner enqueues n jobs of a user whose name is recorded.
func enqueueWithOwner(t *testing.T, s *Store, uid int, name string, n int) []int64 {
	t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = newDraft(withUID(uid))
	}
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid, OwnerName: name})
	if err != nil {
		t.Fatal(err)
	}
	return r.Seqs
}

// applyAllDueChanges calls ApplyDueChanges until nothing more is due.
func applyAllDueChanges(t *testing.T, s *Store) {
	t.Helper()
	runStepUntilDone(t, func(ctx context.Context) (bool, error) {
		next, err := s.ApplyDueChanges(ctx)
		return next == 0, err
	})
}

// Jobs are moved to their former owner in small steps, however many there are and however many other jobs are
// stored. The steps continue after the store is opened again. Jobs of the next owner of the uid are not
// moved.
func TestDisowningContinuesInSteps(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueWithOwner(t, s, 7, "alice", 600)
	claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
	enqueueMany(t, s, 7000, withUID(8))
	enqueueWithOwner(t, s, 7, "alice", 300)
	most := countChangedRows(t, s)
	most()
	for range 3 {
		if more, err := s.DisownJobs(t.Context(), 7, "alice"); err != nil || !more {
			t.Fatalf("more: %t, %v", more, err)
		}
	}
	if rows, n := most(); rows > 2*maxDisownedJobsPerTx+10 || n != 3 {
		t.Errorf("%d rows changed in one of %d transactions", rows, n)
	}
	bobs := enqueueWithOwner(t, s, 7, "bob", 1)[0]
	s.Close()
	s = openStore(t, dir)
	most = countChangedRows(t, s)
	most()
	applyAllDueChanges(t, s)
	if rows, _ := most(); rows > 2*maxDisownedJobsPerTx+20 {
		t.Errorf("%d rows in a transaction", rows)
	}
	wants := func(when string, former, now, left int64) {
		t.Helper()
		got := [3]int64{queryNumber(t, s, `SELECT count(*) FROM jobs WHERE uid = -1`),
			queryNumber(t, s, `SELECT count(*) FROM jobs WHERE uid = 7`),
			queryNumber(t, s, `SELECT count(*) FROM owners WHERE upto > 0`)}
		if got != [3]int64{former, now, left} {
			t.Errorf("%s: %d jobs belong to the former owner, %d to the new one, %d moves are unfinished; want %d, %d, %d",
				when, got[0], got[1], got[2], former, now, left)
		}
	}
	wants("with two leased", 898, 3, 1)
	left, err := s.PreviousSession(t.Context())
	leased := left.LeasedJobs
	if err != nil || len(leased) != 2 {
		t.Fatal(len(leased), err)
	}
	seqs, jobs := claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&leased[0])},
		ReleasedLeases: []queue.Lease{leased[1].Lease()}, MaxJobsToClaim: 1})
	if len(seqs) != 1 || jobs[0].UID != 8 {
		t.Errorf("claimed %v, want another's", seqs)
	}
	applyAllDueChanges(t, s)
	wants("at the end", 900, 1, 0)
	if j := queryNumber(t, s, `SELECT seq FROM jobs WHERE uid = 7`); j != bobs {
		t.Errorf("job %d belongs to the uid, want %d", j, bobs)
	}
	expectNoFaults(t, s, "at the end")
	runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.DisownJobs(ctx, 7, "bob") })
	wants("of the next owner", 900, 0, 0)
	if n := queryNumber(t, s, `SELECT count(*) FROM jobs WHERE uid = -2`); n != 1 {
		t.Errorf("%d jobs are the second former owner's", n)
	}
}

// DisownJobs reports that all jobs have been moved, even if ApplyDueChanges moved the last ones. Jobs that the next
// owner enqueues in between are not moved.
func TestDueChangesMayFinishDisowning(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueWithOwner(t, s, 7, "alice", 2*maxDisownedJobsPerTx)
	if more, err := s.DisownJobs(t.Context(), 7, "alice"); err != nil || !more {
		t.Fatalf("more: %t, %v", more, err)
	}
	enqueueWithOwner(t, s, 7, "bob", 1)
	applyAllDueChanges(t, s)
	if more, err := s.DisownJobs(t.Context(), 7, "alice"); err != nil || more {
		t.Fatalf("more: %t, %v", more, err)
	}
	names, moving, err := s.Owners(t.Context())
	if err != nil || len(names) != 2 || names[7] != "bob" || names[-1] != "alice" || moving != nil {
		t.Errorf("%v, moving %v, %v", names, moving, err)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM owners WHERE upto > 0`); n != 0 {
		t.Errorf("%d are under way", n)
	}
}

// If a transaction that moves jobs to their former owner is rolled back, no jobs are moved.
func TestRolledBackDisowningMovesNothing(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueWithOwner(t, s, 7, "alice", 3)
	s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		tx.beginDisownment(7)
		if err := tx.recordOwnerName(9, "eve"); err != nil {
			t.Error(err)
		}
		err := tx.Exec(`INSERT INTO jobs (seq) VALUES ('no number')`)
		return err
	})
	if len(s.cache.disownments) != 0 || s.cache.ownerNames[7] != "alice" || len(s.cache.ownerNames) != 1 {
		t.Errorf("%v, %v", s.cache.disownments, s.cache.ownerNames)
	}
	enqueueWithOwner(t, s, 9, "mallory", 1)
	if s.cache.ownerNames[9] != "mallory" {
		t.Errorf("%v", s.cache.ownerNames)
	}
}

// requestWithIdempotencyKey returns a request of the user 7 with an idempotency key.
func requestWithIdempotencyKey(owner, key string) store.EnqueueRequest {
	return store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7))}, UID: 7, OwnerName: owner, IdempotencyKey: key}
}

// enqueueWithIdempotencyKey enqueues a job with an idempotency key, and checks whether the request is a duplicate.
func enqueueWithIdempotencyKey(t *testing.T, s *Store, testStep, owner, key string, wantDuplicate bool) {
	t.Helper()
	r, err := s.Enqueue(t.Context(), requestWithIdempotencyKey(owner, key))
	if err != nil || r.Duplicate != wantDuplicate {
		t.Errorf("%s: a request with the key %s is a duplicate: %t, error %v; want %t", testStep, key, r.Duplicate, err,
			wantDuplicate)
	}
}

// The steps that move the idempotency keys of a former owner do not move those of the next owner of the uid. A key of
// the former owner does not make a request of the next owner a duplicate.
func TestDisowningKeepsKeysOfNextOwner(t *testing.T) {
	for name, age := range map[string]time.Duration{"new keys": 0, "expired keys": 2 * store.IdempotencyKeyRetention} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			enqueueWithIdempotencyKey(t, s, "before the change of owner", "alice", "z", false)
			damageRow(t, s, `UPDATE keys SET at = ?`, int64(s.clock().Add(-age)))
			// The keys with the highest row numbers come first in the index, so the first step moves them.
			damageRow(t, s, `WITH RECURSIVE i (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM i WHERE number < 899)
				INSERT INTO keys (uid, key, at, sum, ids) SELECT uid, 1000 - number, at, sum, ids FROM i JOIN keys`)
			step := func() {
				if more, err := s.DisownJobs(t.Context(), 7, "alice"); err != nil || !more {
					t.Fatalf("more: %t, %v; want a further step", more, err)
				}
			}
			step()
			enqueueWithIdempotencyKey(t, s, "after the first step", "bob", "k", false)
			enqueueWithIdempotencyKey(t, s, "after the first step", "bob", "z", false)
			if _, err := s.ApplyDueChanges(t.Context()); err != nil {
				t.Fatal(err)
			}
			enqueueWithIdempotencyKey(t, s, "after some steps", "bob", "l", false)
			runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.DisownJobs(ctx, 7, "alice") })
			applyAllDueChanges(t, s)
			for _, key := range []string{"k", "z", "l"} {
				enqueueWithIdempotencyKey(t, s, "at the end", "bob", key, true)
			}
			enqueueWithIdempotencyKey(t, s, "at the end", "bob", "101", false)
		})
	}
}

// The steps of a disownment keep the name of a batch of the next owner that was discarded at a restart. From the
// first step on, the next owner may use the name of a discarded batch of the former owner.
func TestDisowningKeepsDiscardedBatchNamesOfNextOwner(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	stage := func(owner, name string) error {
		_, err := s.StageBatch(t.Context(),
			store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7))}, UID: 7, OwnerName: owner, BatchName: name})
		return err
	}
	reopen := func() {
		s.Close()
		s = openStore(t, dir)
	}
	enqueueWithOwner(t, s, 7, "alice", 2*maxDisownedJobsPerTx)
	if err := stage("alice", "of alice"); err != nil {
		t.Fatal(err)
	}
	reopen()
	if more, err := s.DisownJobs(t.Context(), 7, "alice"); err != nil || !more {
		t.Fatalf("more: %t, %v; want a further step", more, err)
	}
	for _, name := range []string{"b", "of alice"} {
		if err := stage("bob", name); err != nil {
			t.Fatalf("stage the batch %q: %v", name, err)
		}
	}
	reopen()
	applyAllDueChanges(t, s)
	for _, name := range []string{"b", "of alice"} {
		if err := stage("bob", name); !errors.Is(err, store.ErrBatchDiscarded) {
			t.Errorf("continue the batch %q, which was discarded at a restart: got error %v, want %v", name, err,
				store.ErrBatchDiscarded)
		}
	}
	_, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withUID(7))}, UID: 7,
		BatchName: "b"})
	if !errors.Is(err, store.ErrBatchDiscarded) {
		t.Errorf("commit the batch: got error %v, want %v", err, store.ErrBatchDiscarded)
	}
}

// DisownJobs makes all hooks of the former owner's jobs count for the former owner: waiting and leased ones, of
// whichever user. The counts are the same after the store is opened again.
func TestDisowningMovesHookCounts(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueWithOwner(t, s, 7, "alice", 1)
	hookOf := func(hookUID int) func(*queue.Job) {
		return func(j *queue.Job) { j.HookEvents, j.HookUID = queue.HookJobFlag, hookUID }
	}
	for uid := range 3 {
		r := store.EnqueueRequest{Drafts: []queue.Job{newDraft(hookOf(7)), newDraft(hookOf(7)), newDraft(hookOf(5))}, UID: 7 +
			uid}
		if _, err := s.Enqueue(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 4})
	check := func(when string, former, now int64) {
		t.Helper()
		users := s.cache.users
		if got := [3]int64{users[-1].waitingHooks, users[7].waitingHooks, users[5].waitingHooks}; got !=
			[3]int64{former, now, 3} {
			t.Errorf("%s: the former owner has %d waiting hooks, the next owner %d, another user %d; want %d, %d, 3",
				when, got[0], got[1], got[2], former, now)
		}
	}
	check("before", 0, 6)
	runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.DisownJobs(ctx, 7, "alice") })
	check("after Disown", 6, 0)
	s.Close()
	s = openStore(t, dir)
	check("after the store was opened again", 6, 0)
	left, err := s.PreviousSession(t.Context())
	if err != nil || len(left.LeasedJobs) != len(jobs) {
		t.Fatalf("%d leased jobs, %v; want %d", len(left.LeasedJobs), err, len(jobs))
	}
	var releases []queue.Lease
	for i := range left.LeasedJobs {
		releases = append(releases, left.LeasedJobs[i].Lease())
	}
	claimJobs(t, s, store.LeaseReport{ReleasedLeases: releases})
	check("after the leases", 6, 0)
	expectNoFaults(t, s, "at the end")
}
