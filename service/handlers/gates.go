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

// GateSet implements control.API.
func (h *API) GateSet(ctx context.Context, p control.GateSet) (v control.GateView, err error) {
	d, err := p.Rule()
	if err != nil {
		return v, err
	}
	err = h.applyOnAllNodes(ctx, func() error {
		if err := h.Guard.Audit(ctx, "gate.set", p.Key, nil); err != nil {
			return err
		}
		if err := h.Store.SetGate(ctx, d); err != nil {
			return err
		}
		return h.GateRules.LoadGates(context.WithoutCancel(ctx))
	})
	if err != nil {
		return v, err
	}
	return h.viewGate(h.currentGate(ctx, &store.GateState{Demand: d, UID: queue.SharedOwner,
		RuleStored: d.Amount > 0})), nil
}

// currentGate returns the state of a shared gate (a lock, rate or resource limit) from the store. fallback
// names the gate, and is returned if the store has no such gate.
func (h *API) currentGate(ctx context.Context, fallback *store.GateState) *store.GateState {
	// The store lists the gates after a given one, so pass a key that sorts shortly before the wanted one: the
	// wanted key without its last byte.
	before := store.GateState{UID: fallback.UID,
		Demand: queue.Demand{Kind: fallback.Kind, Key: fallback.Key[:len(fallback.Key)-1]}}
	list, err := h.Store.Gates(ctx, queue.SharedOwner, before)
	i := slices.IndexFunc(list, func(g store.GateState) bool {
		return g.UID == fallback.UID && g.Kind == fallback.Kind && g.Key == fallback.Key
	})
	if err != nil || i < 0 {
		return fallback
	}
	return &list[i]
}

// GateList implements control.API.
func (h *API) GateList(ctx context.Context, p control.GateListParams) (control.GateList, error) {
	out := control.GateList{Gates: []control.GateView{}}
	if _, relayed := cluster.RelayedRequest(ctx); relayed { // another node needs only the resources of this node
		units, err := h.localResources(ctx)
		return control.GateList{Gates: units}, err
	}
	at, err := p.Position()
	if err != nil {
		return out, err
	}
	after := store.GateState{Demand: queue.Demand{Kind: at.Kind, Key: at.Key}, UID: at.UID}
	list, err := readInSlot(ctx, h.UserLimits, control.ClassManyJobs,
		func() ([]store.GateState, error) { return h.Store.Gates(ctx, control.PeerFrom(ctx).UID, after) })
	if err != nil {
		return out, err
	}
	for i := range list {
		// Skip resources, since they are listed at the end, separately for each node.
		if list[i].Kind != queue.GateResource {
			out.Gates = append(out.Gates, h.viewGate(&list[i]))
		}
	}
	if len(list) == store.MaxGatesPage {
		last := &list[len(list)-1]
		out.Next = control.GateCursor(control.GatePosition{UID: last.UID, Kind: last.Kind, Key: last.Key})
		return out, nil
	}
	others, err := cluster.Broadcast[control.GateList](ctx, h.Router, cluster.Request{Method: "gate.list"})
	if err != nil {
		return out, err
	}
	units, err := readInSlot(ctx, h.UserLimits, control.ClassManyJobs,
		func() ([]control.GateView, error) { return h.localResources(ctx) })
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

// localResources returns the resources of this node, sorted by name.
func (h *API) localResources(ctx context.Context) (gates []control.GateView, err error) {
	used := map[string]store.GateState{}
	first := store.GateState{UID: queue.SharedOwner, Demand: queue.Demand{Kind: queue.GateResource}}
	err = settings.EachSharedGate(ctx, h.Store, first, func(g store.GateState) {
		if g.Kind == queue.GateResource {
			used[g.Key] = g
		}
	})
	if err != nil {
		return nil, err
	}
	all := h.Settings.Current().ResourcesByName()
	for name, g := range used {
		if _, has := all[name]; !has && h.Cluster != nil && g.Usage == 0 { // a resource of another node
			delete(used, name)
		}
	}
	for name, r := range all {
		if _, known := used[name]; !known { // no job uses the resource, so the store has no state for it
			used[name] = store.GateState{Demand: queue.Demand{Kind: queue.GateResource, Key: name, Amount: len(r.IDs)},
				UID: queue.SharedOwner}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		v := h.viewGate(new(used[name]))
		v.Node = h.Node
		gates = append(gates, v)
	}
	return gates, nil
}

// viewGate converts a gate (a lock, rate or resource limit) to its form in a reply.
func (h *API) viewGate(g *store.GateState) control.GateView {
	v := control.GateView{Key: g.Key, Kind: reasons.GateReasonKind(g.Kind), Limit: g.Amount, Usage: g.Usage,
		RuleStored: g.RuleStored}
	if g.Kind == queue.GateRate && g.Amount > 0 {
		v.Rate = fmt.Sprintf("%d/%s", g.Amount, queue.FormatPeriod(g.Period))
	}
	if g.HasLimit() {
		v.Jobs = &g.Jobs
	}
	if g.UID != queue.SharedOwner {
		v.User = h.Owners.UserName(g.UID)
	}
	return v
}
