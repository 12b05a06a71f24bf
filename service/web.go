package service

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/queue"
)

// webPage serves the web page.
type webPage struct {
	log      *slog.Logger
	guard    *guard
	settings *keeper

	web          *dashboard.Server
	webListeners []net.Listener // listeners for the web page that the system passed to the service
}

// webListen is the key of the setting with the address of the web page. See docs/decisions/0085.
const webListen = "web.listen"

// anonymousUID is the uid of a client that uses the page without a session. scraperUID is the uid of a
// client that reads only the metrics. No account has one of these uids.
const (
	anonymousUID = math.MinInt32 // every JSON parser can represent this number exactly
	scraperUID   = math.MinInt32 + 1
)

// newWebPage returns the web page, which setWeb opens if the settings say so. The control server answers the
// requests of the page: as returns a client with the identity of a peer. listeners are those that the system
// passed to the service for the page.
func newWebPage(log *slog.Logger, g *guard, settings *keeper, as func(control.Peer) *control.Client, listeners []net.Listener) *webPage {
	web := dashboard.New(dashboard.Options{
		As: as, Anonymous: control.Peer{UID: anonymousUID, GID: anonymousUID}, Scraper: control.Peer{UID: scraperUID, GID: anonymousUID},
		Handed: listeners, Log: log,
	})
	return &webPage{log: log, guard: g, settings: settings, web: web, webListeners: listeners}
}

// setWeb applies the settings to the web page. If the page cannot be opened, the queue works without it. setWeb then
// returns a message; it returns "" if it succeeds.
func (p *webPage) setWeb() (trouble string) {
	if err := p.web.Set(dashboardConfig(&p.settings.config.Load().Settings)); err != nil {
		p.log.Error("the web page does not use the new settings", "error", err)
		if p.web.Listening() != "" {
			return "the web page keeps its previous settings: " + err.Error()
		}
		return "the web page is not served: " + err.Error()
	}
	return ""
}

// dashboardConfig returns the configuration of the web page that the settings define.
func dashboardConfig(c *config.Settings) dashboard.Config {
	return dashboard.Config{Listen: c.WebListen, Hosts: c.Hosts(), Anonymous: c.WebAnonymous == "read", Metrics: c.WebMetrics == "true", TLSCert: c.WebTLSCert, TLSKey: c.WebTLSKey, Proxy: c.WebTLS == "proxy"}
}

// WebStart implements control.API.
func (h *Administration) WebStart(ctx context.Context, p control.WebStart) (v control.WebState, err error) {
	err = h.lock.withSettingsLock(ctx, func() error {
		if len(h.page.webListeners) > 0 && p.Listen == "" && h.page.web.Listening() != "" {
			return nil
		}
		return h.page.runWeb(ctx, "web.start", cmp.Or(p.Listen, h.settings.config.Load().WebListen, control.DefaultWeb))
	})
	return control.WebState{Listen: h.page.web.Listening()}, err
}

// WebStop implements control.API.
func (h *Administration) WebStop(ctx context.Context, _ control.Nothing) (v control.WebState, err error) {
	err = h.lock.withSettingsLock(ctx, func() error { return h.page.runWeb(ctx, "web.stop", "none") })
	return control.WebState{Listen: h.page.web.Listening()}, err
}

// runWeb serves the web page at an address until the service ends. The address overrides all other sources
// of the setting. The caller holds the settings lock.
func (p *webPage) runWeb(ctx context.Context, verb, listen string) error {
	if len(p.webListeners) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s; to serve it from the service instead, run (jobs keep running): sudo systemctl disable --now queuectl-web.socket && sudo systemctl restart queuectl.service", p.webListeners[0].Addr())
	}
	k, text, err := config.Find(webListen, listen)
	if err == nil {
		err = k.Check(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		// The error must name the parameter listen, not the setting.
		return queue.Invalid("listen", "%s", e.Message)
	}
	if err := p.guard.audit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, existed := p.settings.swapRunning(k.Name, text, true)
	if err := p.web.Set(dashboardConfig(&p.settings.config.Load().Settings)); err != nil {
		p.settings.swapRunning(k.Name, before, existed)
		return err
	}
	return nil
}

// WebOpen implements control.API.
func (h *Administration) WebOpen(ctx context.Context, _ control.Nothing) (v control.WebLink, err error) {
	url, expires, err := h.page.web.Link(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, Expires: control.Time(expires.UnixMilli())}, h.guard.audit(ctx, "web.open", "", nil)
}
