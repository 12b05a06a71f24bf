package handlers

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// checkDemandsCanBeMet checks what a job needs to start, such as locks, resources or a node. It first applies the
// stored rules of shared limits to these demands. It returns an error if a demand contradicts a rule, or if
// no node can meet all demands.
func (h *API) checkDemandsCanBeMet(j *queue.Job, loadNodes func() ([]store.NodeState, error)) error {
	var demands []*queue.Demand // the demands for a node or for resources of a node
	var nodes []store.NodeState
	for i := range j.Demands {
		d := &j.Demands[i]
		if d.DeclaresLimit() && d.GateOwner(j.UID) == queue.SharedGateOwner {
			if err := h.GateRules.ApplyGateRule(d); err != nil {
				return err
			}
		}
		if d.Kind != queue.GateResource && d.Kind != queue.GateNode {
			continue
		}
		var err error
		if nodes, err = loadNodes(); err != nil {
			return err
		}
		demands = append(demands, d)
		check := checkSomeNodeHasResource
		if d.Kind == queue.GateNode {
			check = checkNodeDemandMatches
		}
		if err := check(d, nodes); err != nil {
			return err
		}
	}
	return checkOneNodeMeetsAll(demands, nodes)
}

// checkOneNodeMeetsAll returns an error if no single node meets all demands. The caller has checked that each
// demand alone is met by some node.
func checkOneNodeMeetsAll(demands []*queue.Demand, nodes []store.NodeState) error {
	if len(demands) < 2 || slices.ContainsFunc(nodes, func(n store.NodeState) bool {
		return !slices.ContainsFunc(demands, func(d *queue.Demand) bool {
			return d.Kind == queue.GateNode && !n.MatchesSelector(d.GateKey) || d.Kind == queue.GateResource &&
				d.Amount > n.ResourceUnits[d.GateKey]
		})
	}) {
		return nil
	}
	var conditions []string
	for _, d := range demands {
		if d.Kind == queue.GateNode {
			conditions = append(conditions, "matches "+queue.ClipForMessage(d.GateKey))
		} else {
			conditions = append(conditions, "has "+d.String())
		}
	}
	return queue.InvalidFieldError("resources",
		"the job needs a node that %s, but no such node exists; see: queuectl node list",
		strings.Join(conditions, " and "))
}

// checkSomeNodeHasResource returns an error if no node has as many units of a resource as the demand needs.
func checkSomeNodeHasResource(d *queue.Demand, nodes []store.NodeState) error {
	all, most := map[string]bool{}, 0
	for i := range nodes {
		for name, n := range nodes[i].ResourceUnits {
			all[name] = true
			if name == d.GateKey {
				most = max(most, n)
			}
		}
	}
	switch {
	case !all[d.GateKey]:
		return queue.InvalidFieldError("resources", "there is no resource %q%s", d.GateKey, cmp.Or(queue.DidYouMean(d.GateKey,
			slices.Sorted(maps.Keys(all))), "; define it in the settings: [resources."+d.GateKey+"] count = N"))
	case d.Amount > most:
		return queue.InvalidFieldError("resources", "the job needs %d units of the resource %s, but only %d exist", d.Amount,
			d.GateKey,
			most)
	}
	return nil
}

// checkNodeDemandMatches returns an error if no node has the name or label that the demand requires.
func checkNodeDemandMatches(d *queue.Demand, nodes []store.NodeState) error {
	var names []string
	for i := range nodes {
		if nodes[i].MatchesSelector(d.GateKey) {
			return nil
		}
		names = append(names, nodes[i].Name)
	}
	if label, _, labelled := strings.Cut(d.GateKey, "="); labelled {
		return queue.InvalidFieldError("on", "no node of this queue has the label %s; see: queuectl node list (a node's "+
			"setting "+
			"node_labels defines its labels)", queue.ClipForMessage(label)+"="+queue.ClipForMessage(d.GateKey[len(label)+1:]))
	}
	return queue.InvalidFieldError("on", "this queue has no node %q%s", queue.ClipForMessage(d.GateKey),
		cmp.Or(queue.DidYouMean(d.GateKey, names), "; see: queuectl node list"))
}
