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
	admission   *access.Admission
	notices     *notices
	responder   *cluster.Responder
	submissions *submissions.Receiver
	stop        <-chan bool // a value stops the service; true keeps the jobs
}

// newFront returns the parts that answer requests on an open socket.
func newFront(s *Service, e *endpoint) *front {
	stop := make(chan bool, 1)
	f := &front{endpoint: e, stop: stop}
	// The page serves no request before SetWeb opens it below.
	as := func(p control.Peer) *control.Client { return f.server.ClientAs(p) }
	f.page = handlers.NewWebPage(s.log, s.guard, s.settings, as, e.webListeners)
	f.admission = newAdmission(s)
	f.notices = &notices{log: s.log, places: s.opt.Places, pool: s.pool, store: s.store, endpoint: e}
	d := s.dependencies(e)
	d.Page, d.Stop, d.BeforeReload, d.AfterReload = f.page, stop, f.notices.reloading, f.notices.reloaded
	d.InheritedRestrictions, d.AdviseBoot, d.Unit, d.Programs = s.opt.InheritedRestrictions, s.opt.BootAdvice, s.opt.Unit,
		s.programs
	f.api, f.changes = handlers.New(d)
	f.server = s.newServer(f.api, &authorizer{f.admission, s.rights})
	f.submissions = &submissions.Receiver{
		Log: s.log, Store: s.store, Directory: s.directory, Owners: s.owners, Settings: s.settings,
	}
	f.responder = &cluster.Responder{
		Cluster: s.cluster, Requests: s.nodeRequests, Log: s.log, Node: s.node, Router: s.router,
		API: f.api, ReloadShared: f.changes.ReloadShared,
	}
	f.page.SetWeb()
	return f
}

// authorizer implements control.Authorizer.
type authorizer struct {
	*access.Admission
	*access.Rights
}

// newServer returns the server of the control socket.
func (s *Service) newServer(api control.API, a control.Authorizer) *control.Server {
	if unknown := s.rights.UnknownNames(); unknown != "" {
		s.log.Warn(unknown)
	}
	server := control.NewServer(api, s.connectionLimits(), a, s.shares, s.log)
	if s.opt.OnConcurrencyLimit != nil {
		server.OnConcurrencyLimit = s.opt.OnConcurrencyLimit
	}
	if s.opt.AllowSlowReaders {
		server.StreamReadTimeout = 0
	}
	return server
}

// connectionLimits returns the limits of connections to the control socket.
func (s *Service) connectionLimits() control.Limits {
	return control.Limits{
		Connections: func() (all, user int) { return doctor.Connections(s.settings.Current()) },
	}
}

// dependencies returns the parts of the service that the handlers use.
func (s *Service) dependencies(e *endpoint) *handlers.Dependencies {
	d := &handlers.Dependencies{
		About: handlers.About{
			Version: s.opt.Version, Places: s.opt.Places, Node: s.node, Location: s.location, StartedAt: s.startedAt,
			ReadOnly: s.readOnly, Background: s.opt.Background,
		},
		Data: handlers.Data{
			Store: s.store, Files: s.files, Cluster: s.cluster, Pool: s.pool, Home: s.home, Account: s.account,
			OutputFiles: s.outputFiles, Shares: s.shares, Log: s.log,
		},
		SettingsParts: handlers.SettingsParts{
			Settings: s.settings, Lock: s.lock, StoredSettings: s.storedSettings, Pauses: s.pauses, QueueRules: s.queueRules,
			GateRules: s.gateRules, Quota: s.quota, Units: s.units,
		},
		AccessParts: handlers.AccessParts{Directory: s.directory, Rights: s.rights, Owners: s.owners, Guard: s.guard,
			RunAs: s.runAs},
		NodeParts: handlers.NodeParts{Self: s.self, NodeList: s.nodeList, Router: s.router, DrainState: s.drainState,
			Drains: s.drains, Lease: s.lease},
		Endpoint: e, Hooks: s.hooks, SetTraces: s.tracing.setTraces, AccountBy: s.accountChoice().accountBy,
		ExamineStoreDir: examineStoreDir, BeforeReload: func() {}, AfterReload: func() {},
	}
	if s.opt.Background || s.opt.Manager != nil {
		d.LogFile = s.opt.Log
	}
	return d
}

// newAdmission returns the admission of peers.
func newAdmission(s *Service) *access.Admission {
	return &access.Admission{
		Cluster: s.cluster, Log: s.log, Store: s.store, Directory: s.directory, Lock: s.lock, Owners: s.owners,
		Rights: s.rights, ApplyNode: s.self.ApplyNode,
	}
}
