package settings

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// GateRules caches the rules of shared keys. A shared key is the name of a lock or a rate that the jobs of all users
// share. The rule of a lock sets how many jobs may hold the lock at the same time. The rule of a rate sets how many
// jobs may start in a period.
type GateRules struct {
	Store store.Store

	// ruleBySharedGate holds the rules of the shared keys. Each map key is a demand in which only Kind and GateKey are
	// set.
	ruleBySharedGate atomic.Pointer[map[queue.Demand]queue.Demand]
}

// LoadGateRules reads the rules of all shared keys from the store.
func (r *GateRules) LoadGateRules(ctx context.Context) error {
	rules := map[queue.Demand]queue.Demand{}
	err := VisitSharedGates(ctx, r.Store, store.GateState{}, func(g store.GateState) {
		if g.HasStoredRule {
			rules[queue.Demand{Kind: g.Kind, GateKey: g.GateKey}] = g.Demand
		}
	})
	if err == nil {
		r.ruleBySharedGate.Store(&rules)
	}
	return err
}

// VisitSharedGates calls visit for every lock, rate and resource that all users share, in the store's order. It begins
// with the gate after afterGate.
func VisitSharedGates(ctx context.Context, s store.Gates, afterGate store.GateState,
	visit func(store.GateState)) error {
	for {
		page, err := s.Gates(ctx, queue.SharedGateOwner, afterGate)
		if err != nil {
			return err
		}
		for _, g := range page {
			visit(g)
		}
		if len(page) < store.MaxGatesPerPage {
			return nil
		}
		afterGate = page[len(page)-1]
	}
}

// ApplyGateRule sets the limit in a job's demand for a lock or rate to the limit in the stored rule. It returns an
// error if the demand itself sets a different limit. See docs/decisions/0018.
func (r *GateRules) ApplyGateRule(d *queue.Demand) error {
	field, flag := "lock", "--lock N"
	if d.Kind == queue.GateRate {
		field, flag = "rate_limit", "--rate N/PERIOD"
	}
	rule, set := (*r.ruleBySharedGate.Load())[queue.Demand{Kind: d.Kind, GateKey: d.GateKey}]
	if !set && d.Kind == queue.GateLock {
		rule = queue.Demand{Kind: d.Kind, GateKey: d.GateKey, Amount: 1}
	}
	switch {
	case d.Amount == 0 && rule.Amount != 0:
		*d = rule
	case rule.Amount == 0:
		return queue.InvalidFieldError(
			field, `the shared key %s has no limit; a user with the right "operate" can set one: queuectl gate set %s %s`,
			d.GateKey,
			d.GateKey, flag)
	case *d != rule:
		most := strconv.Itoa(rule.Amount)
		if d.Kind == queue.GateRate {
			most += "/" + queue.FormatRatePeriod(rule.RatePeriod)
		}
		return queue.InvalidFieldError(field,
			`the limit of the shared key %s is %s; leave the number out, or ask a user with the `+
				`right "operate" to change it: queuectl gate set %s %s`, d.GateKey, most, d.GateKey, flag)
	}
	return nil
}
