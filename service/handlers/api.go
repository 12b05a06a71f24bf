// Package handlers implements control.API: it checks the rights of the caller, passes the request to the store, the
// pool or another node, and shows the result as the caller may see it.
//
// Start with New. API consists of one type for each subject, such as Jobs or Queues. The types in tools are parts
// that several subjects share.
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
	AccountBy                 func(*config.Settings) (worker.Account,
		error) // returns the account that jobs run as with other settings
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
	AdviseBoot            func() string        // see Options.BootAdvice; may be nil
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
	Units          *settings.Units
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

// tools are the parts that the handlers of several subjects share.
type tools struct {
	changes      *Changer
	boot         *doctor.BootAdvisor
	limits       *doctor.LimitsReport
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

func newTools(d *Dependencies) *tools {
	t := &tools{changes: newChanger(d)}
	t.boot = &doctor.BootAdvisor{AdviseBoot: d.AdviseBoot}
	t.limits = &doctor.LimitsReport{Pool: d.Pool, StartedAt: d.StartedAt, Store: d.Store}
	t.reader = &jobReader{shares: d.Shares, store: d.Store, guard: d.Guard}
	t.queueList = &queueReader{pool: d.Pool, shares: d.Shares, store: d.Store, nodeList: d.NodeList, owners: d.Owners}
	t.filters = &filters{directory: d.Directory, owners: d.Owners}
	t.health = &doctor.HealthCheck{
		Files: d.Files, Home: d.Home, Node: d.Node, Pool: d.Pool, Store: d.Store, DrainState: d.DrainState,
		Lease: d.Lease, NodeList: d.NodeList, Owners: d.Owners, Pauses: d.Pauses, Settings: d.Settings,
	}
	t.waits = &reasons.Finder{
		Node: d.Node, Pool: d.Pool, ReadOnly: d.ReadOnly, Store: d.Store, Shares: d.Shares,
		DrainState: d.DrainState, Health: t.health, Owners: d.Owners, Pauses: d.Pauses, RuleOf: t.queueList.ruleOf,
	}
	t.views = &viewer{
		store: d.Store, guard: d.Guard, nodeList: d.NodeList, owners: d.Owners, pauses: d.Pauses,
		runAs: d.RunAs, units: d.Units, waits: t.waits,
	}
	t.bulk = &bulk{
		shares: d.Shares, store: d.Store, filters: t.filters, guard: d.Guard, reader: t.reader,
		rights: d.Rights, router: d.Router,
	}
	t.jobChanges = &jobChanger{
		store: d.Store, bulk: t.bulk, filters: t.filters, guard: d.Guard, pool: d.Pool, quota: d.Quota,
		reader: t.reader, settings: d.Settings,
	}
	t.intake = &intake{
		account: d.Account, shares: d.Shares, store: d.Store, boot: t.boot, gateRules: d.GateRules,
		limits: t.limits, nodeList: d.NodeList, owners: d.Owners, queueList: t.queueList,
		queueRules: d.QueueRules, quota: d.Quota, runAs: d.RunAs, settings: d.Settings,
	}
	t.outputReader = &outputReader{node: d.Node, shares: d.Shares, store: d.Store, router: d.Router}
	return t
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
	t := newTools(d)
	return newAPI(d, t), t.changes
}

// newAPI returns the handlers of all subjects.
func newAPI(d *Dependencies, t *tools) *API {
	return &API{
		Jobs: &Jobs{
			log: d.Log, node: d.Node, pool: d.Pool, shares: d.Shares, store: d.Store, filters: t.filters,
			guard: d.Guard, nodeList: d.NodeList, outputReader: t.outputReader, reader: t.reader,
			views: t.views, waits: t.waits,
		},
		Actions: &Actions{
			pool: d.Pool, store: d.Store, bulk: t.bulk, changes: t.changes, filters: t.filters, guard: d.Guard,
			intake: t.intake, jobChanges: t.jobChanges, limits: t.limits, lock: d.Lock, nodeList: d.NodeList,
			pauses: d.Pauses, queueRules: d.QueueRules, reader: t.reader, rights: d.Rights, runAs: d.RunAs,
			settings: d.Settings,
		},
		Batches: &Batches{
			store: d.Store, intake: t.intake, owners: d.Owners, quota: d.Quota, reader: t.reader,
		},
		Explanations: &Explanations{
			cluster: d.Cluster, node: d.Node, readOnly: d.ReadOnly, shares: d.Shares, store: d.Store,
			guard: d.Guard, nodeList: d.NodeList, owners: d.Owners, reader: t.reader, router: d.Router,
			views: t.views, waits: t.waits,
		},
		Output: &Output{
			cluster: d.Cluster, node: d.Node, pool: d.Pool, store: d.Store, guard: d.Guard,
			nodeList: d.NodeList, outputReader: t.outputReader, reader: t.reader, router: d.Router,
			runAs: d.RunAs,
		},
		Overview: &Overview{
			cluster: d.Cluster, location: d.Location, node: d.Node, places: d.Places, pool: d.Pool,
			readOnly: d.ReadOnly, shares: d.Shares, startedAt: d.StartedAt, store: d.Store, version: d.Version,
			guard: d.Guard, health: t.health, nodeList: d.NodeList, outputReader: t.outputReader,
			owners: d.Owners, pauses: d.Pauses, queueList: t.queueList, quota: d.Quota, views: t.views,
			lastLineReads: fair.New(fair.Bound{Max: 1}),
		},
		Queues: &Queues{
			log: d.Log, pool: d.Pool, store: d.Store, bulk: t.bulk, changes: t.changes, guard: d.Guard,
			intake: t.intake, jobChanges: t.jobChanges, nodeList: d.NodeList, queueList: t.queueList,
			queueRules: d.QueueRules, settings: d.Settings,
		},
		Schedules: &Schedules{
			shares: d.Shares, store: d.Store, boot: t.boot, guard: d.Guard, intake: t.intake, owners: d.Owners,
			pool: d.Pool, quota: d.Quota, router: d.Router, runAs: d.RunAs, settings: d.Settings,
		},
		Gates: &Gates{
			cluster: d.Cluster, node: d.Node, shares: d.Shares, store: d.Store, changes: t.changes,
			gateRules: d.GateRules, guard: d.Guard, owners: d.Owners, router: d.Router, settings: d.Settings,
		},
		Nodes: &Nodes{
			cluster: d.Cluster, pool: d.Pool, shares: d.Shares, store: d.Store, changes: t.changes,
			drainState: d.DrainState, drains: d.Drains, guard: d.Guard, lease: d.Lease, lock: d.Lock,
			nodeList: d.NodeList, router: d.Router,
		},
		Users: &Users{
			places: d.Places, store: d.Store, directory: d.Directory, quota: d.Quota, rights: d.Rights,
			runAs: d.RunAs, settings: d.Settings,
		},
		Statistics: &Statistics{shares: d.Shares, store: d.Store},
		EventLog: &EventLog{
			shares: d.Shares, store: d.Store, guard: d.Guard, reader: t.reader, rights: d.Rights,
			views: t.views,
		},
		Examiner:       newExaminer(d, t),
		Administration: newAdministration(d, t),
	}
}

// newExaminer returns the examiner of the queue and its environment.
func newExaminer(d *Dependencies, t *tools) *doctor.Examiner {
	return &doctor.Examiner{
		ExamineStoreDir: d.ExamineStoreDir, Shares: d.Shares, Files: d.Files, Home: d.Home,
		InheritedRestrictions: d.InheritedRestrictions, Places: d.Places, Pool: d.Pool, Store: d.Store, Unit: d.Unit,
		Version: d.Version, Programs: d.Programs, Boot: t.boot, SocketInherited: d.Endpoint.Inherited,
		Health: t.health, OutputFiles: d.OutputFiles, Owners: d.Owners, Quota: d.Quota, Rights: d.Rights,
		Settings: d.Settings,
	}
}

// newAdministration returns the handlers that change settings, workers, the web page and the service itself.
func newAdministration(d *Dependencies, t *tools) *Administration {
	return &Administration{
		account: d.Account, background: d.Background, files: d.Files, home: d.Home, log: d.Log,
		node: d.Node, places: d.Places, pool: d.Pool, shares: d.Shares, stop: d.Stop, store: d.Store,
		changes: t.changes, guard: d.Guard, hooks: d.Hooks, lock: d.Lock, outputFiles: d.OutputFiles,
		page: d.Page, runAs: d.RunAs, settings: d.Settings,
	}
}
