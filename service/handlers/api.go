// Package handlers implements control.API: it checks the rights of the caller, passes the request to the store, the
// pool or another node, and shows the result as the caller may see it.
//
// Start with New. API consists of one type for each subject, such as Jobs or Queues. The types in parts are
// shared by several subjects.
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

// Dependencies are the parts of the service that the handlers use.
type Dependencies struct {
	About
	Data
	SettingsParts
	AccessParts
	NodeParts
	Stop                      chan<- bool // a value stops the service; true keeps the jobs
	Page                      *WebPage    // nil in read-only mode
	Endpoint                  Endpoint
	Hooks                     *hooks.Hooks
	BeforeReload, AfterReload func()                  // called before and after the settings are read again
	SetTraces                 func() (trouble string) // makes the exporter of traces follow the settings
	// AccountBy returns the account that jobs run as with other settings.
	AccountBy       func(*config.Settings) (worker.Account, error)
	ExamineStoreDir func(dir string) []store.Finding // checks the state directory of a store on a server
}

// Endpoint is the control socket.
type Endpoint interface {
	// Inherited reports whether the service did not create the socket, so that the settings do not control its
	// mode.
	Inherited() bool
	// CheckSettings returns an error for settings of the socket with which the service would not start.
	CheckSettings(*config.Settings) error
	// UpdateAccess makes the socket follow changed rights.
	UpdateAccess()
}

// About describes the service to clients.
type About struct {
	Version               string
	Places                config.Places
	Node                  string               // name of this node
	Location              fmt.Stringer         // where the store is
	StartedAt             queue.Millis         // when the service started
	ReadOnly              bool                 // read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	Background            bool                 // a client started the service on demand
	InheritedRestrictions []string             // restrictions that the service inherited; see Options
	AdviseBoot            doctor.BootAdvice    // see Options.BootAdvice; may be nil
	Unit                  systemd.Unit         // the systemd unit of the service
	Programs              []doctor.ProgramFile // the files of the running programs
}

// Data is where the jobs are.
type Data struct {
	Store       store.Store
	Files       store.Maintainer // the store's maintenance operations; nil if it has none
	Cluster     store.Cluster    // nil if no other node can use the store
	Pool        *worker.Pool
	Home        runner.Location // where the runners are
	Account     worker.Account  // account that jobs run as
	OutputFiles *cluster.OutputFiles
	Shares      *control.UserLimits
	Log         *slog.Logger
	LogFile     *os.File // the log, if the service must reopen it; otherwise nil
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
	Self       *cluster.ThisNode
	NodeList   *cluster.NodeList
	Router     *cluster.JobRouter
	DrainState *cluster.DrainState
	Drains     *cluster.Drains
	Lease      *cluster.LeaseKeeper
}

// parts are the parts of the service, and the parts of this package that the handlers of several subjects share.
type parts struct {
	*Dependencies
	changes      *Changer
	reader       *jobReader
	queueList    *queueReader
	filters      *filters
	health       *doctor.HealthCheck
	waits        *reasons.Finder
	views        *viewer
	bulk         *bulk
	jobChanges   *jobChanger
	intake       *intake
	outputReader *outputReader
}

func newParts(d *Dependencies) *parts {
	p := &parts{
		Dependencies: d,
		health: &doctor.HealthCheck{
			Files: d.Files, Home: d.Home, Node: d.Node, Pool: d.Pool, Store: d.Store, DrainState: d.DrainState,
			Lease: d.Lease, NodeList: d.NodeList, Owners: d.Owners, Pauses: d.Pauses, Settings: d.Settings,
		},
	}
	p.changes = &Changer{parts: p, settingsChanged: make(chan struct{}, 1)}
	p.reader, p.queueList, p.filters, p.views = &jobReader{p}, &queueReader{p}, &filters{p}, &viewer{p}
	p.bulk, p.jobChanges, p.intake, p.outputReader = &bulk{p}, &jobChanger{p}, &intake{parts: p}, &outputReader{p}
	p.waits = &reasons.Finder{
		HealthCheck: p.health, ReadOnly: d.ReadOnly, Shares: d.Shares, RuleOf: p.queueList.ruleOf,
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
func New(d *Dependencies) (*API, *Changer) {
	p := newParts(d)
	return newAPI(p), p.changes
}

// newAPI returns the handlers of all subjects.
func newAPI(p *parts) *API {
	return &API{
		Jobs: &Jobs{p}, Actions: &Actions{p}, Batches: &Batches{p}, Explanations: &Explanations{p},
		Output: &Output{parts: p}, Overview: &Overview{p, fair.New(fair.Bound{Max: 1})}, Queues: &Queues{p},
		Schedules: &Schedules{p}, Gates: &Gates{p}, Nodes: &Nodes{p}, Users: &Users{p}, Statistics: &Statistics{p},
		EventLog: &EventLog{p}, Administration: &Administration{p},
		Examiner: &doctor.Examiner{
			HealthCheck: p.health, ExamineStoreDir: p.ExamineStoreDir, Shares: p.Shares, Boot: p.AdviseBoot,
			InheritedRestrictions: p.InheritedRestrictions, Places: p.Places, Unit: p.Unit, Version: p.Version,
			Programs: p.Programs, SocketInherited: p.Endpoint.Inherited, OutputFiles: p.OutputFiles, Quota: p.Quota,
			Rights: p.Rights,
		},
	}
}
