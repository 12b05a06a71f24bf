package service

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
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
	stop     chan<- bool                                           // a value stops the service; true keeps the jobs
	reload   func(ctx context.Context) (pending string, err error) // reads the settings file again
	page     *webPage
	endpoint *endpoint
	hooks    *hooks
}

// About is what the service tells about itself.
type About struct {
	version    string
	places     config.Places
	node       string        // name of this node
	location   fmt.Stringer  // where the store is
	started    queue.Millis  // when the service started
	readOnly   bool          // read-only mode: no service runs, and only the queue's files are read; see Look
	background bool          // a client started the service on demand
	inherited  []string      // restrictions that the service inherited; see Options
	adviseBoot func() string // see Options.BootAdvice; may be nil
	unit       systemd.Unit  // the systemd unit of the service
	programs   []programFile // the files of the running programs
}

// Data is where the jobs are.
type Data struct {
	store       store.Store
	files       store.Maintainer // the store's maintenance operations; nil if it has none
	cluster     store.Cluster    // nil if no other node can use the store
	pool        *worker.Pool
	home        runner.Home    // where the runners are
	account     worker.Account // account that jobs run as
	outputFiles *outputFiles
	shares      *control.Shares
	log         *slog.Logger
}

// SettingsParts keep settings.
type SettingsParts struct {
	settings   *keeper
	lock       *settingsLock
	changes    *changer
	pauses     *allPause
	queueRules *queueRules
	gateRules  *gateRules
	quota      *quota
	units      *units
}

// AccessParts decide rights.
type AccessParts struct {
	directory *directory
	rights    *rights
	owners    *owners
	guard     *guard
	runAs     *runAs
}

// NodeParts know the nodes that share the queue.
type NodeParts struct {
	nodeList   *nodeList
	router     *jobRouter
	drainState *drainState
	drains     *drains
	lease      *leaseKeeper
}

// tools are the parts that the handlers of several subjects share.
type tools struct {
	boot         *bootAdvisor
	limits       *limitsReport
	reader       *jobReader
	queueList    *queueReader
	filters      *filters
	health       *healthCheck
	waits        *waitReasons
	views        *viewer
	bulk         *bulk
	jobChanges   *jobChanger
	intake       *intake
	outputReader *outputReader
}

func newTools(d *Dependencies) *tools {
	t := &tools{}
	t.boot = &bootAdvisor{adviseBoot: d.adviseBoot}
	t.limits = &limitsReport{pool: d.pool, started: d.started, store: d.store}
	t.reader = &jobReader{shares: d.shares, store: d.store, guard: d.guard}
	t.queueList = &queueReader{pool: d.pool, shares: d.shares, store: d.store, nodeList: d.nodeList, owners: d.owners}
	t.filters = &filters{directory: d.directory, owners: d.owners}
	t.health = &healthCheck{files: d.files, home: d.home, node: d.node, pool: d.pool, store: d.store, drainState: d.drainState, lease: d.lease, nodeList: d.nodeList, owners: d.owners, pauses: d.pauses, settings: d.settings}
	t.waits = &waitReasons{node: d.node, pool: d.pool, readOnly: d.readOnly, store: d.store, drainState: d.drainState, health: t.health, owners: d.owners, pauses: d.pauses, queueList: t.queueList}
	t.views = &viewer{store: d.store, guard: d.guard, nodeList: d.nodeList, owners: d.owners, pauses: d.pauses, runAs: d.runAs, units: d.units, waits: t.waits}
	t.bulk = &bulk{shares: d.shares, store: d.store, filters: t.filters, guard: d.guard, reader: t.reader, rights: d.rights}
	t.jobChanges = &jobChanger{store: d.store, bulk: t.bulk, filters: t.filters, guard: d.guard, quota: d.quota, reader: t.reader, router: d.router, settings: d.settings}
	t.intake = &intake{account: d.account, shares: d.shares, store: d.store, boot: t.boot, gateRules: d.gateRules, limits: t.limits, nodeList: d.nodeList, owners: d.owners, queueList: t.queueList, queueRules: d.queueRules, quota: d.quota, runAs: d.runAs, settings: d.settings}
	t.outputReader = &outputReader{node: d.node, shares: d.shares, store: d.store, router: d.router}
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
	*Examiner
	*Administration
}

var _ control.API = (*API)(nil)

// New returns the implementation of the API.
func New(d *Dependencies) *API {
	return newAPI(d, newTools(d))
}

func newAPI(d *Dependencies, t *tools) *API {
	return &API{
		Jobs:           &Jobs{log: d.log, node: d.node, pool: d.pool, shares: d.shares, store: d.store, filters: t.filters, guard: d.guard, nodeList: d.nodeList, outputReader: t.outputReader, reader: t.reader, views: t.views, waits: t.waits},
		Actions:        &Actions{pool: d.pool, store: d.store, bulk: t.bulk, changes: d.changes, filters: t.filters, guard: d.guard, intake: t.intake, jobChanges: t.jobChanges, limits: t.limits, lock: d.lock, nodeList: d.nodeList, pauses: d.pauses, queueRules: d.queueRules, reader: t.reader, rights: d.rights, router: d.router, runAs: d.runAs, settings: d.settings},
		Batches:        &Batches{store: d.store, intake: t.intake, owners: d.owners, quota: d.quota, reader: t.reader},
		Explanations:   &Explanations{cluster: d.cluster, node: d.node, readOnly: d.readOnly, shares: d.shares, store: d.store, guard: d.guard, nodeList: d.nodeList, owners: d.owners, reader: t.reader, router: d.router, views: t.views, waits: t.waits},
		Output:         &Output{cluster: d.cluster, node: d.node, pool: d.pool, store: d.store, guard: d.guard, nodeList: d.nodeList, outputReader: t.outputReader, reader: t.reader, router: d.router, runAs: d.runAs},
		Overview:       &Overview{cluster: d.cluster, location: d.location, node: d.node, places: d.places, pool: d.pool, readOnly: d.readOnly, shares: d.shares, started: d.started, store: d.store, version: d.version, guard: d.guard, health: t.health, nodeList: d.nodeList, outputReader: t.outputReader, owners: d.owners, pauses: d.pauses, queueList: t.queueList, quota: d.quota, views: t.views},
		Queues:         &Queues{log: d.log, pool: d.pool, store: d.store, changes: d.changes, guard: d.guard, intake: t.intake, nodeList: d.nodeList, queueList: t.queueList, queueRules: d.queueRules, router: d.router, settings: d.settings},
		Schedules:      &Schedules{shares: d.shares, store: d.store, boot: t.boot, guard: d.guard, intake: t.intake, owners: d.owners, quota: d.quota, router: d.router, runAs: d.runAs, settings: d.settings},
		Gates:          &Gates{cluster: d.cluster, node: d.node, shares: d.shares, store: d.store, changes: d.changes, gateRules: d.gateRules, guard: d.guard, owners: d.owners, router: d.router, settings: d.settings},
		Nodes:          &Nodes{cluster: d.cluster, pool: d.pool, shares: d.shares, store: d.store, changes: d.changes, drainState: d.drainState, drains: d.drains, guard: d.guard, lease: d.lease, lock: d.lock, nodeList: d.nodeList, router: d.router},
		Users:          &Users{places: d.places, store: d.store, directory: d.directory, quota: d.quota, rights: d.rights, runAs: d.runAs, settings: d.settings},
		Statistics:     &Statistics{shares: d.shares, store: d.store},
		EventLog:       &EventLog{shares: d.shares, store: d.store, guard: d.guard, reader: t.reader, rights: d.rights, views: t.views},
		Examiner:       &Examiner{files: d.files, home: d.home, inherited: d.inherited, places: d.places, pool: d.pool, store: d.store, unit: d.unit, version: d.version, programs: d.programs, boot: t.boot, endpoint: d.endpoint, health: t.health, outputFiles: d.outputFiles, owners: d.owners, quota: d.quota, reader: t.reader, rights: d.rights, settings: d.settings},
		Administration: &Administration{account: d.account, background: d.background, files: d.files, home: d.home, log: d.log, node: d.node, places: d.places, pool: d.pool, shares: d.shares, stop: d.stop, store: d.store, reload: d.reload, changes: d.changes, guard: d.guard, hooks: d.hooks, lock: d.lock, outputFiles: d.outputFiles, page: d.page, runAs: d.runAs, settings: d.settings},
	}
}
