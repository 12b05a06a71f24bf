package handlers

import (
	"cmp"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/worker"
)

// rig is an API under test, with the parts that it needs. It has a queue, but runs no jobs and has no socket.
// The field api is the embedded API, for callers that need it under a name.
type rig struct {
	*API
	admission *access.Admission
	api       *API
}

// rigOptions configure a rig. The zero value is valid.
type rigOptions struct {
	settings        map[string]string // by key, as if the settings file contained them
	paths           config.Paths
	directory       *access.Directory
	store           store.Store
	cluster         store.Cluster
	node            string
	runnerLocation  runner.Location
	policyFile      string // policy file of runners that run as root; "" if the service starts its own runners
	workers         string // number of workers; "" means none
	runAsSubmitters bool   // jobs run as their submitters, even if the settings differ
}

// newRig returns a rig. If the options contain no store, its queue is in memory.
func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	d := &parts.Dependencies{
		ServiceInfo: parts.ServiceInfo{Paths: o.paths, Node: o.node, StartedAt: queue.MillisOf(time.Now())},
		CoreParts: parts.CoreParts{
			Store: o.store, Cluster: o.cluster, RunnerLocation: o.runnerLocation, UserLimits: control.NewUserLimits(),
			Log: slog.New(slog.DiscardHandler),
		},
		ApplyTraceSettings: func() string { return "" },
		ExamineStoreDir:    func(string) []store.Finding { return nil },
	}
	if d.Paths.SettingsFile == "" {
		d.Paths.SettingsFile = "/etc/q.toml"
	}
	if d.Store == nil {
		d.Store = memstore.New(queue.Order{})
	}
	d.Settings = newSettingsKeeper(t, o.settings, o.workers)
	d.Directory = cmp.Or(o.directory, &access.Directory{})
	d.Account = rigAccount(t, d.Directory, &d.Settings.Current().Settings)
	d.Account.RunsAsJobAccount = d.Account.RunsAsJobAccount || o.runAsSubmitters
	var policy *launcher.Accounts
	if o.policyFile != "" {
		d.RunnerLocation = runner.Location{SpawnSocket: "/run/q/spawn.sock", Account: d.Settings.Current().FixedUser()}
		policy = &launcher.Accounts{PolicyFile: o.policyFile, ServiceUID: accounts.CurrentUser(),
			Directory: &d.Directory.Directory}
	}
	d.JobAccountFor = func(*config.Settings) (worker.Account, error) { return d.Account, nil }
	d.Lock, d.Pauses, d.DrainState = settings.NewLock(), &settings.PauseOfAllJobs{}, &cluster.DrainState{}
	d.Rights = &access.Rights{Paths: d.Paths, Directory: d.Directory, Settings: d.Settings}
	d.Rights.ResolveAccess()
	d.QueueRules = &settings.QueueRules{Store: d.Store, Settings: d.Settings}
	d.GateRules = &settings.GateRules{Store: d.Store}
	d.Quota = &settings.Quota{Store: d.Store, Settings: d.Settings}
	d.Owners = access.NewOwners(d.Store, d.Cluster, d.Directory, d.Account)
	d.Guard = &access.Guard{Owners: d.Owners, Rights: d.Rights, RunnerLocation: d.RunnerLocation, RunnerPolicy: policy}
	d.Hooks = &hooks.Hooks{
		Account: d.Account, Log: d.Log, Store: d.Store, Directory: d.Directory, Owners: d.Owners,
		Quota: d.Quota, Settings: d.Settings,
	}
	d.OutputFiles = &cluster.OutputFiles{RunnerLocation: d.RunnerLocation, Paths: d.Paths}
	d.Pool = worker.New(d.Store, worker.Config{
		RunnerLocation: d.RunnerLocation, Account: d.Account, Log: d.Log, Clock: d.Store.Now, CheckStart: d.Owners.CheckOwner,
		ResourceUnitEnv: d.Settings.UnitVariables,
		UserQuota:       d.Quota.MaxBytesPerUser, RunningJobsPaused: d.QueueRules.RunningJobsPaused,
		HungRunnerAdvice: doctor.EndRunnerAdvice, Node: d.Node,
		Policy:      func() queue.RetryPolicy { return d.Settings.Current().RetryPolicy() },
		StopTimeout: func() time.Duration { return d.Settings.Current().StopTimeout },
		StaleAfter:  func() time.Duration { return d.Settings.Current().WorkerTimeout },
	}, d.Settings.Current().WorkerCount())
	d.AllNodes = &cluster.NodeList{Node: d.Node, Store: d.Store, Owners: d.Owners, Settings: d.Settings,
		Cluster: d.Cluster, Pool: d.Pool, StartedAt: d.StartedAt}
	requests, _ := o.cluster.(store.NodeRequests)
	d.Router = &cluster.JobRouter{
		NodeList: d.AllNodes, NodeRequests: requests, OutputFiles: d.OutputFiles,
		RemoteWaitLimiter: cluster.NewRemoteWaitLimiter(),
	}
	d.Drainer = &cluster.Drainer{Cluster: d.Cluster, Pool: d.Pool, DrainState: d.DrainState}
	d.LeaseKeeper = cluster.NewLeaseKeeper(d.Log, d.Drainer, d.AllNodes)
	api := New(d, FrontParts{
		Endpoint: noEndpoint{}, StopRequests: make(chan bool, 1),
		BeforeReload: func() {}, AfterReload: func() {},
	})
	return &rig{
		API: api, api: api,
		admission: &access.Admission{
			Log: d.Log, Lock: d.Lock, Owners: d.Owners, Rights: d.Rights, StoreNodeRecord: d.AllNodes.StoreNodeRecord,
		},
	}
}

// rigAccount returns the account that jobs run as with the given settings.
func rigAccount(t testing.TB, d *access.Directory, set *config.Settings) worker.Account {
	t.Helper()
	a := d.AccountOf(accounts.CurrentUser())
	if name := set.FixedUser(); name != "" {
		known, err := d.AccountNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		a = known
	}
	a.RunsAsJobAccount = set.RunAs == config.RunAsSubmitter
	return a
}

// newSettingsKeeper returns a keeper with the given settings, as if the settings file contained them. workers ""
// means 0.
func newSettingsKeeper(t testing.TB, values map[string]string, workers string) *settings.Keeper {
	t.Helper()
	flags := map[string]string{"workers": cmp.Or(workers, "0")}
	k, err := settings.New(settings.Options{Flags: flags})
	if err == nil {
		err = k.ReplaceFile(config.Layer{Origin: config.FromFile, Values: values})
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// noEndpoint is an Endpoint without a socket.
type noEndpoint struct{}

// SocketInherited implements Endpoint.
func (noEndpoint) SocketInherited() bool { return false }

// CheckSettings implements Endpoint.
func (noEndpoint) CheckSettings(*config.Settings) error { return nil }

// UpdateAccess implements Endpoint.
func (noEndpoint) UpdateAccess() {}

// setQuota sets the quota of each user; a negative number means auto.
func (s *rig) setQuota(t testing.TB, quotaBytes int64) {
	t.Helper()
	text := "auto"
	if quotaBytes >= 0 {
		text = strconv.FormatInt(quotaBytes, 10)
	}
	if err := s.Settings.ReplaceValue("max_bytes_per_user", text, ""); err != nil {
		t.Fatal(err)
	}
}

// setDefaults sets the defaults of a queue.
func (s *rig) setDefaults(t testing.TB, name, defaults string) {
	t.Helper()
	err := s.Store.SetQueue(t.Context(), name, store.QueueRule{Weight: 1, JobDefaults: defaults})
	if err == nil {
		err = s.QueueRules.LoadRules(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}
