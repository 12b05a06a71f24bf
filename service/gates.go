package service

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// gateName is a key of everybody's.
type gateName struct {
	kind queue.GateKind
	key  string
}

// loadGates reads the rules of everybody's keys.
func (s *Service) loadGates(ctx context.Context) error {
	rules := map[gateName]queue.Demand{}
	var after store.GateState
	for {
		list, err := s.store.Gates(ctx, queue.Everybody, after)
		if err != nil {
			return err
		}
		for _, g := range list {
			if g.Set {
				rules[gateName{g.Kind, g.Key}] = g.Demand
			}
		}
		if len(list) < store.MaxGates {
			break
		}
		after = list[len(list)-1]
	}
	s.gates.Store(&rules)
	return nil
}

// ruleOfGate gives a demand on everybody's key the rule that it has; a number beside it must be the rule's.
func (s *Service) ruleOfGate(d *queue.Demand) error {
	field, flag := "lock", "--lock N"
	if d.Kind == queue.GateRate {
		field, flag = "rate_limit", "--rate N/PERIOD"
	}
	rule, set := (*s.gates.Load())[gateName{d.Kind, d.Key}]
	if !set && d.Kind == queue.GateLock {
		rule = queue.Demand{Kind: d.Kind, Key: d.Key, N: 1}
	}
	switch {
	case d.N == 0 && rule.N != 0:
		*d = rule
	case rule.N == 0:
		return queue.Invalid(field, "%s has no rule; who may operate sets one: queuectl gate set %s %s", d.Key, d.Key, flag)
	case *d != rule:
		most := strconv.Itoa(rule.N)
		if d.Kind == queue.GateRate {
			most += "/" + queue.FormatPeriod(rule.Per)
		}
		return queue.Invalid(field, "the rule of %s is %s; leave the number out, or have who may operate change it: queuectl gate set %s %s", d.Key, most, d.Key, flag)
	}
	return nil
}

// GateSet implements control.API.
func (s *Service) GateSet(ctx context.Context, p control.GateSet) (v control.GateView, err error) {
	d, err := p.Rule()
	if err != nil {
		return v, err
	}
	err = s.inTurn(ctx, func() error {
		if err := s.audit(ctx, "gate.set", p.Key, nil); err != nil {
			return err
		}
		if err := s.store.SetGate(ctx, d); err != nil {
			return err
		}
		return s.loadGates(context.WithoutCancel(ctx))
	})
	if err != nil {
		return v, err
	}
	return s.viewGate(s.gateAs(ctx, &store.GateState{Demand: d, UID: queue.Everybody, Set: d.N > 0})), nil
}

// gateAs is a gate of everybody's as it stands, or as it was set if nothing else is known of it.
func (s *Service) gateAs(ctx context.Context, set *store.GateState) *store.GateState {
	before := store.GateState{UID: set.UID, Demand: queue.Demand{Kind: set.Kind, Key: set.Key[:len(set.Key)-1]}} // or a few others
	list, err := s.store.Gates(ctx, queue.Everybody, before)
	i := slices.IndexFunc(list, func(g store.GateState) bool {
		return g.UID == set.UID && g.Kind == set.Kind && g.Key == set.Key
	})
	if err != nil || i < 0 {
		return set
	}
	return &list[i]
}

// GateList implements control.API.
func (s *Service) GateList(ctx context.Context, p control.Gates) (control.GateList, error) {
	out := control.GateList{Gates: []control.GateView{}}
	at, err := p.Position()
	if err != nil {
		return out, err
	}
	after := store.GateState{Demand: queue.Demand{Kind: at.Kind, Key: at.Key}, UID: at.UID}
	uid := control.PeerFrom(ctx).UID
	list, err := s.store.Gates(ctx, uid, after)
	if err != nil {
		return out, err
	}
	for i := range list {
		out.Gates = append(out.Gates, s.viewGate(&list[i]))
	}
	if len(list) == store.MaxGates {
		out.Next = control.GateCursor(positionOf(&list[len(list)-1]))
		return out, nil
	}
	all := s.config.Load().ResourcesByName()
	for _, g := range list {
		delete(all, g.Key)
	}
	if after.Kind == 0 { // of which no job makes use
		for name, r := range all {
			out.Gates = append(out.Gates, s.viewGate(&store.GateState{Demand: queue.Demand{Kind: queue.GateResource, Key: name, N: len(r.IDs)}, UID: queue.Everybody}))
		}
		slices.SortStableFunc(out.Gates, func(a, b control.GateView) int { return strings.Compare(a.Kind, b.Kind) })
	}
	return out, nil
}

// positionOf is where a list goes on after a gate.
func positionOf(g *store.GateState) control.GatePosition {
	return control.GatePosition{UID: g.UID, Kind: g.Kind, Key: g.Key}
}

// viewGate shows a gate.
func (s *Service) viewGate(g *store.GateState) control.GateView {
	v := control.GateView{Key: g.Key, Kind: gateWords[g.Kind].kind, Most: g.N, Used: g.Used, Set: g.Set}
	if g.Kind == queue.GateRate && g.N > 0 {
		v.Rate = fmt.Sprintf("%d/%s", g.N, queue.FormatPeriod(g.Per))
	}
	if g.Ruled() {
		v.Jobs = &g.Jobs
	}
	if g.UID != queue.Everybody {
		v.User = s.userName(g.UID)
	}
	return v
}
