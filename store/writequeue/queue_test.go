package writequeue

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// testOp is an operation with a name.
type testOp struct {
	owner OpOwner
	name  string
}

func (o *testOp) Owner() OpOwner { return o.owner }

// addOperations adds operations to a queue. Each word in opSpecs describes one operation: the uid, the class (u, p or
// n) and the name, for example 1p-a.
func addOperations(t *testing.T, q *Queue[*testOp], opSpecs string) (ops []*testOp) {
	t.Helper()
	for word := range strings.FieldsSeq(opSpecs) {
		o := &testOp{owner: OpOwner{UID: int(word[0] - '0'), Class: PriorityClass(strings.IndexByte("upn", word[1]))},
			name: word}
		if err := q.Add(o); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, o)
	}
	return ops
}

func operationNames(ops []*testOp) string {
	var list []string
	for _, o := range ops {
		list = append(list, o.name)
	}
	return strings.Join(list, " ")
}

// TakeGroup returns all urgent operations first. Then users take turns, and the operations of each
// user come in order of class.
func TestTakeGroupAlternatesUsers(t *testing.T) {
	for _, c := range []struct{ added, want string }{
		{"1n-a 1p-b 1u-c 2u-d", "1u-c 2u-d 1p-b 1n-a"},
		{"1p-a 1p-b 1n-c 2n-d 2n-e 3u-f", "3u-f 1p-a 1n-c 2n-d 1p-b 2n-e"},
	} {
		var q Queue[*testOp]
		addOperations(t, &q, c.added)
		if got := operationNames(q.TakeGroup()); got != c.want || q.Len() != 0 {
			t.Errorf("of %s, the group is %s, and %d operations remain; want %s", c.added, got, q.Len(), c.want)
		}
	}
}

// Among the operations of several users, that of the most recently served user comes last. An operation of a user whose
// last operation was slow comes even later.
func TestTakeGroupServesRecentAndSlowUsersLast(t *testing.T) {
	var q Queue[*testOp]
	ops := addOperations(t, &q, "1p-a 2p-b 3p-c")
	q.RecordServedOp(ops[0], MinSlowOpTime)
	q.RecordServedOp(ops[1], MinSlowOpTime-1)
	if got, want := operationNames(q.TakeGroup()), "3p-c 2p-b 1p-a"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !q.IsOfSlowUser(ops[0]) || q.IsOfSlowUser(ops[1]) {
		t.Errorf("user 1 is slow: %t, user 2 is slow: %t", q.IsOfSlowUser(ops[0]), q.IsOfSlowUser(ops[1]))
	}
}

// An operation that was passed to SetNextSolo comes first, unless it was withdrawn with Withdraw. Operations that
// were put back come before all others of their class.
func TestPutBackOperationsAreTakenFirst(t *testing.T) {
	var q Queue[*testOp]
	addOperations(t, &q, "1p-a 1p-b 1p-c")
	group := q.TakeGroup()
	addOperations(t, &q, "1p-d 1n-e")
	q.PutBack(group[1:])
	q.SetNextSolo(group[2])
	if got := operationNames(q.TakeGroup()); got != "1p-c" {
		t.Errorf("got %s, want 1p-c", got)
	}
	q.SetNextSolo(group[1])
	q.Withdraw(group[1])
	if got, want := operationNames(q.TakeGroup()), "1p-d 1n-e"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The queue refuses operations above its limits, except urgent ones. TakeGroup returns at most MaxGroupOps operations.
func TestQueueRefusesTooManyOperations(t *testing.T) {
	var q Queue[*testOp]
	fill := func(c PriorityClass, n int) (added int, err error) {
		for added < n && err == nil {
			if err = q.Add(&testOp{owner: OpOwner{Class: c}, name: fmt.Sprint(added)}); err == nil {
				added++
			}
		}
		return added, err
	}
	for _, c := range []struct {
		class PriorityClass
		room  int
	}{{NormalClass, maxWaitingOps - slotsReservedForPrompt}, {PromptClass, slotsReservedForPrompt}} {
		var refused *queue.Error
		if n, err := fill(c.class, maxWaitingOps+1); n != c.room || !errors.As(err, &refused) {
			t.Errorf("class %d: the queue took %d operations, then %v; want %d", c.class, n, err, c.room)
		}
	}
	if _, err := fill(UrgentClass, 1); err != nil {
		t.Errorf("an urgent operation: %v", err)
	}
	if n := len(q.TakeGroup()); n != MaxGroupOps {
		t.Errorf("a group has %d operations, want %d", n, MaxGroupOps)
	}
}
