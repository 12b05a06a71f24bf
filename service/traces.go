package service

import (
	"log/slog"

	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/traces"
)

// tracing exports attempts as the settings say.
type tracing struct {
	log      *slog.Logger
	settings *settings.Keeper

	traces *traces.Exporter
}

// setTraces makes the exporter send attempts to the collector in the settings. If that fails, it returns a
// message; it returns "" if it succeeds.
func (t *tracing) setTraces() (trouble string) {
	if err := t.traces.Set(t.settings.Current().TracesEndpoint); err != nil {
		t.log.Error("the service sends no traces; correct the setting traces.endpoint", "error", err)
		return "the service sends no traces; correct the setting traces.endpoint: " + err.Error()
	}
	return ""
}
