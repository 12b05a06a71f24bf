package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// GateKind is what a gate bounds.
type GateKind uint8

// The kinds of gates, in the order in which they are looked at. Their numbers are stored; a new
// one comes between.
const (
	GateUser     GateKind = 1   // how many jobs of one user run
	GateNode     GateKind = 2   // whether a job may run on the node
	GateLock     GateKind = 3   // how many jobs that name a key run
	GateRate     GateKind = 4   // how many jobs that name a key start in a period
	GateResource GateKind = 100 // how many units of a resource are in use; the last
)

// demanded are those that a job may name.
var demanded = []GateKind{GateNode, GateLock, GateRate, GateResource}

// DemandedKinds are the kinds of gates that a job may name.
func DemandedKinds() []GateKind { return slices.Clone(demanded) }

// Everybody is the owner of what belongs to no user alone.
const Everybody = -1 << 31

// Demand is a gate that a job needs room at to start, beside its user's quota.
type Demand struct {
	Kind GateKind      `json:"kind"`          // node, lock, rate or resource
	Key  string        `json:"key"`           // of a node: its name, or a label of it and its value, label=value
	N    int           `json:"n"`             // of a lock: jobs at once; of a rate: starts in a period; of a resource: units that the job takes; of a node 1
	Per  time.Duration `json:"per,omitempty"` // the period of a rate
}

// Owner is whose gate it is, of a job of this user: a key that begins with @, a node and a
// resource are everybody's.
func (d Demand) Owner(uid int) int {
	if !d.Ruled() || strings.HasPrefix(d.Key, "@") {
		return Everybody
	}
	return uid
}

// Ruled reports whether the demand says how much room its gate has: the jobs that name a lock or a
// rate do, and the node does of itself and its resources.
func (d Demand) Ruled() bool { return d.Kind == GateLock || d.Kind == GateRate }

// Units is how much of the gate's room one job takes.
func (d Demand) Units() int {
	if d.Kind == GateResource {
		return d.N
	}
	return 1
}

// MaxDemand is how many jobs, starts or units a demand may name, and MaxDemands how many demands
// a job may make.
const (
	MaxDemand  = 10_000
	MaxDemands = 16
)

// CheckDemands refuses demands that no gate could meet, or that are not in the order in which
// their gates are looked at: by kind, resources last, since a job holds its place at a resource only
// if nothing else holds it back.
func CheckDemands(list []Demand) error {
	if len(list) > MaxDemands {
		return Invalid("demands", "too many entries (%d); the maximum is %d", len(list), MaxDemands)
	}
	for i, d := range list {
		switch {
		case !slices.Contains(demanded, d.Kind) || d.Key == "":
			return Invalid("demands", "a demand lacks a valid kind or a key")
		case !validKey(d):
			return Invalid("demands", "%q is not a valid key; use up to 128 letters, digits and . _ @ / -, starting with a letter, a digit or @ (for a node, label=value is allowed too)", Clip(d.Key))
		case d.N < 1 || d.N > MaxDemand || d.Kind == GateNode && d.N != 1:
			return Invalid("demands", "the demand %q has the amount %d; use 1 to %d", Clip(d.Key), d.N, MaxDemand)
		case d.Kind == GateRate && d.Per < time.Millisecond:
			return Invalid("demands", "the rate %q has the period %v; use 1ms or more", Clip(d.Key), d.Per)
		case d.Kind != GateRate && d.Per >= time.Millisecond:
			return Invalid("demands", "the demand %q has the period %v; only a rate can have a period", Clip(d.Key), d.Per)
		case i > 0 && (list[i-1].Kind > d.Kind || list[i-1].Kind == d.Kind && list[i-1].Key >= d.Key):
			return Invalid("demands", "the demand %q is listed twice, or is not sorted by kind and key", Clip(d.Key))
		}
	}
	return nil
}

// maxNodeKey is how many bytes a node demand's key may have. The key is a machine's name, or a label and its value.
const maxNodeKey = 512

// validKey reports whether a demand's key is one that its kind may have.
func validKey(d Demand) bool {
	if d.Kind == GateNode {
		label, value, labelled := strings.Cut(d.Key, "=")
		return ValidID(label) && len(d.Key) <= maxNodeKey && (!labelled || !strings.ContainsFunc(value, unicode.IsControl))
	}
	return ValidID(strings.TrimPrefix(d.Key, "@"))
}

// DemandsText names the gates of demands, and how much of each is taken: jobs with the same text
// are alike to all of them.
func DemandsText(list []Demand) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%d %d %s\n", d.Kind, d.Units(), d.Key)
	}
	return b.String()
}
