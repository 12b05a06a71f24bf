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

// webListen is the setting of where the page is.
// See docs/decisions/0085.
const webListen = "web.listen"

// anybody is the uid of whoever reaches the page without a session, scraper of who reads the metrics alone: no
// account has them.
const (
	anybody = math.MinInt32 // which every reader of JSON can hold
	scraper = math.MinInt32 + 1
)

// makeWeb makes the page, which a server answers what it asks, and opens it if the settings say so. If it cannot be
// opened the queue goes on without.
func (s *Service) makeWeb(server *control.Server) {
	s.web = dashboard.New(dashboard.Options{As: server.As, Anonymous: control.Peer{UID: anybody, GID: anybody}, Scraper: control.Peer{UID: scraper, GID: anybody}, Handed: s.handed, Log: s.log})
	s.setWeb()
}

// setWeb has the page be as the settings say; what keeps it from that is returned, for people.
func (s *Service) setWeb() (trouble string) {
	if s.web == nil {
		return ""
	}
	if err := s.web.Set(pageBy(&s.config.Load().Settings)); err != nil {
		s.log.Error("the web page does not use the new settings", "error", err)
		if s.web.Listening() != "" {
			return "the web page keeps its previous settings: " + err.Error()
		}
		return "the web page is not served: " + err.Error()
	}
	return ""
}

// pageBy is the page as settings have it.
func pageBy(c *config.Settings) dashboard.Config {
	return dashboard.Config{Listen: c.WebListen, Hosts: c.Hosts(), Anonymous: c.WebAnonymous == "read", Metrics: c.WebMetrics == "true", TLSCert: c.WebTLSCert, TLSKey: c.WebTLSKey, Proxy: c.WebTLS == "proxy"}
}

// WebStart implements control.API.
func (s *Service) WebStart(ctx context.Context, p control.WebStart) (v control.WebState, err error) {
	err = s.inTurn(ctx, func() error {
		if len(s.handed) > 0 && p.Listen == "" && s.web.Listening() != "" {
			return nil
		}
		return s.runWeb(ctx, "web.start", cmp.Or(p.Listen, s.config.Load().WebListen, control.DefaultWeb))
	})
	return control.WebState{Listen: s.web.Listening()}, err
}

// WebStop implements control.API.
func (s *Service) WebStop(ctx context.Context, _ control.Nothing) (v control.WebState, err error) {
	err = s.inTurn(ctx, func() error { return s.runWeb(ctx, "web.stop", "none") })
	return control.WebState{Listen: s.web.Listening()}, err
}

// runWeb has the page be somewhere until the service ends, over every origin of the setting. The caller has the turn.
func (s *Service) runWeb(ctx context.Context, verb, listen string) error {
	if len(s.handed) > 0 {
		return queue.Errorf(queue.CodeWrongState, "the systemd unit queuectl-web.socket serves the page at %s; to serve it from the service instead, run (jobs keep running): sudo systemctl disable --now queuectl-web.socket && sudo systemctl restart queuectl.service", s.handed[0].Addr())
	}
	k, text, err := config.Find(webListen, listen)
	if err == nil {
		err = k.Check(text)
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return queue.Invalid("listen", "%s", e.Message) // name the parameter, not the setting
	}
	if err := s.audit(ctx, verb, text, nil); err != nil {
		return err
	}
	before, was := s.swapRunning(k.Name, text, true)
	if err := s.web.Set(pageBy(&s.config.Load().Settings)); err != nil {
		s.swapRunning(k.Name, before, was)
		return err
	}
	return nil
}

// swapRunning gives a setting a value of the running service, or takes it away, and returns what it was. The value has
// been checked.
func (s *Service) swapRunning(name, text string, is bool) (before string, was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := s.layers[layerRunning].Values
	before, was = values[name]
	delete(values, name)
	if is {
		values[name] = text
	}
	if err := s.merge(); err != nil {
		panic("service: settings that passed the check cannot be used: " + err.Error())
	}
	return before, was
}

// WebOpen implements control.API.
func (s *Service) WebOpen(ctx context.Context, _ control.Nothing) (v control.WebLink, err error) {
	url, ends, err := s.web.Link(control.PeerFrom(ctx))
	if err != nil {
		return v, err
	}
	return control.WebLink{URL: url, Expires: control.Time(ends.UnixMilli())}, s.audit(ctx, "web.open", "", nil)
}
