package handlers

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/cluster"
)

// Reload implements control.API.
func (h *API) Reload(ctx context.Context, _ control.NoParams) (control.ReloadResult, error) {
	if _, relayed := cluster.RelayedRequest(ctx); relayed { // only shared settings and drains may have changed
		return control.ReloadResult{}, h.ReloadShared(ctx)
	}
	if err := h.Guard.Audit(ctx, "reload", h.Paths.SettingsFile, nil); err != nil {
		return control.ReloadResult{}, err
	}
	pending, err := h.ReloadSettings(ctx)
	if err != nil {
		return control.ReloadResult{}, err
	}
	return control.ReloadResult{Hidden: append([]string{}, h.Settings.Current().OverriddenSettings(config.FromFile)...),
		Note: pending}, nil
}
