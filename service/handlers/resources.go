package handlers

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// checkDemands checks what a job needs to start, such as locks, resources or a node. It first applies the
// stored rules of shared limits to these demands. It returns an error if a demand contradicts a rule, or if
// no node can meet all demands.
func (h *API) checkDemands(j *queue.Job, loadNodes func() ([]store.NodeState, error)) error {
	var demands []*queue.Demand // the demands for a node or for resources of a node
	var nodes []store.NodeState
	for i := range j.Demands {
		d := &j.Demands[i]
		if d.HasLimit() && d.Owner(j.UID) == queue.SharedOwner {
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
		check := checkResource
		if d.Kind == queue.GateNode {
			check = checkNode
		}
		if err := check(d, nodes); err != nil {
			return err
		}
	}
	return checkAllOnOneNode(demands, nodes)
}

// checkAllOnOneNode returns an error if no single node meets all demands. The caller has checked that each
// demand alone is met by some node.
func checkAllOnOneNode(demands []*queue.Demand, nodes []store.NodeState) error {
	if len(demands) < 2 || slices.ContainsFunc(nodes, func(n store.NodeState) bool {
		return !slices.ContainsFunc(demands, func(d *queue.Demand) bool {
			return d.Kind == queue.GateNode && !n.MatchesSelector(d.Key) || d.Kind == queue.GateResource &&
				d.Amount > n.Resources[d.Key]
		})
	}) {
		return nil
	}
	var conditions []string
	for _, d := range demands {
		if d.Kind == queue.GateNode {
			conditions = append(conditions, "matches "+queue.Clip(d.Key))
		} else {
			conditions = append(conditions, "has "+d.String())
		}
	}
	return queue.Invalid("resources", "the job needs a node that %s, but no such node exists; see: queuectl node list",
		strings.Join(conditions, " and "))
}

// checkResource returns an error if no node has as many units of a resource as the demand needs.
func checkResource(d *queue.Demand, nodes []store.NodeState) error {
	all, most := map[string]bool{}, 0
	for i := range nodes {
		for name, n := range nodes[i].Resources {
			all[name] = true
			if name == d.Key {
				most = max(most, n)
			}
		}
	}
	switch {
	case !all[d.Key]:
		return queue.Invalid("resources", "there is no resource %q%s", d.Key, cmp.Or(queue.DidYouMean(d.Key,
			slices.Sorted(maps.Keys(all))), "; define it in the settings: [resources."+d.Key+"] count = N"))
	case d.Amount > most:
		return queue.Invalid("resources", "the job needs %d units of the resource %s, but only %d exist", d.Amount, d.Key,
			most)
	}
	return nil
}

// checkNode returns an error if no node has the name or label that the demand requires.
func checkNode(d *queue.Demand, nodes []store.NodeState) error {
	var names []string
	for i := range nodes {
		if nodes[i].MatchesSelector(d.Key) {
			return nil
		}
		names = append(names, nodes[i].Name)
	}
	if label, _, labelled := strings.Cut(d.Key, "="); labelled {
		return queue.Invalid("on", "no node of this queue has the label %s; see: queuectl node list (a node's setting "+
			"node_labels defines its labels)", queue.Clip(label)+"="+queue.Clip(d.Key[len(label)+1:]))
	}
	return queue.Invalid("on", "this queue has no node %q%s", queue.Clip(d.Key),
		cmp.Or(queue.DidYouMean(d.Key, names), "; see: queuectl node list"))
}
