package daemon

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// The runner starts the waiting attempts of each queue in the order of their StartPosition. If several queues have
// waiting attempts, it takes one attempt from each queue in turn, and begins with the queue whose attempts the service
// sent first.
func TestWaitingAttemptsAreSortedByStartPosition(t *testing.T) {
	s := &server{}
	for _, start := range []wire.StartAttempt{
		{Lease: wire.Lease{Seq: 1}, Queue: "a", Position: wire.QueuePosition{Rank: 10, Seq: 1}},
		{Lease: wire.Lease{Seq: 2}, Queue: "b", Position: wire.QueuePosition{Rank: 20, Seq: 2}},
		{Lease: wire.Lease{Seq: 5}, Queue: "a", Position: wire.QueuePosition{Rank: 30, Seq: 5}},
		{Lease: wire.Lease{Seq: 6}, Queue: "b", Position: wire.QueuePosition{Rank: 20, Seq: 6}},
		// This job starts before job 5, which has the same rank.
		{Lease: wire.Lease{Seq: 4}, Queue: "a", Position: wire.QueuePosition{Rank: 30, Seq: 4}},
		// This job starts before all others of its queue.
		{Lease: wire.Lease{Seq: 7}, Queue: "b", Position: wire.QueuePosition{Rank: -9, Seq: 7}},
		{Lease: wire.Lease{Seq: 3}, Queue: "a", Position: wire.QueuePosition{Rank: 20, Seq: 3}},
		// With IsJustBeforeJob set, this job starts before job 5.
		{Lease: wire.Lease{Seq: 9}, Queue: "a", Position: wire.QueuePosition{Rank: 30, Seq: 5, IsJustBeforeJob: true}},
		// This job also starts before job 5. It starts after job 9, because job 9 was sent earlier.
		{Lease: wire.Lease{Seq: 8}, Queue: "a", Position: wire.QueuePosition{Rank: 30, Seq: 5, IsJustBeforeJob: true}},
	} {
		s.insertWaitingAttemptLocked(&attempt{startFrame: &start})
	}
	var got []int64
	for _, a := range s.waitingAttempts {
		got = append(got, a.startFrame.Seq)
	}
	if want := []int64{1, 7, 3, 2, 4, 6, 9, 8, 5}; !slices.Equal(got, want) {
		t.Errorf("they start as %v, want %v", got, want)
	}
}
