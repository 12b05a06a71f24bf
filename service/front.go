package service

import (
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/handlers"
)

// frontEnd holds the server that receives requests and the API that executes them.
type frontEnd struct {
	server       *control.Server
	api          *handlers.API
	stopRequests <-chan bool // a value requests a stop; true keeps the jobs running
}

// newFrontEnd returns the server and the API of a service whose socket is open.
func newFrontEnd(s *Service) *frontEnd {
	stop := make(chan bool, 1)
	f := &frontEnd{stopRequests: stop}
	// Calling clientAs before f.server is set below is safe, because only an open web page calls it.
	clientAs := func(p control.Peer) *control.Client { return f.server.InProcessClientAs(p) }
	f.api = handlers.New(s.Dependencies, handlers.FrontEndParts{
		CheckSocketSettings: s.checkSocketSettings, UpdateSocketAccess: s.updateSocketAccess, NewClientForPeer: clientAs,
		InheritedWebListeners: s.webListeners, StopServiceRequests: stop,
		BeforeSettingsReload: s.notifyReloading, AfterSettingsReload: s.notifyReloaded,
	})
	if unknown := s.Rights.UnknownAccessNamesMessage(); unknown != "" {
		s.Log.Warn(unknown)
	}
	f.server = s.newControlServer(f.api)
	if s.options.OnConcurrencyLimit != nil {
		f.server.OnConcurrencyLimit = s.options.OnConcurrencyLimit
	}
	if s.options.AllowSlowReaders {
		f.server.StreamReadTimeout = 0
	}
	f.api.ApplyWebSettings() // opens the web page if the settings say so
	return f
}

// newControlServer returns the control server, which passes each request to api.
func (s *Service) newControlServer(api control.API) *control.Server {
	connections := func() (all, user int) { return doctor.MaxConnections(s.Settings.CurrentConfig()) }
	return control.NewServer(api, control.ConnectionLimits{MaxConnections: connections}, s.admission, s.UserLimits, s.Log)
}
