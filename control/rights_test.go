package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Each method needs the rights that the documentation says: one right for the caller's own jobs, and one for other
// users' jobs.
func TestMethodsNeedDocumentedRights(t *testing.T) {
	want := `hello read read
whoami none none
enqueue submit admin
enqueue.batch submit admin
show read read
list read read
status read read
screen read read
wait read read
logs submit operate
attach submit admin
cancel submit operate
retry submit operate
hold submit operate
release submit operate
pause submit operate
resume submit operate
requeue submit operate
kill submit operate
edit submit operate
rm submit operate
dequeue submit operate
clear operate operate
dlq.list read read
dlq.retry submit operate
dlq.clear operate operate
queue.list read read
queue.set operate operate
queue.pause operate operate
queue.resume operate operate
queue.rm operate operate
tree read read
why read read
simulate read read
stats read read
worker.start operate operate
worker.stop operate operate
worker.scale operate operate
worker.list read read
schedule.add submit admin
schedule.list read read
schedule.show read read
schedule.rm submit operate
schedule.pause submit operate
schedule.resume submit operate
schedule.run submit operate
gate.list read read
gate.set operate operate
node.list read read
node.drain admin admin
node.rm admin admin
hook.test operate operate
web.start admin admin
web.stop admin admin
web.open read read
config.list read read
config.get read read
config.set admin admin
config.unset admin admin
events read read
cleanup admin admin
backup admin admin
doctor admin admin
drain admin admin
reload admin admin
service.stop admin admin
`
	var got strings.Builder
	for _, m := range Methods() {
		fmt.Fprintln(&got, m.Name, RequiredRight(m.Name, true), RequiredRight(m.Name, false))
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	order := []Right{RightNone, RightRead, RightSubmit, RightOperate, RightAdmin}
	for line := range strings.Lines(want) {
		f := strings.Fields(line)
		for have, right := range order {
			for i, own := range []bool{true, false} {
				may := have >= slices.Index(order, Right(f[i+1]))
				if got := right.Covers(RequiredRight(f[0], own)); got != may {
					t.Errorf("%s of the user's own job (%t) with the right %s: allowed is %t, want %t", f[0], own, right, got, may)
				}
			}
		}
		for _, wrong := range []Right{"", "root", "Admin"} {
			if wrong.Covers(RequiredRight(f[0], true)) {
				t.Errorf("%s is allowed with the right %q", f[0], wrong)
			}
		}
	}
	if RightAdmin.Covers(RequiredRight("no.such", true)) {
		t.Error("an unknown method is allowed")
	}
}

// A peer has the strongest of the rights that its user, its group and its supplementary groups have.
func TestPeerHasStrongestRightOfUserAndGroups(t *testing.T) {
	a := Access{RightsByUID: map[int]Right{1: RightRead, 2: RightAdmin, 3: RightSubmit},
		RightsByGID: map[int]Right{10: RightSubmit, 11: RightOperate, 65534: RightAdmin}}
	for _, c := range []struct {
		peer Peer
		want Right
	}{
		{Peer{UID: 1, GID: 1}, RightRead}, {Peer{UID: 1, GID: 10}, RightSubmit},
		{Peer{UID: 1, GID: 1, Groups: []int{5, 10, 11, 10}}, RightOperate},
		{Peer{UID: 2, GID: 10}, RightAdmin}, {Peer{UID: 9, GID: 9}, RightNone}, {Peer{UID: 9, GID: -1, Groups: []int{11}},
			RightOperate},
		{Peer{UID: 10, GID: 1}, RightNone},
	} {
		if got := a.StrongestRightOf(&c.peer); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.peer, got, c.want)
		}
	}
	empty := Access{}
	if got := empty.StrongestRightOf(&Peer{UID: 1, GID: 10, Groups: []int{11}}); got != RightNone {
		t.Errorf("with an empty [access]: %s", got)
	}
}
