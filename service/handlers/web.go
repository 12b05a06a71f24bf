package handlers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
)

// WebPage serves the web page.
type WebPage struct {
	log      *slog.Logger
	guard    *access.Guard
	settings *settings.Keeper

	server       *dashboard.Server
	webListeners []net.Listener // listeners for the web page that the system passed to the service
}

// webListen is the key of the setting with the address of the web page. See docs/decisions/0085.
const webListen = "web.listen"

// NewWebPage returns the web page, which ApplySettings opens if the settings say so. The control server answers the
// requests of the page. clientAs returns a client with the identity of a peer. listeners are the listeners that the
// system passed to the service for the page.
func NewWebPage(log *slog.Logger, g *access.Guard, settings *settings.Keeper,
	clientAs func(control.Peer) *control.Client,
	listeners []net.Listener) *WebPage {
	web := dashboard.New(dashboard.Options{
		ClientAs: clientAs, Anonymous: control.Peer{UID: access.AnonymousUID, GID: access.AnonymousUID},
		Scraper:   control.Peer{UID: access.ScraperUID, GID: access.AnonymousUID},
		Listeners: listeners, Log: log,
	})
	return &WebPage{log: log, guard: g, settings: settings, server: web, webListeners: listeners}
}

// Close stops serving the page.
func (p *WebPage) Close() { p.server.Close() }

// ApplySettings applies the settings to the web page. If the page cannot be opened, the queue works
// without it. ApplySettings then returns a message; it returns "" if it succeeds.
func (p *WebPage) ApplySettings() (trouble string) {
	if err := p.server.ApplyConfig(dashboardConfig(&p.settings.Current().Settings)); err != nil {
		p.log.Error("the web page does not use the new settings", "error", err)
		if p.server.Address() != "" {
			return "the web page keeps its previous settings: " + err.Error()
		}
		return "the web page is not served: " + err.Error()
	}
	return ""
}

// dashboardConfig returns the configuration of the web page that the settings define.
func dashboardConfig(c *config.Settings) dashboard.Config {
	return dashboard.Config{Listen: c.WebListen, ExtraHosts: c.HostNames(), AnonymousRead: c.WebAnonymous == "read",
		AnonymousMetrics: c.WebMetrics == "true", TLSCert: c.WebTLSCert, TLSKey: c.WebTLSKey,
		BehindProxy: c.WebTLS == "proxy"}
}

// WebStart implements control.API.
func (h *Administration) WebStart(ctx context.Context, p control.WebStart) (v control.WebState, err error) {
	err = h.Lock.With(ctx, func() error {
		if len(h.Page.webListeners) > 0 && p.Listen == "" && h.Page.server.Address() != "" {
			return nil
		}
		return h.Page.runWeb(ctx, "web.start", cmp.Or(p.Listen, h.Settings.Current().WebListen, control.DefaultWebAddress))
	})
	return control.WebState{Listen: h.Page.server.Address()}, err
}

// WebStop implements control.API.
func (h *Administration) WebStop(ctx context.Context, _ control.NoParams) (v control.WebState, err error) {
	err = h.Lock.With(ctx, func() error { return h.Page.runWeb(ctx, "web.stop", "none") })
	return control.WebState{Listen: h.Page.server.Address()}, err
}

// runWeb serves the web page at an address until the service ends. The address overrides all other sources
// of the setting. The caller holds the settings lock.
func (p *WebPage) runWeb(ctx context.Context, verb, listen string) error {
	if len(p.webListeners) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s, so this "+
			"command cannot start or stop it; to let the command do so, run (jobs keep running): sudo systemctl disable --now "+
			"queuectl-web.socket && sudo systemctl restart queuectl.service", p.webListeners[0].Addr())
	}
	k, text, err := config.FindKey(webListen, listen)
	if err == nil {
		err = k.Check(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		// The error must name the parameter listen, not the setting.
		return queue.Invalid("listen", "%s", e.Message)
	}
	if err := p.guard.Audit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, existed := p.settings.SetRunning(k.Name, text, true)
	if err := p.server.ApplyConfig(dashboardConfig(&p.settings.Current().Settings)); err != nil {
		p.settings.SetRunning(k.Name, before, existed)
		return err
	}
	return nil
}

// WebOpen implements control.API.
func (h *Administration) WebOpen(ctx context.Context, _ control.NoParams) (v control.WebLink, err error) {
	url, expires, err := h.Page.server.NewLink(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, Expires: control.Time(expires.UnixMilli())}, h.Guard.Audit(ctx, "web.open", "", nil)
}
