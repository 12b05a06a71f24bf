package service

import (
	"cmp"
	"log/slog"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/traces"
)

// rig is a service with the parts that answer requests. It runs no jobs and has no socket.
type rig struct {
	*Service
	*tools
	admission      *admission
	endpoint       *endpoint
	accountChoice  *accountChoice
	api            *API
	jobs           *Jobs
	actions        *Actions
	batches        *Batches
	explanations   *Explanations
	output         *Output
	overview       *Overview
	queues         *Queues
	schedules      *Schedules
	gates          *Gates
	nodes          *Nodes
	events         *EventLog
	doctor         *Examiner
	administration *Administration
}

// rigOptions configure a rig. The zero value is valid.
type rigOptions struct {
	settings  map[string]string // by key, as if the settings file contained them
	places    config.Places
	runners   Runners
	directory *directory
	log       *slog.Logger
	store     store.Store
	cluster   store.Cluster
	node      string
	home      runner.Home
	workers   string // number of workers; "" means none
	each      bool   // jobs run as their submitters, whatever the settings say
}

// newKeeperWith returns a keeper with the given settings, as if the settings file contained them.
func newKeeperWith(t testing.TB, settings map[string]string, workers string) *keeper {
	t.Helper()
	k := &keeper{rolesChanged: make(chan struct{}, 1), layers: []config.Layer{
		layerDefault: {Origin: config.FromDefault},
		layerFile:    {Origin: config.FromFile, Values: settings},
		layerStored:  {Origin: config.FromStored, Values: map[string]string{}},
		layerEnv:     {Origin: config.FromEnv},
		layerFlag:    {Origin: config.FromFlag, Values: map[string]string{"workers": cmp.Or(workers, "0")}},
		layerRunning: {Origin: config.FromRunning, Values: map[string]string{}},
	}}
	if err := k.mergeLocked(); err != nil {
		t.Fatal(err)
	}
	return k
}

// newStartupRig returns the parts of a rig that exist before the store is open.
func newStartupRig(t testing.TB, o rigOptions) *startup {
	t.Helper()
	b := &startup{
		opt: Options{Places: o.places, Runners: o.runners}, log: cmp.Or(o.log, slog.New(slog.DiscardHandler)),
		directory: cmp.Or(o.directory, &directory{}), drainState: &drainState{}, pauses: &allPause{},
		settings: newKeeperWith(t, o.settings, o.workers),
	}
	if b.opt.Places.File == "" {
		b.opt.Places.File = "/etc/q.toml"
	}
	b.rights = &rights{places: b.opt.Places, directory: b.directory, settings: b.settings}
	b.stored = &storedSettings{drainState: b.drainState, pauses: b.pauses, rights: b.rights, settings: b.settings}
	b.rights.resolveAccess()
	return b
}

// newRig returns a rig.
func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	b := newStartupRig(t, o)
	account, err := b.accountChoice().accountBy(&b.settings.config.Load().Settings)
	if err != nil {
		t.Fatal(err)
	}
	account.Each = account.Each || o.each
	home := o.home
	if home.Dir == "" {
		if home, err = b.runnerHome(); err != nil {
			t.Fatal(err)
		}
	}
	q := openQueue{store: o.store, cluster: o.cluster, node: o.node}
	if q.store == nil {
		q.store = memstore.New(queue.Order{})
	}
	s := newService(b, q, home, account, traces.New("", "", b.log))
	e := newEndpoint(b)
	changes := newChanger(s, e, newWebPage(b.log, s.guard, b.settings, nil, nil))
	d := s.dependencies(changes, e)
	tools := newTools(d)
	api := newAPI(d, tools)
	return &rig{
		Service: s, tools: tools, admission: newAdmission(s), endpoint: e, accountChoice: b.accountChoice(), api: api,
		jobs: api.Jobs, actions: api.Actions, batches: api.Batches, explanations: api.Explanations, output: api.Output,
		overview: api.Overview, queues: api.Queues, schedules: api.Schedules, gates: api.Gates, nodes: api.Nodes,
		events: api.EventLog, doctor: api.Examiner, administration: api.Administration,
	}
}

// authorizer returns what decides the rights of peers.
func (s *rig) authorizer() control.Authorizer { return &authorizer{s.admission, s.rights} }
