package handlers

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// HookTest implements control.API.
func (h *API) HookTest(ctx context.Context, p control.HookTestParams) (control.EnqueueResult, error) {
	m, err := h.Hooks.NewHookMaker(&h.Settings.Current().Settings)
	if err != nil {
		return control.EnqueueResult{}, err
	}
	drafts := m.DraftsForTest(p.Name, h.Store.Now())
	if len(drafts) == 0 {
		names := slices.Sorted(maps.Keys(m.Webhooks))
		for _, moment := range queue.AllHookEvents {
			if m.Commands.CommandFor(moment) != "" {
				names = append(names, "on_"+moment.String())
			}
		}
		return control.EnqueueResult{}, queue.Errorf(queue.CodeNotFound, "the settings have no hook or webhook %q%s", p.Name,
			cmp.Or(queue.DidYouMean(p.Name, names), "; see: queuectl config list"))
	}
	if err := h.Guard.CheckMayRun(h.Account.RunsAs(&drafts[0])); err != nil {
		return control.EnqueueResult{}, err
	}
	if err := h.Guard.Audit(ctx, "hook.test", p.Name, nil); err != nil {
		return control.EnqueueResult{}, err
	}
	receipt, err := h.Store.Enqueue(ctx, store.Request{Drafts: drafts, UID: m.Account.UID, Owner: m.Account.User})
	if err != nil {
		return control.EnqueueResult{}, err
	}
	return control.EnqueueResult{ID: receipt.IDs[0], Seq: receipt.Seqs[0]}, nil
}
