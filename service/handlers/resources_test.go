package handlers

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A job is rejected if no single node meets all of its demands, even if each demand is met by some node.
func TestOneNodeMustMeetAllDemands(t *testing.T) {
	nodes := []store.NodeState{
		{Node: store.Node{Name: "a", ResourceUnits: map[string]int{"disk": 1}}},
		{Node: store.Node{Name: "b", Labels: map[string]string{"kind": "gpu"}, ResourceUnits: map[string]int{"gpu": 4}}},
	}
	known := func() ([]store.NodeState, error) { return nodes, nil }
	on := func(key string) queue.Demand { return queue.Demand{Kind: queue.GateNode, GateKey: key} }
	units := func(key string, n int) queue.Demand {
		return queue.Demand{Kind: queue.GateResource, GateKey: key, Amount: n}
	}
	for _, c := range []struct {
		demands []queue.Demand
		want    string
	}{
		{[]queue.Demand{on("b"), units("gpu", 4)}, ""},
		{[]queue.Demand{on("kind=gpu"), units("gpu", 1)}, ""},
		{[]queue.Demand{on("a"), units("gpu", 2)},
			"the job needs a node that matches a and has gpu=2, but no such node exists"},
		{[]queue.Demand{units("disk", 1), units("gpu", 2)},
			"the job needs a node that has disk=1 and has gpu=2, but no such node exists"},
		{[]queue.Demand{on("b"), units("gpu", 5)}, "the job needs 5 units of the resource gpu, but only 4 exist"},
	} {
		err := new(API).checkDemandsCanBeMet(&queue.Job{Demands: c.demands}, known)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.demands, err, c.want)
		}
	}
}
