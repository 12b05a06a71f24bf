package service

import "github.com/queuectl/queuectl/control"

// front holds the parts that answer requests.
type front struct {
	server      *control.Server
	api         *API
	endpoint    *endpoint
	page        *webPage
	changes     *changer
	admission   *admission
	notices     *notices
	responder   *responder
	submissions *submissions
	stop        <-chan bool // a value stops the service; true keeps the jobs
}

// newFront returns the parts that answer requests on an open socket.
func newFront(s *Service, e *endpoint) *front {
	stop := make(chan bool, 1)
	f := &front{endpoint: e, stop: stop}
	as := func(p control.Peer) *control.Client { return f.server.As(p) } // the page serves no request before it is opened below
	f.page = newWebPage(s.log, s.guard, s.settings, as, e.webListeners)
	f.changes = newChanger(s, e, f.page)
	f.admission = newAdmission(s)
	f.notices = &notices{log: s.log, places: s.opt.Places, pool: s.pool, store: s.store, changes: f.changes, endpoint: e, owners: s.owners}
	d := s.dependencies(f.changes, e)
	d.page, d.stop, d.reload = f.page, stop, f.notices.reloadWithNotice
	d.inherited, d.adviseBoot, d.unit, d.programs = s.opt.Inherited, s.opt.BootAdvice, s.opt.Unit, programFiles(s.opt.Runner[0])
	t := newTools(d)
	f.api = newAPI(d, t)
	f.server = s.newServer(f.api, &authorizer{f.admission, s.rights})
	f.submissions = &submissions{log: s.log, store: s.store, directory: s.directory, owners: s.owners, settings: s.settings}
	f.responder = &responder{cluster: s.cluster, log: s.log, node: s.node, pool: s.pool, store: s.store, changes: f.changes, gates: f.api.Gates, outputFiles: s.outputFiles, pauses: s.pauses, router: s.router, waits: t.waits}
	f.page.setWeb()
	return f
}

// authorizer implements control.Authorizer.
type authorizer struct {
	*admission
	*rights
}

// newServer returns the server of the control socket.
func (s *Service) newServer(api control.API, a control.Authorizer) *control.Server {
	if unknown := s.rights.unknownNames(); unknown != "" {
		s.log.Warn(unknown)
	}
	server := control.NewServer(api, s.connectionLimits(), a, s.shares, s.log)
	if s.opt.Crowded != nil {
		server.Crowded = s.opt.Crowded
	}
	if s.opt.Patient {
		server.Patience = 0
	}
	return server
}

// connectionLimits returns the limits of connections to the control socket.
func (s *Service) connectionLimits() control.Limits {
	return control.Limits{
		Connections: func() (all, user int) { return connections(s.settings.config.Load()) },
	}
}

// dependencies returns what the handlers need.
func (s *Service) dependencies(changes *changer, e *endpoint) *Dependencies {
	return &Dependencies{
		About: About{
			version: s.opt.Version, places: s.opt.Places, node: s.node, location: s.location, started: s.started,
			readOnly: s.readOnly, background: s.opt.Background,
		},
		Data: Data{
			store: s.store, files: s.files, cluster: s.cluster, pool: s.pool, home: s.home, account: s.account,
			outputFiles: s.outputFiles, shares: s.shares, log: s.log,
		},
		SettingsParts: SettingsParts{
			settings: s.settings, lock: s.lock, changes: changes, pauses: s.pauses, queueRules: s.queueRules,
			gateRules: s.gateRules, quota: s.quota, units: s.units,
		},
		AccessParts: AccessParts{directory: s.directory, rights: s.rights, owners: s.owners, guard: s.guard, runAs: s.runAs},
		NodeParts:   NodeParts{nodeList: s.nodeList, router: s.router, drainState: s.drainState, drains: s.drains, lease: s.lease},
		endpoint:    e, hooks: s.hooks,
	}
}
