package service

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/handlers"
	"github.com/queuectl/queuectl/service/submissions"
)

// front holds the parts that answer requests.
type front struct {
	server      *control.Server
	api         *handlers.API
	endpoint    *endpoint
	page        *handlers.WebPage
	changes     *handlers.Changer
	notices     *notices
	responder   *cluster.Responder
	submissions *submissions.Receiver
	stop        <-chan bool // a value stops the service; true keeps the jobs
}

// newFront returns the parts that answer requests on an open socket.
func newFront(s *Service, e *endpoint) *front {
	stop := make(chan bool, 1)
	f := &front{endpoint: e, stop: stop, notices: &notices{s, e}}
	// The page serves no request before SetWeb opens it below.
	as := func(p control.Peer) *control.Client { return f.server.ClientAs(p) }
	f.page = handlers.NewWebPage(s.Log, s.Guard, s.Settings, as, e.webListeners)
	d := *s.Dependencies
	d.Endpoint, d.Page, d.Stop, d.BeforeReload, d.AfterReload = e, f.page, stop, f.notices.reloading, f.notices.reloaded
	f.api, f.changes = handlers.New(&d)
	if unknown := s.Rights.UnknownNames(); unknown != "" {
		s.Log.Warn(unknown)
	}
	f.server = s.newServer(f.api)
	if s.opt.OnConcurrencyLimit != nil {
		f.server.OnConcurrencyLimit = s.opt.OnConcurrencyLimit
	}
	if s.opt.AllowSlowReaders {
		f.server.StreamReadTimeout = 0
	}
	f.submissions = &submissions.Receiver{
		Log: s.Log, Store: s.Store, Directory: s.Directory, Owners: s.Owners, Settings: s.Settings,
	}
	f.responder = &cluster.Responder{
		Log: s.Log, Node: s.Node, Router: s.Router, API: f.api, ReloadShared: f.changes.ReloadShared,
	}
	f.page.SetWeb()
	return f
}

// newServer returns a server of requests.
func (s *Service) newServer(api control.API) *control.Server {
	authorizer := struct {
		*access.Admission
		*access.Rights
	}{s.admission, s.Rights}
	limits := control.Limits{
		Connections: func() (all, user int) { return doctor.Connections(s.Settings.Current()) },
	}
	return control.NewServer(api, limits, authorizer, s.Shares, s.Log)
}
