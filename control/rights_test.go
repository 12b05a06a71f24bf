package control

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Each method needs the rights that the documentation names, for the caller's own jobs and for
// other users' jobs.
func TestRightsAreTheContracts(t *testing.T) {
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
	order := []Right{None, Read, Submit, Operate, Admin}
	for line := range strings.Lines(want) {
		f := strings.Fields(line)
		for have, right := range order {
			for i, own := range []bool{true, false} {
				may := have >= slices.Index(order, Right(f[i+1]))
				if got := right.Covers(RequiredRight(f[0], own)); got != may {
					t.Errorf("%s of one's own job (%t) with %s: got %t, want %t", f[0], own, right, got, may)
				}
			}
		}
		for _, wrong := range []Right{"", "root", "Admin"} {
			if wrong.Covers(RequiredRight(f[0], true)) {
				t.Errorf("%s is let through with the right %q", f[0], wrong)
			}
		}
	}
	if Admin.Covers(RequiredRight("no.such", true)) {
		t.Error("a method that there is not is let through")
	}
}

// How much of a job a user sees depends on the user's right and on the job's owner.
func TestHideFollowsVisibility(t *testing.T) {
	for _, c := range []struct {
		have        Right
		own, others Visibility
	}{{None, VisibleOutline, VisibleOutline}, {Read, VisibleOutline, VisibleOutline},
		{Submit, VisibleWhole, VisibleOutline}, {Operate, VisibleWhole, VisibleInside}, {Admin, VisibleWhole, VisibleWhole}} {
		if got := [2]Visibility{VisibilityFor(c.have, true), VisibilityFor(c.have, false)}; got != [2]Visibility{c.own,
			c.others} {
			t.Errorf("%s: got %v, want %v %v", c.have, got, c.own, c.others)
		}
	}
}

// The hidden parts of a job appear in none of its fields.
func TestHidden(t *testing.T) {
	canary := "c4n4ry"
	j := queue.Job{ID: "x", State: queue.Dead, ExitCode: 127, Reason: queue.ReasonNotFound,
		Error: "cannot start " + canary, MaxAttempts: 1, Execution: queue.Execution{
			Command: canary, Env: []string{"KEY=v4lue"}, Cwd: "/tmp", Shell: canary, Stdin: canary, StdinFile: "/" + canary,
			Labels: map[string]string{"k": "v"}}}
	detail := func(j queue.Job) JobDetail {
		return JobDetail{Job: ViewJob(&j, View{User: "me"}), Output: canary, Stderr: canary,
			Spec: queue.SpecOf(&j).GivenFields(), History: []Attempt{ViewAttempt(&queue.Attempt{N: 1, ExitCode: 127,
				Error: "cannot start " + canary})}}
	}
	argv := j
	argv.Command, argv.Argv = "", []string{canary}
	for _, j := range []queue.Job{j, argv} {
		whole := detail(j)
		whole.Hide(VisibleWhole)
		if !reflect.DeepEqual(whole, detail(j)) {
			t.Errorf("the whole: %+v", whole)
		}
		inside, outline := detail(j), detail(j)
		inside.Hide(VisibleInside)
		text := fmt.Sprintf("%+v", inside)
		if strings.Contains(text, "v4lue") || strings.Count(text, "KEY") != 1 || !strings.Contains(text, canary) ||
			!slices.Equal(inside.Hidden, []string{"env"}) {
			t.Errorf("inside: %s", text)
		}
		outline.Hide(VisibleOutline)
		text = fmt.Sprintf("%+v %v", outline, *outline.History[0].Error)
		if strings.Contains(text+*outline.Error, canary) || strings.Contains(text, "KEY") ||
			!slices.Equal(outline.Hidden, []string{"command", "env", "output"}) {
			t.Errorf("the outline: %s, %s", text, *outline.Error)
		}
		if *outline.Error != "exit code 127" || outline.Labels["k"] != "v" || outline.Spec["cwd"] != "/tmp" ||
			outline.ID != "x" {
			t.Errorf("the outline lacks what is to be seen: %s", text)
		}
	}
}

// A peer has the strongest of the rights of its user, its group and its supplementary groups.
func TestAccessGoesByUserAndGroups(t *testing.T) {
	a := Access{Users: map[int]Right{1: Read, 2: Admin, 3: Submit},
		Groups: map[int]Right{10: Submit, 11: Operate, 65534: Admin}}
	for _, c := range []struct {
		peer Peer
		want Right
	}{
		{Peer{UID: 1, GID: 1}, Read}, {Peer{UID: 1, GID: 10}, Submit},
		{Peer{UID: 1, GID: 1, Groups: []int{5, 10, 11, 10}}, Operate},
		{Peer{UID: 2, GID: 10}, Admin}, {Peer{UID: 9, GID: 9}, None}, {Peer{UID: 9, GID: -1, Groups: []int{11}}, Operate},
		{Peer{UID: 10, GID: 1}, None},
	} {
		if got := a.RightOf(&c.peer); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.peer, got, c.want)
		}
	}
	empty := Access{}
	if got := empty.RightOf(&Peer{UID: 1, GID: 10, Groups: []int{11}}); got != None {
		t.Errorf("by an empty [access]: %s", got)
	}
}
