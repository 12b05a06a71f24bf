package runner

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// Attempts wait in the order of their ranks within each queue, and the queues stay in the order in which they came.
func TestAttemptsWaitInOrderOfRank(t *testing.T) {
	s := &server{}
	for _, start := range []wire.Start{
		{Lease: wire.Lease{Seq: 1}, Queue: "a", Rank: 10},
		{Lease: wire.Lease{Seq: 2}, Queue: "b", Rank: 20},
		{Lease: wire.Lease{Seq: 5}, Queue: "a", Rank: 30},
		{Lease: wire.Lease{Seq: 6}, Queue: "b", Rank: 20},
		{Lease: wire.Lease{Seq: 4}, Queue: "a", Rank: 30}, // before 5, of the same rank
		{Lease: wire.Lease{Seq: 7}, Queue: "b", Rank: -9}, // before all of its queue
		{Lease: wire.Lease{Seq: 3}, Queue: "a", Rank: 20},
	} {
		s.enqueue(&attempt{start: &start})
	}
	var got []int64
	for _, a := range s.waiting {
		got = append(got, a.start.Seq)
	}
	if want := []int64{1, 7, 3, 2, 4, 6, 5}; !slices.Equal(got, want) {
		t.Errorf("they start as %v, want %v", got, want)
	}
}
