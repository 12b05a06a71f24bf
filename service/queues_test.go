package service

import (
	"context"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// looking counts how often all queues are looked at.
type looking struct {
	store.Store
	looks int
}

func (l *looking) Queues(ctx context.Context) ([]store.QueueState, error) {
	l.looks++
	return l.Store.Queues(ctx)
}

// What queues a request begins is told, however many they are, and for it the others are looked at once
// at most.
func TestNewQueuesAreLookedUpOnce(t *testing.T) {
	s := stored(t)
	l := &looking{Store: s.store}
	s.store = l
	if err := l.SetQueue(t.Context(), "images", store.QueueRule{Weight: 2}); err != nil {
		t.Fatal(err)
	}
	for _, many := range []int{1, maxNear, maxNear + 1} {
		r := store.Receipt{Begun: []string{"image"}}
		for i := range many - 1 {
			r.Begun = append(r.Begun, fmt.Sprint("of-another-kind-", i))
		}
		l.looks = 0
		got := s.newQueues(by(t, 7, control.Submit), &r)
		near := map[bool]string{true: "images"}[many <= maxNear]
		if len(got) != many || got[0] != (control.NewQueue{Queue: "image", Near: near}) || l.looks > 1 {
			t.Errorf("of %d: got %v after %d looks", many, got, l.looks)
		}
	}
}
