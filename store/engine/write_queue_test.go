package engine

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/writequeue"
)

// A user who fills whole commits with operations of a higher priority class delays the operation of another
// user by at most one commit.
func TestUsersTakeTurnsToWrite(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := occupyWriter(t, s)
	const many = 50
	var all sync.WaitGroup
	order := make(chan int, many+2)
	ask := func(uid int, c PriorityClass) {
		all.Go(func() {
			s.RunAndCommit(queue.WithUserID(t.Context(), uid), c, func(tx *Tx) error {
				tx.readJobBytes = maxCommitGroupBytes
				order <- uid
				return nil
			})
		})
	}
	for i := range many {
		ask(1, PromptClass)
		awaitWaitingOperations(t, s, i+1)
	}
	ask(2, NormalClass)
	awaitWaitingOperations(t, s, many+1)
	ask(1, NormalClass)
	awaitWaitingOperations(t, s, many+2)
	release()
	all.Wait()
	close(order)
	var first []int
	for uid := range order {
		first = append(first, uid)
	}
	if first[0] != 1 || first[1] != 2 || first[2] != 1 {
		t.Errorf("the first of %d operations are of users %v", len(first), first[:4])
	}
}

// An operation of a user whose last operation was slow is committed alone.
func TestSlowOperationsAreCommittedAlone(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := occupyWriter(t, s)
	s.waitingOps.RecordServedOp(&queuedOperation{uid: 1, priorityClass: PromptClass}, writequeue.MinSlowOpTime)
	var all sync.WaitGroup
	var mu sync.Mutex
	commits := map[*Tx][]int{}
	for i, uid := range []int{1, 2, 1, 3, 2} {
		all.Go(func() {
			s.RunAndCommit(queue.WithUserID(t.Context(), uid), PromptClass, func(tx *Tx) error {
				mu.Lock()
				defer mu.Unlock()
				commits[tx] = append(commits[tx], uid)
				// mark user 1's last operation as slow
				s.waitingOps.RecordServedOp(&queuedOperation{uid: 1, priorityClass: PromptClass}, writequeue.MinSlowOpTime)
				return nil
			})
		})
		awaitWaitingOperations(t, s, i+1)
	}
	release()
	all.Wait()
	for _, uids := range commits {
		for _, uid := range uids {
			if uid == 1 && len(uids) > 1 {
				t.Errorf("committed together: %v", uids)
			}
		}
	}
	if len(commits) < 3 {
		t.Errorf("%d commits", len(commits))
	}
}

// While operations of several users wait, a commit takes no more operations after MaxGroupTime. So no user has
// to wait for all operations of another user.
func TestCommitIsShortWhileOtherUsersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, t.TempDir())
		release := occupyWriter(t, s)
		var all sync.WaitGroup
		commits := map[*Tx]int{}
		ask := func(uid int) {
			all.Go(func() {
				s.RunAndCommit(queue.WithUserID(t.Context(), uid), PromptClass, func(tx *Tx) error {
					time.Sleep(writequeue.MaxGroupTime / 4)
					commits[tx]++
					return nil
				})
			})
		}
		for i := range 40 {
			ask(1 + i/39) // the first 39 operations belong to user 1, the last one to user 2
			awaitWaitingOperations(t, s, i+1)
		}
		release()
		all.Wait()
		for _, n := range commits {
			if n > 4 {
				t.Errorf("a commit has %d operations that take a quarter of the time each, want at most 4", n)
			}
		}
		s.Close()
	})
}
