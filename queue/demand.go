package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// GateKind is a kind of gate. A gate is a limited thing that a job needs in order to start, such as a lock.
type GateKind uint8

// These are the kinds of gates, in the order in which a claim checks them. The numbers are stored, so they must not
// change. A claim must check resources last (see CheckDemands). So the number of a new kind must be below GateResource.
const (
	GateUser     GateKind = 1   // limits the running jobs of one user
	GateNode     GateKind = 2   // limits the nodes on which a job may run
	GateLock     GateKind = 3   // limits the running jobs with the same key
	GateRate     GateKind = 4   // limits how many jobs with the same key start per period
	GateResource GateKind = 100 // limits the units of a resource in use; always the last kind
)

// DemandableGateKinds lists the kinds of gates that a job can request.
var DemandableGateKinds = []GateKind{GateNode, GateLock, GateRate, GateResource}

// SharedGateOwner is the owner of gates that all users share. The owner of any other gate is the uid of a user.
const SharedGateOwner = -1 << 31

// Demand is a gate (lock, rate, resource or node) that a job needs in order to start. The quota of the job's
// user is not a Demand.
type Demand struct {
	Kind    GateKind `json:"kind"` // GateNode, GateLock, GateRate or GateResource
	GateKey string   `json:"key"`  // key of the gate; for GateNode, a node's name or LABEL=VALUE
	// Amount is the maximum number of running jobs for a lock, the maximum number of starts per period for a
	// rate, and the number of units that the job takes for a resource. For a node it is 1.
	Amount     int           `json:"n"`
	RatePeriod time.Duration `json:"per,omitempty"` // period of a rate
}

// GateOwner returns the owner of the demanded gate, if a job of the user uid demands it. The owner of nodes, resources,
// and keys that begin with @ is SharedGateOwner.
func (d Demand) GateOwner(uid int) int {
	if !d.DeclaresLimit() || strings.HasPrefix(d.GateKey, "@") {
		return SharedGateOwner
	}
	return uid
}

// DeclaresLimit reports whether the demand itself states the limit, as for a lock or a rate. The limit of a resource
// is a setting of the node.
func (d Demand) DeclaresLimit() bool { return d.Kind == GateLock || d.Kind == GateRate }

// UnitsWhileRunning returns how many units of the gate a job uses while it runs.
func (d Demand) UnitsWhileRunning() int {
	if d.Kind == GateResource {
		return d.Amount
	}
	return 1
}

// MaxDemandAmount is the maximum Amount of one demand, and MaxDemands the maximum number of demands of one job.
const (
	MaxDemandAmount = 10_000
	MaxDemands      = 16
)

// reportBugAdvice is the next step in errors that only a bug in queuectl can cause.
const reportBugAdvice = "this is a bug in queuectl; please report it"

// nounAndField returns a noun for the demanded thing, for messages, and the job field that contains the demand.
func (d Demand) nounAndField() (noun, field string) {
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

// CheckDemands returns an error if a demand is invalid, or if the demands are not in the order in which a claim checks
// them. Resources come last. So a claim reserves units of a resource for a job only if no other gate blocks the job.
func CheckDemands(demands []Demand) error {
	if len(demands) > MaxDemands {
		return InvalidFieldError("resources",
			"too many locks, rate limits, resources and nodes (%d); use at most %d in total",
			len(demands), MaxDemands)
	}
	for i, d := range demands {
		noun, field := d.nounAndField()
		switch {
		case !slices.Contains(DemandableGateKinds, d.Kind):
			return InvalidFieldError("resources", "the job needs %q, which is not a lock, rate limit, resource or node (kind "+
				"%d); %s",
				ClipForMessage(d.GateKey), d.Kind, reportBugAdvice)
		case d.GateKey == "":
			return InvalidFieldError(field, "a %s of the job has no name; give one", noun)
		case !validDemandKey(d):
			byLabel := ""
			if d.Kind == GateNode {
				byLabel = "; a node can also be named by label=value"
			}
			return InvalidFieldError(field, "%q is not a valid name of a %s; use up to 128 letters, digits and . _ @ / -, "+
				"starting with a letter, a digit or @%s", ClipForMessage(d.GateKey), noun, byLabel)
		case d.Amount < 1 || d.Amount > MaxDemandAmount || d.Kind == GateNode && d.Amount != 1:
			return InvalidFieldError(field, "the %s %q has the amount %d; use 1 to %d", noun, ClipForMessage(d.GateKey),
				d.Amount,
				MaxDemandAmount)
		case d.Kind == GateRate && d.RatePeriod < time.Millisecond:
			return InvalidFieldError(field, "the rate limit %q has the period %v; use 1ms or more", ClipForMessage(d.GateKey),
				d.RatePeriod)
		case d.Kind != GateRate && d.RatePeriod >= time.Millisecond:
			return InvalidFieldError(field, "the %s %q has the period %v, but only a rate limit can have one; %s", noun,
				ClipForMessage(d.GateKey), d.RatePeriod, reportBugAdvice)
		case i > 0 && (demands[i-1].Kind > d.Kind || demands[i-1].Kind == d.Kind && demands[i-1].GateKey >= d.GateKey):
			return InvalidFieldError(field, "the job needs the %s %q twice, or its needs are not sorted; %s", noun,
				ClipForMessage(d.GateKey),
				reportBugAdvice)
		}
	}
	return nil
}

// maxNodeKeyBytes is the maximum length of a node demand's key, in bytes. Such a key is a node's name, or
// LABEL=VALUE.
const maxNodeKeyBytes = 512

func validDemandKey(d Demand) bool {
	if d.Kind == GateNode {
		label, value, labelled := strings.Cut(d.GateKey, "=")
		return ValidID(label) && len(d.GateKey) <= maxNodeKeyBytes && (!labelled || !strings.ContainsFunc(value,
			unicode.IsControl))
	}
	return ValidID(strings.TrimPrefix(d.GateKey, "@"))
}

// DemandsSignature returns a text that is the same for two jobs exactly if they need the same number of units of the
// same gates.
func DemandsSignature(demands []Demand) string {
	var b strings.Builder
	for _, d := range demands {
		fmt.Fprintf(&b, "%d %d %s\n", d.Kind, d.UnitsWhileRunning(), d.GateKey)
	}
	return b.String()
}
