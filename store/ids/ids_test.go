package ids

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Leaps over numbers that are taken as ids get longer, up to a limit. A leap never leads to an earlier number
// or beyond the last number.
func TestLeapsOverTakenNumbersAreBounded(t *testing.T) {
	n := idAllocator{nextNumber: 1, rng: rand.New(rand.NewPCG(1, 2)), nextLeapMaxDistance: firstLeapMaxDistance}
	for range 10 * maxSkipsBeforeLeap {
		before := n.nextNumber
		if n.skipTakenNumber(); n.nextNumber <= before || n.nextNumber > maxSeq || n.nextLeapMaxDistance > maxLeapDistance {
			t.Fatalf("from %d to %d in a window of %d", before, n.nextNumber, n.nextLeapMaxDistance)
		}
	}
}

// When all numbers are used up, no job gets a number above the maximum.
func TestAssignFailsAboveHighestSeq(t *testing.T) {
	free := func([]string) (map[string]bool, error) { return nil, nil }
	rng := rand.New(rand.NewPCG(1, 2))
	if _, seqs, _, err := AssignIDs(make([]queue.Job, 1), maxSeq-1, rng, free); err != nil || seqs[0] != maxSeq-1 {
		t.Errorf("the last number: got %v, %v", seqs, err)
	}
	if _, _, _, err := AssignIDs(make([]queue.Job, 2), maxSeq-1, rng, free); err == nil ||
		!strings.Contains(err.Error(), "numbers are used up") {
		t.Errorf("beyond the last number: %v", err)
	}
}
