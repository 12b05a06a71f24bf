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

// webListenKey is the key of the setting that contains the address of the web page. See docs/decisions/0085.
const webListenKey = "web.listen"

// CloseWebPage stops the server of the web page.
func (h *API) CloseWebPage() { h.dashboardServer.Close() }

// ApplyWebSettings applies the settings to the web page. problem says why the page could not be opened; "" means
// success. An error only affects the page: the queue works without the page.
func (h *API) ApplyWebSettings() (problem string) {
	if err := h.dashboardServer.ApplyConfig(dashboardConfig(&h.Settings.CurrentConfig().Settings)); err != nil {
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
	return dashboard.Config{ListenAddress: c.WebListen, ExtraHosts: c.WebHostNames(),
		AllowsAnonymousRead:    c.AnonymousWebRight == "read",
		AllowsAnonymousMetrics: c.AnonymousWebMetrics == "true", TLSCertPath: c.WebTLSCert, TLSKeyPath: c.WebTLSKey,
		BehindTLSProxy: c.WebTLSMode == "proxy"}
}

// WebStart implements control.API.
func (h *API) StartWebPage(ctx context.Context, p control.WebStartParams) (v control.WebState, err error) {
	err = h.SettingsLock.RunLocked(ctx, func() error {
		if len(h.InheritedWebListeners) > 0 && p.ListenAddress == "" && h.dashboardServer.Address() != "" {
			return nil
		}
		return h.serveWebPage(ctx, "web.start", cmp.Or(p.ListenAddress, h.Settings.CurrentConfig().WebListen,
			control.DefaultWebAddress))
	})
	return control.WebState{ListenAddress: h.dashboardServer.Address()}, err
}

// WebStop implements control.API.
func (h *API) StopWebPage(ctx context.Context, _ control.NoParams) (v control.WebState, err error) {
	err = h.SettingsLock.RunLocked(ctx, func() error { return h.serveWebPage(ctx, "web.stop", "none") })
	return control.WebState{ListenAddress: h.dashboardServer.Address()}, err
}

// serveWebPage serves the web page at an address until the service ends. The address overrides every other value of the
// setting web.listen. The caller holds the settings lock.
func (h *API) serveWebPage(ctx context.Context, verb, listenAddress string) error {
	if len(h.InheritedWebListeners) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s, so this "+
			"command cannot start or stop it; to let the command do so, run (jobs keep running): sudo systemctl disable --now "+
			"queuectl-web.socket && sudo systemctl restart queuectl.service", h.InheritedWebListeners[0].Addr())
	}
	k, text, err := config.FindSetting(webListenKey, listenAddress)
	if err == nil {
		err = k.CheckValue(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		// The user has set the parameter "listen", not the setting web.listen, so name the parameter in the error.
		return queue.InvalidFieldError("listen", "%s", e.Message)
	}
	if err := h.Guard.RecordAudit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, existed := h.Settings.SetRunningValue(k.Name, text, true)
	if err := h.dashboardServer.ApplyConfig(dashboardConfig(&h.Settings.CurrentConfig().Settings)); err != nil {
		h.Settings.SetRunningValue(k.Name, before, existed)
		return err
	}
	return nil
}

// CreateWebLink implements control.API.
func (h *API) CreateWebLink(ctx context.Context, _ control.NoParams) (v control.WebLink, err error) {
	url, expires, err := h.dashboardServer.NewSignInLink(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, ExpiresAt: control.Time(expires.UnixMilli())},
		h.Guard.RecordAudit(ctx, "web.open", "", nil)
}
