package present

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
)

var GateColumns = []string{"KEY", "KIND", "USED", "LIMIT", "JOBS", "OWNER", "SET BY"}

// GateRow formats a gate as a row of the table.
func GateRow(g *control.GateView) []string {
	most, jobs, whose, rule := fmt.Sprint(g.Limit), "-", "shared", "gate set"
	if g.Rate != "" {
		most = g.Rate
	}
	if g.Jobs != nil {
		jobs = fmt.Sprint(*g.Jobs)
	}
	if g.User != "" {
		whose = g.User
	}
	if g.Node != "" {
		whose = "node " + g.Node
	}
	switch {
	case g.Kind == "resource":
		rule = "settings"
	case !g.Set && g.User == "":
		rule = "first job"
	case !g.Set:
		rule = "newest job"
	}
	return []string{g.Key, g.Kind, fmt.Sprint(g.Usage), most, jobs, whose, rule}
}

var NodeColumns = []string{"NODE", "STATE", "WORKERS", "RUNNING", "LAST SEEN", "LABELS", "RESOURCES", "VERSION"}

// NodeRow formats a node as a row of the table.
func NodeRow(n *control.NodeView) []string {
	state := n.State
	if n.This {
		state += " (this node)"
	}
	return []string{n.Name, state, fmt.Sprint(n.Workers), fmt.Sprint(n.Running), agoOf(n.LastHeartbeat, time.Now()),
		pairs(n.Labels), pairs(n.Resources), n.Version}
}

// pairs formats the entries of a map in order, or "-" if it is empty.
func pairs[V any](of map[string]V) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, fmt.Sprintf("%s=%v", name, of[name]))
	}
	if list == nil {
		return "-"
	}
	return strings.Join(list, " ")
}
