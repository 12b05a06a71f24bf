package handlers

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/cluster"
)

// Reload implements control.API.
func (h *Administration) Reload(ctx context.Context, _ control.Nothing) (control.ReloadResult, error) {
	if _, relayed := cluster.Relayed(ctx); relayed { // each node has its own settings file
		return control.ReloadResult{}, h.changes.ReloadShared(ctx)
	}
	if err := h.Guard.Audit(ctx, "reload", h.Places.File, nil); err != nil {
		return control.ReloadResult{}, err
	}
	pending, err := h.changes.Reload(ctx)
	if err != nil {
		return control.ReloadResult{}, err
	}
	return control.ReloadResult{Hidden: append([]string{}, h.Settings.Current().Overridden(config.FromFile)...),
		Note: pending}, nil
}
