// Package handlers implements control.API: it checks the rights of the caller, passes the request to the store, the
// pool or another node, and shows the result as the caller may see it.
//
// Start with New. API consists of one type for each subject, such as Jobs or Queues. Each of them embeds parts, so
// it can use every part of the service. See docs/decisions/0103.
package handlers

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
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
	Page                      *WebPage
	StopRequests              chan<- bool // a value stops the service; true keeps the jobs
	BeforeReload, AfterReload func()      // called before and after the settings are read again
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
	Settings       *settings.Keeper
	Lock           *settings.Lock
	StoredSettings *StoredSettings
	Pauses         *settings.AllPause
	QueueRules     *settings.QueueRules
	GateRules      *settings.GateRules
	Quota          *settings.Quota
}

// AccessParts are the parts of the service that decide rights.
type AccessParts struct {
	Directory *access.Directory
	Rights    *access.Rights
	Owners    *access.Owners
	Guard     *access.Guard
	RunAs     *access.RunAs
}

// NodeParts are the parts of the service that know the nodes that share the queue.
type NodeParts struct {
	Self        *cluster.ThisNode
	NodeList    *cluster.NodeList
	Router      *cluster.JobRouter
	DrainState  *cluster.DrainState
	Drainer     *cluster.Drainer
	LeaseKeeper *cluster.LeaseKeeper
}

// parts holds everything that handlers use: the parts of the service, and the parts of this package that the handlers
// of several subjects share.
type parts struct {
	*Dependencies
	FrontParts
	changes      *SettingsChanger
	reader       *jobReader
	queueList    *queueReader
	filters      *filterParser
	health       *doctor.HealthCheck
	waits        *reasons.Finder
	views        *jobViewer
	bulk         *bulkChanger
	jobChanges   *jobChanger
	intake       *enqueuer
	outputReader *outputReader
}

func newParts(d *Dependencies, f FrontParts) *parts {
	p := &parts{
		Dependencies: d, FrontParts: f,
		health: &doctor.HealthCheck{
			Maintainer: d.Maintainer, RunnerLocation: d.RunnerLocation, Node: d.Node, Pool: d.Pool, Store: d.Store, DrainState: d.DrainState,
			LeaseKeeper: d.LeaseKeeper, NodeList: d.NodeList, Owners: d.Owners, Pauses: d.Pauses, Settings: d.Settings,
		},
	}
	p.changes = &SettingsChanger{parts: p, settingsChanged: make(chan struct{}, 1)}
	p.reader, p.queueList, p.filters, p.views = &jobReader{p}, &queueReader{p}, &filterParser{p}, &jobViewer{p}
	p.bulk, p.jobChanges, p.intake, p.outputReader = &bulkChanger{p}, &jobChanger{p}, &enqueuer{parts: p}, &outputReader{p}
	p.waits = &reasons.Finder{
		HealthCheck: p.health, ReadOnly: d.ReadOnly, UserLimits: d.UserLimits, RuleOf: p.queueList.ruleOf,
	}
	return p
}

// API implements control.API. Each embedded type implements the methods of one subject.
type API struct {
	*Jobs
	*Actions
	*Batches
	*Explanations
	*Output
	*Overview
	*Queues
	*Schedules
	*Gates
	*Nodes
	*Users
	*Statistics
	*EventLog
	*doctor.Examiner
	*Administration
}

var _ control.API = (*API)(nil)

// New returns the implementation of the API, and the part of it that changes settings.
func New(d *Dependencies, f FrontParts) (*API, *SettingsChanger) {
	p := newParts(d, f)
	return newAPI(p), p.changes
}

// newAPI returns the handlers of all subjects.
func newAPI(p *parts) *API {
	return &API{
		Jobs: &Jobs{p}, Actions: &Actions{p}, Batches: &Batches{p}, Explanations: &Explanations{p},
		Output: &Output{parts: p}, Overview: &Overview{p, fair.NewLimiter(fair.Bound{Max: 1})}, Queues: &Queues{p},
		Schedules: &Schedules{p}, Gates: &Gates{p}, Nodes: &Nodes{p}, Users: &Users{p}, Statistics: &Statistics{p},
		EventLog: &EventLog{p}, Administration: &Administration{p},
		Examiner: &doctor.Examiner{
			HealthCheck: p.health, ExamineStoreDir: p.ExamineStoreDir, UserLimits: p.UserLimits, Boot: p.BootAdvice,
			InheritedRestrictions: p.InheritedRestrictions, Paths: p.Paths, SystemdUnit: p.SystemdUnit, Version: p.Version,
			Programs: p.Programs, SocketInherited: p.Endpoint.SocketInherited, OutputFiles: p.OutputFiles, Quota: p.Quota,
			Rights: p.Rights,
		},
	}
}
