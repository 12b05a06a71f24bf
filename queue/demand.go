package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// GateKind is the kind of thing that a gate limits.
type GateKind uint8

// The kinds of gates, in the order in which a claim checks them. The numbers are stored, so they must not
// change. A new kind needs a number below GateResource, because resources must be last.
const (
	GateUser     GateKind = 1   // limits the running jobs of one user
	GateNode     GateKind = 2   // limits the nodes on which a job may run
	GateLock     GateKind = 3   // limits the running jobs with the same key
	GateRate     GateKind = 4   // limits the starts of jobs with the same key in a period
	GateResource GateKind = 100 // limits the units of a resource in use; always the last kind
)

// demandedKinds lists the kinds that a job may request.
var demandedKinds = []GateKind{GateNode, GateLock, GateRate, GateResource}

// DemandedKinds returns the kinds of gates that a job may request.
func DemandedKinds() []GateKind { return slices.Clone(demandedKinds) }

// SharedOwner is the owner of gates that all users share.
const SharedOwner = -1 << 31

// Demand is a gate that a job needs in order to start, in addition to its user's quota.
type Demand struct {
	Kind GateKind `json:"kind"` // GateNode, GateLock, GateRate or GateResource
	Key  string   `json:"key"`  // key of the gate; for GateNode, a node's name or LABEL=VALUE
	// Amount is, for a lock, the number of concurrent jobs; for a rate, the starts per period; for a
	// resource, the units that the job takes; for a node, 1.
	Amount int           `json:"n"`
	Period time.Duration `json:"per,omitempty"` // period of a rate
}

// Owner returns the owner of the gate, for a job of the user uid. Keys that begin with @, nodes and
// resources belong to SharedOwner.
func (d Demand) Owner(uid int) int {
	if !d.HasLimit() || strings.HasPrefix(d.Key, "@") {
		return SharedOwner
	}
	return uid
}

// HasLimit reports whether the demand also states the limit of its gate, as for a lock or a rate. The limits of
// nodes and resources come from the nodes.
func (d Demand) HasLimit() bool { return d.Kind == GateLock || d.Kind == GateRate }

// Units returns how many units of the gate one job takes.
func (d Demand) Units() int {
	if d.Kind == GateResource {
		return d.Amount
	}
	return 1
}

// MaxDemandAmount limits the Amount of one demand, and MaxDemands limits the demands of one job.
const (
	MaxDemandAmount = 10_000
	MaxDemands      = 16
)

// reportBugAdvice is the advice for demands that no request of a user can contain.
const reportBugAdvice = "this is a bug in queuectl; please report it"

// words returns what users call the thing that a job demands, and the field of a job that contains the
// demand.
func (d Demand) words() (noun, field string) {
	switch d.Kind {
	case GateNode:
		return "node", "on"
	case GateLock:
		return "lock", "lock"
	case GateRate:
		return "rate limit", "rate_limit"
	}
	return "resource", "resources"
}

// CheckDemands returns an error if a gate cannot meet some demand, or if the demands are not in the
// order in which a claim checks gates. Resources come last, because a job reserves units of a
// resource only if no other gate blocks it.
func CheckDemands(list []Demand) error {
	if len(list) > MaxDemands {
		return Invalid("resources", "too many locks, rate limits, resources and nodes (%d); use at most %d in total",
			len(list), MaxDemands)
	}
	for i, d := range list {
		noun, field := d.words()
		switch {
		case !slices.Contains(demandedKinds, d.Kind):
			return Invalid("resources", "the job needs %q, which is not a lock, rate limit, resource or node (kind %d); %s",
				Clip(d.Key), d.Kind, reportBugAdvice)
		case d.Key == "":
			return Invalid(field, "a %s of the job has no name; give one", noun)
		case !validKey(d):
			byLabel := ""
			if d.Kind == GateNode {
				byLabel = "; a node can also be named by label=value"
			}
			return Invalid(field, "%q is not a valid name of a %s; use up to 128 letters, digits and . _ @ / -, "+
				"starting with a letter, a digit or @%s", Clip(d.Key), noun, byLabel)
		case d.Amount < 1 || d.Amount > MaxDemandAmount || d.Kind == GateNode && d.Amount != 1:
			return Invalid(field, "the %s %q has the amount %d; use 1 to %d", noun, Clip(d.Key), d.Amount, MaxDemandAmount)
		case d.Kind == GateRate && d.Period < time.Millisecond:
			return Invalid(field, "the rate limit %q has the period %v; use 1ms or more", Clip(d.Key), d.Period)
		case d.Kind != GateRate && d.Period >= time.Millisecond:
			return Invalid(field, "the %s %q has the period %v, but only a rate limit can have one; %s", noun,
				Clip(d.Key), d.Period, reportBugAdvice)
		case i > 0 && (list[i-1].Kind > d.Kind || list[i-1].Kind == d.Kind && list[i-1].Key >= d.Key):
			return Invalid(field, "the job needs the %s %q twice, or its needs are not sorted; %s", noun, Clip(d.Key),
				reportBugAdvice)
		}
	}
	return nil
}

// maxNodeKeyBytes is the maximum length of a node demand's key, in bytes. The key is a node name, or a
// label and its value.
const maxNodeKeyBytes = 512

// validKey reports whether the demand's key is valid for its kind.
func validKey(d Demand) bool {
	if d.Kind == GateNode {
		label, value, labelled := strings.Cut(d.Key, "=")
		return ValidID(label) && len(d.Key) <= maxNodeKeyBytes && (!labelled || !strings.ContainsFunc(value,
			unicode.IsControl))
	}
	return ValidID(strings.TrimPrefix(d.Key, "@"))
}

// GateSignature returns a text that contains the gates of the demands, and how many units of each a job takes.
// If two jobs have the same text, any room at the gates that suffices for one also suffices for the other.
func GateSignature(list []Demand) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%d %d %s\n", d.Kind, d.Units(), d.Key)
	}
	return b.String()
}
