package present

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
)

// GateHeadings lists the headings of the list of gates: the locks, rate limits and resources that jobs use.
var GateHeadings = []string{"KEY", "KIND", "USED", "LIMIT", "JOBS", "OWNER", "SET BY"}

// GateRow returns the row of a lock, rate limit or resource in the list of gates.
func GateRow(g *control.GateView) []string {
	owner, rule := cmp.Or(g.KeyOwner, "shared"), "gate set"
	if g.Node != "" {
		owner = "node " + g.Node
	}
	switch {
	case g.Kind == "resource":
		rule = "settings"
	case !g.RuleIsExplicit && g.KeyOwner == "":
		rule = "first job"
	case !g.RuleIsExplicit:
		rule = "newest job"
	}
	return []string{g.Key, g.Kind, fmt.Sprint(g.LimitUsage), cmp.Or(g.Rate, fmt.Sprint(g.Limit)),
		DashIfNil(g.UnfinishedJobs), owner,
		rule}
}

// NodeHeadings lists the headings of the list of nodes.
var NodeHeadings = []string{"NODE", "STATE", "WORKERS", "RUNNING", "LAST SEEN", "LABELS", "RESOURCES", "VERSION"}

// NodeRow returns the row of a node in the list of nodes.
func NodeRow(n *control.NodeView) []string {
	state := n.State
	if n.SentThisAnswer {
		state += " (this node)"
	}
	return []string{n.Name, state, fmt.Sprint(n.WorkerCount), fmt.Sprint(n.RunningJobs),
		agoText(n.LastHeartbeat, time.Now()),
		DashIfEmpty(formatNameValues(n.Labels, " ")), DashIfEmpty(formatNameValues(n.Resources, " ")), n.Version}
}

// formatNameValues formats the entries of a map like NAME=VALUE, in order.
func formatNameValues[V any](valuesByName map[string]V, separator string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(valuesByName)) {
		texts = append(texts, fmt.Sprintf("%s=%v", name, valuesByName[name]))
	}
	return strings.Join(texts, separator)
}
