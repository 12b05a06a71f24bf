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

// testAPI is an API under test, with the parts that it needs. It has a queue, but runs no jobs and has no socket.
// The field api is the embedded API, for callers that need it under a name.
type testAPI struct {
	*API
	admission *access.Admission
	api       *API
}

// testAPIOptions configure a testAPI. The zero value is valid.
type testAPIOptions struct {
	settingValues    map[string]string // by key, as if the settings file contained them
	paths            config.Paths
	userDirectory    *access.UserDirectory
	store            store.Store
	cluster          store.Cluster
	nodeName         string
	runnerLocation   runner.RunnersLocation
	runnerPolicyFile string // policy file of runners that run as root; "" if the service starts its own runners
	workersSetting   string // number of workers; "" means none
	runAsSubmitters  bool   // jobs run as their submitters, even if the settings differ
}

// newTestAPI returns an API under test. If the options contain no store, its queue is in memory.
func newTestAPI(t testing.TB, o testAPIOptions) *testAPI {
	t.Helper()
	d := &parts.Dependencies{
		ServiceInfo: parts.ServiceInfo{Paths: o.paths, NodeName: o.nodeName, StartedAt: queue.UnixMillisOf(time.Now())},
		CoreParts: parts.CoreParts{
			Store: o.store, Cluster: o.cluster, RunnerLocation: o.runnerLocation, UserLimits: control.NewUserLimits(),
			Log: slog.New(slog.DiscardHandler),
		},
		ApplyTraceSettings: func() string { return "" },
		ExamineStateDir:    func(string) []store.Finding { return nil },
	}
	if d.Paths.SettingsFile == "" {
		d.Paths.SettingsFile = "/etc/q.toml"
	}
	if d.Store == nil {
		d.Store = memstore.New(queue.RankPolicy{})
	}
	d.Settings = newSettingsKeeper(t, o.settingValues, o.workersSetting)
	d.UserDirectory = cmp.Or(o.userDirectory, &access.UserDirectory{})
	d.JobAccount = testJobAccount(t, d.UserDirectory, &d.Settings.CurrentConfig().Settings)
	d.JobAccount.UsesPerJobAccount = d.JobAccount.UsesPerJobAccount || o.runAsSubmitters
	var policy *launcher.AccountAuthorizer
	if o.runnerPolicyFile != "" {
		d.RunnerLocation = runner.RunnersLocation{SpawnSocketPath: "/run/q/spawn.sock",
			SwitchToAccount: d.Settings.CurrentConfig().FixedJobUser()}
		policy = &launcher.AccountAuthorizer{PolicyFile: o.runnerPolicyFile, ServiceUID: accounts.CurrentUserID(),
			AccountResolver: &d.UserDirectory.Resolver}
	}
	d.JobAccountFor = func(*config.Settings) (worker.Account, error) { return d.JobAccount, nil }
	d.SettingsLock, d.PauseOfAllJobs, d.DrainState = settings.NewLock(), &settings.PauseOfAllJobs{}, &cluster.DrainState{}
	d.Rights = &access.Rights{Paths: d.Paths, UserDirectory: d.UserDirectory, Settings: d.Settings}
	d.Rights.ResolveAccessSettings()
	d.QueueRules = &settings.QueueRules{Store: d.Store, Settings: d.Settings}
	d.GateRules = &settings.GateRules{Store: d.Store}
	d.UserQuota = &settings.UserQuota{Store: d.Store, Settings: d.Settings}
	d.Owners = access.NewOwners(d.Store, d.Cluster, d.UserDirectory, d.JobAccount)
	d.Guard = &access.Guard{Owners: d.Owners, Rights: d.Rights, RunnerLocation: d.RunnerLocation,
		RunnerAccountPolicy: policy}
	d.Hooks = &hooks.Hooks{
		JobAccount: d.JobAccount, Log: d.Log, Store: d.Store, UserDirectory: d.UserDirectory, Owners: d.Owners,
		UserQuota: d.UserQuota, Settings: d.Settings,
	}
	d.OutputFiles = &cluster.OutputFiles{RunnerLocation: d.RunnerLocation, Paths: d.Paths}
	d.Pool = worker.New(d.Store, worker.Config{
		RunnerLocation: d.RunnerLocation, Account: d.JobAccount, Log: d.Log, StoreTime: d.Store.Now,
		CheckJobMayStart: d.Owners.CheckJobAccountsUnchanged,
		ResourceUnitEnv:  d.Settings.ResourceUnitEnvVars,
		UserQuotaBytes:   d.UserQuota.MaxBytesPerUser, AreRunningJobsPaused: d.QueueRules.RunningJobsPaused,
		HungRunnerAdvice: doctor.HungRunnerAdvice, NodeName: d.NodeName,
		RetryPolicy:      func() queue.RetryPolicy { return d.Settings.CurrentConfig().RetryPolicy() },
		StopTimeout:      func() time.Duration { return d.Settings.CurrentConfig().StopTimeout },
		WorkerStaleAfter: func() time.Duration { return d.Settings.CurrentConfig().WorkerTimeout },
	}, d.Settings.CurrentConfig().WorkerCount())
	d.NodeRegistry = &cluster.NodeRegistry{NodeName: d.NodeName, Store: d.Store, Owners: d.Owners, Settings: d.Settings,
		Cluster: d.Cluster, Pool: d.Pool, ServiceStartedAt: d.StartedAt}
	requests, _ := o.cluster.(store.NodeRequests)
	d.JobRouter = &cluster.JobRouter{
		NodeRegistry: d.NodeRegistry, NodeRequests: requests, OutputFiles: d.OutputFiles,
		RemoteWaitLimiter: cluster.NewRemoteWaitLimiter(),
	}
	d.Drainer = &cluster.Drainer{Cluster: d.Cluster, Pool: d.Pool, DrainState: d.DrainState}
	d.NodeLeaseKeeper = cluster.NewNodeLeaseKeeper(d.Log, d.Drainer, d.NodeRegistry)
	api := New(d, FrontEndParts{
		CheckSocketSettings: func(*config.Settings) error { return nil }, UpdateSocketAccess: func() {},
		StopServiceRequests:  make(chan bool, 1),
		BeforeSettingsReload: func() {}, AfterSettingsReload: func() {},
	})
	return &testAPI{
		API: api, api: api,
		admission: &access.Admission{
			Log: d.Log, SettingsLock: d.SettingsLock, Owners: d.Owners, Rights: d.Rights,
			StoreNodeRecord: d.NodeRegistry.StoreNodeRecord,
		},
	}
}

// testJobAccount returns the account that jobs run as with the given settings.
func testJobAccount(t testing.TB, d *access.UserDirectory, set *config.Settings) worker.Account {
	t.Helper()
	a := d.AccountByUID(accounts.CurrentUserID())
	if name := set.FixedJobUser(); name != "" {
		known, err := d.AccountByName(name)
		if err != nil {
			t.Fatal(err)
		}
		a = known
	}
	a.UsesPerJobAccount = set.RunAs == config.RunAsSubmitter
	return a
}

// newSettingsKeeper returns a keeper with the given settings, as if the settings file contained them. workersSetting is
// the setting "workers"; "" means 0.
func newSettingsKeeper(t testing.TB, values map[string]string, workersSetting string) *settings.Keeper {
	t.Helper()
	flags := map[string]string{"workers": cmp.Or(workersSetting, "0")}
	k, err := settings.New(settings.Options{FlagValues: flags})
	if err == nil {
		err = k.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: values})
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// setUserQuota sets the quota of bytes of each user; a negative number means "auto".
func (s *testAPI) setUserQuota(t testing.TB, quotaBytes int64) {
	t.Helper()
	text := "auto"
	if quotaBytes >= 0 {
		text = strconv.FormatInt(quotaBytes, 10)
	}
	if err := s.Settings.ReplaceSettingValue("max_bytes_per_user", text, ""); err != nil {
		t.Fatal(err)
	}
}

// setQueueDefaults sets the defaults of a queue.
func (s *testAPI) setQueueDefaults(t testing.TB, queueName, defaults string) {
	t.Helper()
	err := s.Store.SetQueue(t.Context(), queueName, store.QueueRule{Weight: 1, JobDefaults: defaults})
	if err == nil {
		err = s.QueueRules.LoadQueueRules(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}
