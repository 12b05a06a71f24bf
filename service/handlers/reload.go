package handlers

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/cluster"
)

// ReloadSettingsFile implements control.API.
func (h *API) ReloadSettingsFile(ctx context.Context, _ control.NoParams) (result control.ReloadResult, err error) {
	// for another node, read only the shared settings and drains
	if _, relayed := cluster.RelayedRequestStates(ctx); relayed {
		return result, h.ReloadSharedSettings(ctx)
	}
	if err := h.Guard.RecordAudit(ctx, "reload", h.Paths.SettingsFile, nil); err != nil {
		return result, err
	}
	pending, err := h.ReloadSettings(ctx)
	if err != nil {
		return result, err
	}
	return control.ReloadResult{OverriddenSettings: append([]string{},
		h.Settings.CurrentConfig().OverriddenSettings(config.FromFile)...), PendingChangesNote: pending}, nil
}
