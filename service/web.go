package service

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/queue"
)

// webListen is the key of the setting with the address of the web page. See docs/decisions/0085.
const webListen = "web.listen"

// anonymousUID is the uid of a client that uses the page without a session. scraperUID is the uid of a
// client that reads only the metrics. No account has one of these uids.
const (
	anonymousUID = math.MinInt32 // every JSON parser can represent this number exactly
	scraperUID   = math.MinInt32 + 1
)

// makeWeb creates the web page and opens it if the settings say so. The control server answers the requests
// of the page. If the page cannot be opened, the queue works without it.
func (s *Service) makeWeb(server *control.Server) {
	s.web = dashboard.New(dashboard.Options{As: server.As, Anonymous: control.Peer{UID: anonymousUID, GID: anonymousUID}, Scraper: control.Peer{UID: scraperUID, GID: anonymousUID}, Handed: s.webListeners, Log: s.log})
	s.setWeb()
}

// setWeb applies the settings to the web page. If that fails, it returns a message; it returns "" if it
// succeeds.
func (s *Service) setWeb() (trouble string) {
	if s.web == nil {
		return ""
	}
	if err := s.web.Set(dashboardConfig(&s.config.Load().Settings)); err != nil {
		s.log.Error("the web page does not use the new settings", "error", err)
		if s.web.Listening() != "" {
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
func (s *Service) WebStart(ctx context.Context, p control.WebStart) (v control.WebState, err error) {
	err = s.withSettingsLock(ctx, func() error {
		if len(s.webListeners) > 0 && p.Listen == "" && s.web.Listening() != "" {
			return nil
		}
		return s.runWeb(ctx, "web.start", cmp.Or(p.Listen, s.config.Load().WebListen, control.DefaultWeb))
	})
	return control.WebState{Listen: s.web.Listening()}, err
}

// WebStop implements control.API.
func (s *Service) WebStop(ctx context.Context, _ control.Nothing) (v control.WebState, err error) {
	err = s.withSettingsLock(ctx, func() error { return s.runWeb(ctx, "web.stop", "none") })
	return control.WebState{Listen: s.web.Listening()}, err
}

// runWeb serves the web page at an address until the service ends. The address overrides all other sources
// of the setting. The caller holds s.settingsToken.
func (s *Service) runWeb(ctx context.Context, verb, listen string) error {
	if len(s.webListeners) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s; to serve it from the service instead, run (jobs keep running): sudo systemctl disable --now queuectl-web.socket && sudo systemctl restart queuectl.service", s.webListeners[0].Addr())
	}
	k, text, err := config.Find(webListen, listen)
	if err == nil {
		err = k.Check(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		// The error must name the parameter listen, not the setting.
		return queue.Invalid("listen", "%s", e.Message)
	}
	if err := s.audit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, existed := s.swapRunning(k.Name, text, true)
	if err := s.web.Set(dashboardConfig(&s.config.Load().Settings)); err != nil {
		s.swapRunning(k.Name, before, existed)
		return err
	}
	return nil
}

// swapRunning sets a setting in the running layer; if set is false, it removes the setting from that layer.
// It returns the previous value in the layer, and whether there was one. The caller has checked the new
// value.
func (s *Service) swapRunning(name, text string, set bool) (before string, existed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := s.layers[layerRunning].Values
	before, existed = values[name]
	delete(values, name)
	if set {
		values[name] = text
	}
	if err := s.merge(); err != nil {
		panic("service: settings that passed the check cannot be used: " + err.Error())
	}
	return before, existed
}

// WebOpen implements control.API.
func (s *Service) WebOpen(ctx context.Context, _ control.Nothing) (v control.WebLink, err error) {
	url, expires, err := s.web.Link(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, Expires: control.Time(expires.UnixMilli())}, s.audit(ctx, "web.open", "", nil)
}
