package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// SetGateRule implements control.API.
func (h *API) SetGateRule(ctx context.Context, p control.SetGateRuleParams) (v control.GateView, err error) {
	d, err := p.RequestedRule()
	if err != nil {
		return v, err
	}
	err = h.applyOnAllNodes(ctx, func() error {
		if err := h.Guard.RecordAudit(ctx, "gate.set", p.Key, nil); err != nil {
			return err
		}
		if err := h.Store.SetGateRule(ctx, d); err != nil {
			return err
		}
		return h.GateRules.LoadGateRules(context.WithoutCancel(ctx))
	})
	if err != nil {
		return v, err
	}
	return h.newGateView(h.currentGateState(ctx, &store.GateState{Demand: d, OwnerUID: queue.SharedGateOwner,
		HasStoredRule: d.Amount > 0})), nil
}

// currentGateState returns the state of a shared gate (a lock, rate or resource limit) from the store. fallback names
// the gate. If the store has no such gate, currentGateState returns fallback.
func (h *API) currentGateState(ctx context.Context, fallback *store.GateState) *store.GateState {
	// The store lists the gates whose keys sort after a given key. So pass a key that sorts shortly before the wanted one:
	// the wanted key without its last byte.
	before := store.GateState{OwnerUID: fallback.OwnerUID,
		Demand: queue.Demand{Kind: fallback.Kind, GateKey: fallback.GateKey[:len(fallback.GateKey)-1]}}
	list, err := h.Store.Gates(ctx, queue.SharedGateOwner, before)
	i := slices.IndexFunc(list, func(g store.GateState) bool {
		return g.OwnerUID == fallback.OwnerUID && g.Kind == fallback.Kind && g.GateKey == fallback.GateKey
	})
	if err != nil || i < 0 {
		return fallback
	}
	return &list[i]
}

// GateList implements control.API.
func (h *API) ListGates(ctx context.Context, p control.GateListParams) (control.GateList, error) {
	out := control.GateList{Gates: []control.GateView{}}
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed { // another node needs only the resources of this node
		units, err := h.localResourceGates(ctx)
		return control.GateList{Gates: units}, err
	}
	at, err := p.DecodeCursor()
	if err != nil {
		return out, err
	}
	after := store.GateState{Demand: queue.Demand{Kind: at.Kind, GateKey: at.Key}, OwnerUID: at.OwnerUID}
	list, err := withReadSlot(ctx, h.UserLimits, control.ClassManyJobsRead,
		func() ([]store.GateState, error) { return h.Store.Gates(ctx, control.PeerFrom(ctx).UID, after) })
	if err != nil {
		return out, err
	}
	for i := range list {
		// Skip resources here. They are added at the end, separately for each node.
		if list[i].Kind != queue.GateResource {
			out.Gates = append(out.Gates, h.newGateView(&list[i]))
		}
	}
	if len(list) == store.MaxGatesPerPage {
		last := &list[len(list)-1]
		out.NextCursor = control.EncodeGateCursor(control.GateListPosition{OwnerUID: last.OwnerUID, Kind: last.Kind,
			Key: last.GateKey})
		return out, nil
	}
	others, err := cluster.Broadcast[control.GateList](ctx, h.JobRouter, cluster.Request{APIMethod: "gate.list"})
	if err != nil {
		return out, err
	}
	units, err := withReadSlot(ctx, h.UserLimits, control.ClassManyJobsRead,
		func() ([]control.GateView, error) { return h.localResourceGates(ctx) })
	if err != nil {
		return out, err
	}
	for i := range others {
		units = append(units, others[i].Result.Gates...)
	}
	for i := range units {
		if len(others) == 0 {
			units[i].Node = ""
		}
	}
	out.Gates = append(out.Gates, units...)
	slices.SortStableFunc(out.Gates, func(a, b control.GateView) int { return strings.Compare(a.Kind, b.Kind) })
	return out, nil
}

// localResourceGates returns the resources of this node, sorted by name.
func (h *API) localResourceGates(ctx context.Context) (gates []control.GateView, err error) {
	used := map[string]store.GateState{}
	first := store.GateState{OwnerUID: queue.SharedGateOwner, Demand: queue.Demand{Kind: queue.GateResource}}
	err = settings.VisitSharedGates(ctx, h.Store, first, func(g store.GateState) {
		if g.Kind == queue.GateResource {
			used[g.GateKey] = g
		}
	})
	if err != nil {
		return nil, err
	}
	all := h.Settings.CurrentConfig().ResourcesByName()
	for name, g := range used {
		if _, has := all[name]; !has && h.Cluster != nil && g.UsedUnits == 0 { // a resource of another node
			delete(used, name)
		}
	}
	for name, r := range all {
		if _, known := used[name]; !known { // no job uses the resource, so the store has no state for it
			used[name] = store.GateState{Demand: queue.Demand{Kind: queue.GateResource, GateKey: name, Amount: len(r.UnitIDs)},
				OwnerUID: queue.SharedGateOwner}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		v := h.newGateView(new(used[name]))
		v.Node = h.NodeName
		gates = append(gates, v)
	}
	return gates, nil
}

// newGateView converts a gate (a lock, rate or resource limit) to its form in a reply.
func (h *API) newGateView(g *store.GateState) control.GateView {
	v := control.GateView{Key: g.GateKey, Kind: reasons.GateReasonKind(g.Kind), Limit: g.Amount, LimitUsage: g.UsedUnits,
		RuleIsExplicit: g.HasStoredRule}
	if g.Kind == queue.GateRate && g.Amount > 0 {
		v.Rate = fmt.Sprintf("%d/%s", g.Amount, queue.FormatRatePeriod(g.RatePeriod))
	}
	if g.DeclaresLimit() {
		v.UnfinishedJobs = &g.UnfinishedJobs
	}
	if g.OwnerUID != queue.SharedGateOwner {
		v.KeyOwner = h.Owners.UserName(g.OwnerUID)
	}
	return v
}
