package reasons

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
)

// MergeNodeReasons combines the reasons of several nodes why they do not start a job. If one node has no such reason,
// this node can start the job, so MergeNodeReasons returns no reasons.
func MergeNodeReasons(thisNode string, localReasons []control.WaitReason,
	nodeResults []cluster.NodeResult[control.WaitingExplanation]) []control.WaitReason {
	if len(nodeResults) == 0 || len(localReasons) == 0 {
		return localReasons
	}
	var merged []control.WaitReason
	index := map[string]int{} // index in merged, by the reason's content
	all := append(slices.Clone(nodeResults), cluster.NodeResult[control.WaitingExplanation]{
		Node: store.NodeState{Node: store.Node{Name: thisNode}}, Result: control.WaitingExplanation{Reasons: localReasons}})
	// Sort the answers by node name, so that the result is the same on every node.
	slices.SortFunc(all, func(a, b cluster.NodeResult[control.WaitingExplanation]) int {
		return strings.Compare(a.Node.Name, b.Node.Name)
	})
	for i := range all {
		o := &all[i]
		reasons := o.Result.Reasons
		switch {
		case o.Err != nil && o.Answered:
			reasons = []control.WaitReason{newReason("node",
				"it is unknown why the job does not start there: "+o.Err.Error(), "queuectl node list")}
		case o.Err != nil:
			reasons = []control.WaitReason{newReason("node",
				"the node does not answer, so it is unknown why the job does not start there", "queuectl node list")}
		case len(reasons) == 0:
			return nil
		}
		for _, r := range reasons {
			key := fmt.Sprint(r.Kind, "\x00", r.CauseKey, "\x00", r.Text)
			k, known := index[key]
			if !known {
				k = len(merged)
				index[key], merged = k, append(merged, r)
			}
			if !slices.Contains(merged[k].Nodes, o.Node.Name) {
				merged[k].Nodes = append(merged[k].Nodes, o.Node.Name)
			}
		}
	}
	for i := range merged {
		r := &merged[i]
		if len(r.Nodes) == len(all) {
			r.Nodes = nil
			if r.Kind == GateReasonKind(queue.GateNode) { // other reasons may contain text from users
				r.Text = strings.Replace(r.Text, nodeMismatchText, noNodeMatchesText, 1)
			}
			continue
		}
		names := strings.Join(r.Nodes[:min(len(r.Nodes), cluster.MaxNodeNamesInMessage)], ", ")
		if more := len(r.Nodes) - cluster.MaxNodeNamesInMessage; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		r.Text = "on " + names + ": " + r.Text
	}
	return merged
}
