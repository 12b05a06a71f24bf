package handlers

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
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/store"
)

// queueReadCountingStore counts how often the list of all queues is read.
type queueReadCountingStore struct {
	store.Store
	queueReadCount int
}

// Queues implements store.Store.
func (l *queueReadCountingStore) Queues(ctx context.Context) ([]store.QueueState, error) {
	l.queueReadCount++
	return l.Store.Queues(ctx)
}

// The reply names all queues that a request has created. For each new queue, it names an existing queue with a similar
// name. To find these names, the service reads the list of queues only once. If the request has created too many
// queues, the service suggests no names and does not read the list.
func TestNewQueueSuggestionsReadQueuesOnce(t *testing.T) {
	l := &queueReadCountingStore{Store: openSQLiteStore(t)}
	s := newTestAPI(t, testAPIOptions{store: l})
	if err := l.SetQueue(t.Context(), "images", store.QueueRule{Weight: 2}); err != nil {
		t.Fatal(err)
	}
	for _, many := range []int{1, maxNewQueuesWithSuggestions, maxNewQueuesWithSuggestions + 1} {
		r := store.Receipt{CreatedQueues: []string{"image"}}
		for i := range many - 1 {
			r.CreatedQueues = append(r.CreatedQueues, fmt.Sprint("of-another-kind-", i))
		}
		l.queueReadCount = 0
		got := s.describeNewQueues(contextAsPeer(t, 7, control.RightSubmit), &r)
		near := map[bool]string{true: "images"}[many <= maxNewQueuesWithSuggestions]
		if len(got) != many || got[0] != (control.CreatedQueue{Queue: "image", SimilarQueue: near}) || l.queueReadCount > 1 {
			t.Errorf("of %d: got %v after %d looks", many, got, l.queueReadCount)
		}
	}
}

// A queue cannot define defaults for what a job executes. Otherwise a user with only the right to configure queues
// could choose what other users' jobs execute.
func TestQueueDefaultsExcludeCommand(t *testing.T) {
	for _, f := range queue.SpecFields() {
		value := map[queue.FieldKind]string{queue.KindList: `["x"]`, queue.KindMap: `{"A":"/x"}`, queue.KindInteger: "1",
			queue.KindNumber: "1", queue.KindBool: "true", queue.KindExitCodes: "[1]"}[f.Kind]
		_, _, err := mergeJobDefaults("", json.RawMessage(`{"`+f.Name+`":`+cmp.Or(value, `"x"`)+`}`), queue.JobDefaults{})
		refused := err != nil && strings.Contains(err.Error(), "cannot be a queue default")
		// These fields only restrict what a job can do, so a default is allowed.
		bounds := slices.Contains([]string{"mask_secrets", "no_new_privileges"}, f.Name)
		runs := slices.Contains(access.JobExecutionFields, f.Name) && !bounds ||
			slices.Contains([]string{"user", "tty", "id", "queue", "env_pass", "depends_on"}, f.Name)
		if runs != refused {
			t.Errorf("%s: refused as a default: %v, %v", f.Name, refused, err)
		}
	}
}
