package reasons

import (
	"errors"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
)

// If several nodes share a queue, MergeNodeReasons combines the reasons of all nodes. The result is the same, whichever
// node the user asks.
func TestMergeNodeReasonsCombinesAllNodes(t *testing.T) {
	const busy, drains, barred = "all workers are busy", "the service is draining",
		"the job runs only on x, not here"
	says := func(texts ...string) (list []control.WaitReason) {
		for _, text := range texts {
			list = append(list, control.WaitReason{Kind: "node", Text: text})
		}
		return list
	}
	type result = cluster.NodeResult[control.WaitingExplanation]
	from := func(name string, err error, texts ...string) result {
		return result{Node: store.NodeState{Node: store.Node{Name: name}},
			Result: control.WaitingExplanation{Reasons: says(texts...)}, Err: err}
	}
	for name, c := range map[string]struct {
		here   []control.WaitReason
		others []result
		want   []string
	}{
		"alone":         {says(barred), nil, []string{barred}},
		"nothing here":  {nil, []result{from("a", nil, busy)}, nil},
		"nothing there": {says(busy), []result{from("a", nil), from("c", nil, drains)}, nil},
		"all the same": {says(busy, barred), []result{from("a", nil, barred, busy)},
			[]string{"the job runs only on x, which matches no available node", busy}},
		"each its own": {says(busy), []result{from("c", nil, drains), from("a", nil, barred)},
			[]string{"on a: " + barred, "on b: " + busy, "on c: " + drains}},
		"one is silent": {says(busy), []result{from("a", errors.New("away"))},
			[]string{"on a: the node does not answer, so it is unknown why the job does not start there", "on b: " + busy}},
		"one refuses": {says(busy), []result{{Node: store.NodeState{Node: store.Node{Name: "a"}}, Answered: true,
			Err: errors.New("no right")}},
			[]string{"on a: it is unknown why the job does not start there: no right", "on b: " + busy}},
		"not a node": {[]control.WaitReason{{Kind: "service", Text: "Ann is not here"}},
			[]result{{Node: store.NodeState{Node: store.Node{Name: "a"}}, Answered: true,
				Result: control.WaitingExplanation{Reasons: []control.WaitReason{{Kind: "service", Text: "Ann is not here"}}}}},
			[]string{"Ann is not here"}},
		"of many a few": {says(drains), []result{from("c", nil, busy), from("d", nil, busy),
			from("e", nil, busy), from("f", nil, busy)}, []string{"on b: " + drains, "on c, d, e and 1 more: " + busy}},
		"some in addition": {says(busy, drains), []result{from("c", nil, busy)},
			[]string{busy, "on b: " + drains}},
	} {
		list := MergeNodeReasons("b", c.here, c.others)
		same := len(list) == len(c.want)
		for i := range list {
			same = same && list[i].Text == c.want[i]
		}
		if !same {
			t.Errorf("%s: %+v, want %q", name, list, c.want)
		}
	}
}

// Each kind of gate has its own kind of reason and its own text. A gate is a limit that can keep a job from starting,
// such as a lock.
func TestEachGateKindHasReasonTexts(t *testing.T) {
	seen := map[string]queue.GateKind{}
	for _, kind := range append([]queue.GateKind{0, queue.GateUser}, queue.DemandableGateKinds...) {
		r := gateReason(&queue.Job{}, &store.WaitReason{GateKind: kind, GateKeyOrQueueName: "a", MaxUnits: 1})
		if other, known := seen[r.Text]; known || r.Text == "" || r.Kind == "" || r.Kind != GateReasonKind(kind) {
			t.Errorf("gate %d has the kind %q and the text %q, like gate %d", kind, r.Kind, r.Text, other)
		}
		seen[r.Text] = kind
	}
}
