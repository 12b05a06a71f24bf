package memstore

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// SetGateRule stores the limit of a lock or a rate whose key users share.
func (s *Store) SetGateRule(ctx context.Context, rule queue.Demand) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		g := gate{queue.SharedGateOwner, rule.Kind, rule.GateKey}
		checked := rule
		if rule.Amount == 0 {
			checked.Amount = 1
			if rule.Kind == queue.GateRate {
				checked.RatePeriod = time.Second
			}
		}
		if err := queue.CheckDemands([]queue.Demand{checked}); err != nil {
			return err
		}
		switch {
		case !rule.DeclaresLimit() || !strings.HasPrefix(rule.GateKey, "@"):
			return queue.InvalidFieldError("key", "%q is not a shared key", rule.GateKey)
		case rule.Amount == 0:
			delete(s.fixedGates, g)
			return nil
		case len(s.fixedGates) >= store.MaxGatesPerPage && !s.fixedGates[g]:
			return queue.Errorf(queue.CodeQueueFull, "%d shared keys already have limits, the maximum", len(s.fixedGates))
		}
		s.deleteExpiredRateStarts(g, now)
		s.gateRules[g], s.fixedGates[g] = rule, true
		return nil
	})
}

// Gates lists the locks, rates and resources of a user, and those that users share. It lists at most
// store.MaxGatesPerPage gates, beginning with the one after afterGate.
func (s *Store) Gates(ctx context.Context, uid int, afterGate store.GateState) (states []store.GateState, err error) {
	err = s.runReadTx(ctx, func() error {
		now := s.now()
		var leased []*job
		jobs := map[gate]int64{}
		for _, j := range s.jobsBySeq() {
			if j.isLeased {
				leased = append(leased, j)
			}
			for _, d := range j.Demands {
				if d.Kind == queue.GateNode {
					continue
				}
				g := gateOf(j, d)
				if _, seen := jobs[g]; !seen && !j.State.HasEnded() {
					jobs[g] = 0
				}
				if d.DeclaresLimit() && !j.State.HasEnded() {
					jobs[g]++
				}
			}
		}
		for g := range s.fixedGates {
			jobs[g] += 0
		}
		for g, n := range jobs {
			state := store.GateState{
				Demand:         s.gateRules[g],
				OwnerUID:       g.ownerUID,
				UnfinishedJobs: n,
				HasStoredRule:  s.fixedGates[g],
				UsedUnits:      s.usedUnits(g, now, leased),
			}
			if g.kind == queue.GateResource {
				state.Demand, state.UnfinishedJobs = queue.Demand{Kind: g.kind, GateKey: g.key,
					Amount: s.node.ResourceUnits[g.key]}, 0
			}
			if (g.ownerUID == queue.SharedGateOwner || g.ownerUID == uid) &&
				(afterGate.Kind == 0 || state.ComesAfter(&afterGate)) {
				states = append(states, state)
			}
		}
		slices.SortFunc(states, func(a, b store.GateState) int {
			switch {
			case a.ComesAfter(&b):
				return 1
			case b.ComesAfter(&a):
				return -1
			}
			return 0
		})
		states = states[:min(len(states), store.MaxGatesPerPage)]
		return nil
	})
	return states, err
}

// rateOpensAt returns when a rate that has reached its limit allows another start, because an old start
// leaves its period. It returns 0 if no start is recorded: then all units are in use by claimed jobs that are
// not known to have started.
func (s *Store) rateOpensAt(g gate, leasedJobs []*job) queue.UnixMillis {
	if g.kind != queue.GateRate {
		return 0
	}
	room := s.gateRules[g].Amount
	for _, j := range leasedJobs {
		for _, d := range j.Demands {
			if gateOf(j, d) == g && j.State != queue.Processing {
				room--
			}
		}
	}
	starts := slices.Sorted(slices.Values(s.rateStarts[g]))
	if room < 1 || len(starts) < room {
		room = min(max(room, 1), len(starts))
	}
	if room == 0 {
		return 0
	}
	return starts[len(starts)-room].Add(s.gateRules[g].RatePeriod) + 1
}
