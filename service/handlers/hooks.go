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

// EnqueueHookTest implements control.API.
func (h *API) EnqueueHookTest(ctx context.Context, p control.HookTestParams) (result control.EnqueueResult, err error) {
	m, err := h.Hooks.NewHookMaker(&h.Settings.CurrentConfig().Settings)
	if err != nil {
		return result, err
	}
	drafts := m.HookTestDrafts(p.HookName, h.Store.Now())
	if len(drafts) == 0 {
		names := slices.Sorted(maps.Keys(m.Webhooks))
		for _, moment := range queue.AllHookEvents {
			if m.HookCommands.CommandForEvent(moment) != "" {
				names = append(names, "on_"+moment.String())
			}
		}
		return result, queue.Errorf(queue.CodeNotFound, "the settings have no hook or webhook %q%s",
			p.HookName,
			cmp.Or(queue.DidYouMean(p.HookName, names), "; see: queuectl config list"))
	}
	if err := h.Guard.CheckRunnerMayRunAs(h.JobAccount.JobUID(&drafts[0])); err != nil {
		return result, err
	}
	if err := h.Guard.RecordAudit(ctx, "hook.test", p.HookName, nil); err != nil {
		return result, err
	}
	receipt, err := h.Store.Enqueue(ctx, store.EnqueueRequest{Drafts: drafts, UID: m.HookAccount.UID,
		OwnerName: m.HookAccount.UserName})
	if err != nil {
		return result, err
	}
	return control.EnqueueResult{JobID: receipt.IDs[0], JobSeq: receipt.Seqs[0]}, nil
}
