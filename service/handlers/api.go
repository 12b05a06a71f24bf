// Package handlers implements control.API: it checks the rights of the caller, passes the request to the store, the
// pool or another node, and shows the result as the caller may see it.
//
// Start with New. API embeds Dependencies and FrontParts, so each method can use every part of the service. See
// docs/decisions/0103.
package handlers

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Dependencies are the parts that the handlers and package service use. They exist once the store is open. The
// parts that exist only once the socket is open are in FrontParts.
type Dependencies struct {
	ServiceInfo
	CoreParts
	SettingsParts
	AccessParts
	NodeParts
	Hooks              *hooks.Hooks
	ApplyTraceSettings func() (trouble string) // makes the exporter of traces follow the settings
	// JobAccountFor returns the account that jobs run as with other settings.
	JobAccountFor   func(*config.Settings) (worker.Account, error)
	ExamineStoreDir func(dir string) []store.Finding // checks the state directory of a store on a server
}

// FrontParts are the parts that a service has once its socket is open. Only handlers use them. In read-only mode, all
// fields except Endpoint are nil.
type FrontParts struct {
	Endpoint                  Endpoint
	ClientAs                  func(control.Peer) *control.Client // returns a client with the identity of a peer
	WebListeners              []net.Listener                     // listeners for the web page that the system passed
	StopRequests              chan<- bool                        // a value stops the service; true keeps the jobs
	BeforeReload, AfterReload func()                             // called before and after the settings are read again
}

// Endpoint is the control socket.
type Endpoint interface {
	// SocketInherited reports whether the service did not create the socket, so that the settings do not control its
	// mode.
	SocketInherited() bool
	// CheckSettings returns an error for settings of the socket with which the service would not start.
	CheckSettings(*config.Settings) error
	// UpdateAccess makes the socket follow changed rights.
	UpdateAccess()
}

// ServiceInfo describes the service to clients.
type ServiceInfo struct {
	Version   string
	Paths     config.Paths
	Node      string       // name of this node
	Location  fmt.Stringer // where the store is
	StartedAt queue.Millis // when the service started
	// read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	ReadOnly              bool
	StartedOnDemand       bool                 // a client started the service on demand
	InheritedRestrictions []string             // restrictions that the service inherited; see Options
	BootAdvice            doctor.BootAdvice    // see Options.BootAdvice; may be nil
	SystemdUnit           systemd.Unit         // the systemd unit of the service
	Programs              []doctor.ProgramFile // the files of the running programs
}

// CoreParts is where the jobs are.
type CoreParts struct {
	Store          store.Store
	Maintainer     store.Maintainer // the store's maintenance operations; nil if it has none
	Cluster        store.Cluster    // nil if no other node can use the store
	Pool           *worker.Pool
	RunnerLocation runner.Location // where the runners are
	Account        worker.Account  // account that jobs run as
	OutputFiles    *cluster.OutputFiles
	UserLimits     *control.UserLimits
	Log            *slog.Logger
	LogFile        *os.File // the log, if the service must reopen it; otherwise nil
}

// SettingsParts are the parts of the service that keep settings.
type SettingsParts struct {
	Settings   *settings.Keeper
	Lock       *settings.Lock
	Pauses     *settings.AllPause
	QueueRules *settings.QueueRules
	GateRules  *settings.GateRules
	Quota      *settings.Quota
}

// AccessParts are the parts of the service that decide rights.
type AccessParts struct {
	Directory *access.Directory
	Rights    *access.Rights
	Owners    *access.Owners
	Guard     *access.Guard
}

// NodeParts are the parts of the service that know the nodes that share the queue.
type NodeParts struct {
	AllNodes    *cluster.NodeList
	Router      *cluster.JobRouter
	DrainState  *cluster.DrainState
	Drainer     *cluster.Drainer
	LeaseKeeper *cluster.LeaseKeeper
}

// API implements control.API. The methods about a subject, such as queues or schedules, are in the file of that
// subject, together with the functions that only these methods use.
type API struct {
	*Dependencies
	FrontParts
	examiner        *doctor.Examiner
	waits           *reasons.Finder
	page            *dashboard.Server
	terminalClients terminalClients
	lastLineLimiter *fair.Limiter  // admits one reader of last lines per user
	runNextBatches  runNextBatches // batches that were enqueued with "next", and the priority of their first request
	settingsChanged chan struct{}  // wake-up: settings have changed

	// mustReapplyShared makes the next applyShared apply even unchanged stored settings; guarded by Lock.
	mustReapplyShared bool
	sharedSettings    []store.Setting // the settings as last read from the store; guarded by Lock
}

var _ control.API = (*API)(nil)

// New returns the implementation of the API.
func New(d *Dependencies, f FrontParts) *API {
	health := &doctor.HealthCheck{
		Maintainer: d.Maintainer, RunnerLocation: d.RunnerLocation, Node: d.Node, Pool: d.Pool, Store: d.Store,
		DrainState: d.DrainState, LeaseKeeper: d.LeaseKeeper, NodeList: d.AllNodes, Owners: d.Owners, Pauses: d.Pauses,
		Settings: d.Settings,
	}
	h := &API{
		Dependencies: d, FrontParts: f, page: newPage(d.Log, f), settingsChanged: make(chan struct{}, 1),
		lastLineLimiter: fair.NewLimiter(fair.Bound{Max: 1}),
		examiner: &doctor.Examiner{
			HealthCheck: health, ExamineStoreDir: d.ExamineStoreDir, UserLimits: d.UserLimits, Boot: d.BootAdvice,
			InheritedRestrictions: d.InheritedRestrictions, Paths: d.Paths, SystemdUnit: d.SystemdUnit, Version: d.Version,
			Programs: d.Programs, SocketInherited: f.Endpoint.SocketInherited, OutputFiles: d.OutputFiles, Quota: d.Quota,
			Rights: d.Rights,
		},
	}
	h.waits = &reasons.Finder{HealthCheck: health, ReadOnly: d.ReadOnly, UserLimits: d.UserLimits, RuleOf: h.ruleOf}
	return h
}

// Doctor implements control.API.
func (h *API) Doctor(ctx context.Context, p control.Doctor, each func(control.Progress) error) (control.Diagnosis,
	error) {
	return h.examiner.Doctor(ctx, p, each)
}
