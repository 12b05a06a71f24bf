package handlers

import (
	"cmp"
	"context"
	"errors"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/queue"
)

// webListen is the key of the setting that contains the address of the web page. See docs/decisions/0085.
const webListen = "web.listen"

// CloseWebPage stops the server of the web page.
func (h *API) CloseWebPage() { h.dashboardServer.Close() }

// ApplyWebSettings applies the settings to the web page. problem says why the page could not be opened; ""
// means success. The queue works without the page.
func (h *API) ApplyWebSettings() (problem string) {
	if err := h.dashboardServer.ApplyConfig(dashboardConfig(&h.Settings.Current().Settings)); err != nil {
		h.Log.Error("the web page does not use the new settings", "error", err)
		if h.dashboardServer.Address() != "" {
			return "the web page keeps its previous settings: " + err.Error()
		}
		return "the web page is not served: " + err.Error()
	}
	return ""
}

// dashboardConfig returns the configuration of the web page according to the settings.
func dashboardConfig(c *config.Settings) dashboard.Config {
	return dashboard.Config{Listen: c.WebListen, ExtraHosts: c.HostNames(), AnonymousRead: c.WebAnonymous == "read",
		AnonymousMetrics: c.WebMetrics == "true", TLSCert: c.WebTLSCert, TLSKey: c.WebTLSKey,
		BehindProxy: c.WebTLS == "proxy"}
}

// WebStart implements control.API.
func (h *API) WebStart(ctx context.Context, p control.WebStart) (v control.WebState, err error) {
	err = h.Lock.RunLocked(ctx, func() error {
		if len(h.WebListeners) > 0 && p.Listen == "" && h.dashboardServer.Address() != "" {
			return nil
		}
		return h.runWeb(ctx, "web.start", cmp.Or(p.Listen, h.Settings.Current().WebListen, control.DefaultWebAddress))
	})
	return control.WebState{Listen: h.dashboardServer.Address()}, err
}

// WebStop implements control.API.
func (h *API) WebStop(ctx context.Context, _ control.NoParams) (v control.WebState, err error) {
	err = h.Lock.RunLocked(ctx, func() error { return h.runWeb(ctx, "web.stop", "none") })
	return control.WebState{Listen: h.dashboardServer.Address()}, err
}

// runWeb serves the web page at an address until the service ends. The address overrides every other value of
// the setting web.listen. The caller holds the settings lock.
func (h *API) runWeb(ctx context.Context, verb, listenAddress string) error {
	if len(h.WebListeners) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s, so this "+
			"command cannot start or stop it; to let the command do so, run (jobs keep running): sudo systemctl disable --now "+
			"queuectl-web.socket && sudo systemctl restart queuectl.service", h.WebListeners[0].Addr())
	}
	k, text, err := config.FindKey(webListen, listenAddress)
	if err == nil {
		err = k.Check(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		// Name the parameter "listen" in the error, since the user has not changed the setting.
		return queue.Invalid("listen", "%s", e.Message)
	}
	if err := h.Guard.Audit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, existed := h.Settings.SetRunning(k.Name, text, true)
	if err := h.dashboardServer.ApplyConfig(dashboardConfig(&h.Settings.Current().Settings)); err != nil {
		h.Settings.SetRunning(k.Name, before, existed)
		return err
	}
	return nil
}

// WebOpen implements control.API.
func (h *API) WebOpen(ctx context.Context, _ control.NoParams) (v control.WebLink, err error) {
	url, expires, err := h.dashboardServer.NewLink(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, Expires: control.Time(expires.UnixMilli())}, h.Guard.Audit(ctx, "web.open", "", nil)
}
