package service

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
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

// A queue has no default for what runs: whoever may only set queues would else choose what others' jobs run.
func TestNoDefaultForWhatRuns(t *testing.T) {
	for _, f := range queue.Fields() {
		value := map[queue.Kind]string{queue.KindList: `["x"]`, queue.KindMap: `{"A":"/x"}`, queue.KindInteger: "1", queue.KindNumber: "1", queue.KindBool: "true", queue.KindCodes: "[1]"}[f.Kind]
		_, err := mergeDefaults("", json.RawMessage(`{"`+f.Name+`":`+cmp.Or(value, `"x"`)+`}`), queue.Defaults{})
		refused := err != nil && strings.Contains(err.Error(), "cannot be a queue default")
		bounds := slices.Contains([]string{"mask_secrets", "no_new_privileges"}, f.Name) // it takes from what runs, and gives nothing
		runs := slices.Contains(whatRuns, f.Name) && !bounds || slices.Contains([]string{"user", "tty", "id", "queue", "env_pass", "depends_on"}, f.Name)
		if runs != refused {
			t.Errorf("%s: refused as a default: %v, %v", f.Name, refused, err)
		}
	}
}
