// Package handlers implements control.API. Each method checks the rights of the caller, passes the request to
// the store, the worker pool or another node, and returns what the caller may see.
//
// Start with New. API embeds parts.Dependencies and FrontEndParts, so each method can use every part of the service.
// See docs/decisions/0103.
package handlers

import (
	"net"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/store"
)

// FrontEndParts are the parts of the service that exist once its socket is open. Only package handlers uses them. In
// read-only mode, all fields are nil.
type FrontEndParts struct {
	// returns an error for socket settings with which the service would not start
	CheckSocketSettings func(*config.Settings) error
	// applies changed rights to the socket
	UpdateSocketAccess func()
	// returns a client with the identity of a peer
	NewClientForPeer func(control.Peer) *control.Client
	// listeners for the web page that the system passed to the service
	InheritedWebListeners []net.Listener
	// a value in this channel stops the service; true keeps the jobs running
	StopServiceRequests chan<- bool
	// called before and after the settings are read again
	BeforeSettingsReload, AfterSettingsReload func()
}

// API implements control.API. The methods about a subject, such as queues or schedules, are in the file of that
// subject. Examiner implements RunDoctor.
type API struct {
	*parts.Dependencies
	FrontEndParts
	*doctor.Examiner
	reasonFinder        *reasons.Finder // finds the reasons why jobs wait
	dashboardServer     *dashboard.Server
	terminalClients     terminalClients
	lastLineReadLimiter *fair.Limiter // allows one request per user to read last lines
	runNextBatches      runNextBatches
	settingsChanged     chan struct{} // gets a value whenever settings have changed

	// mustReapplySharedSettings makes the next call of applySharedSettings apply the stored settings, even if they have
	// not changed; guarded by the settings lock.
	mustReapplySharedSettings bool
	sharedSettings            []store.Setting // the settings as last read from the store; guarded by the settings lock
}

var _ control.API = (*API)(nil)

// New returns the implementation of control.API.
func New(d *parts.Dependencies, f FrontEndParts) *API {
	h := &API{
		Dependencies: d, FrontEndParts: f, settingsChanged: make(chan struct{}, 1),
		lastLineReadLimiter: fair.NewLimiter(fair.Bound{MaxAmount: 1}),
		dashboardServer: dashboard.New(dashboard.Options{ // closed until ApplyWebSettings opens it
			NewClientFor: f.NewClientForPeer, AnonymousPeer: control.Peer{UID: access.AnonymousUID, GID: access.AnonymousUID},
			MetricsScraperPeer: control.Peer{UID: access.MetricsScraperUID, GID: access.AnonymousUID},
			Listeners:          f.InheritedWebListeners, Log: d.Log,
		}),
		Examiner: &doctor.Examiner{Dependencies: d},
	}
	h.reasonFinder = &reasons.Finder{Examiner: h.Examiner, ReadQueueRule: h.storedQueueRule}
	return h
}
