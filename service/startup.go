package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/handlers"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// startup is a service that is being started. Before the store is open, its Dependencies contain only the parts that do
// not need the store. newService adds the other parts.
type startup struct {
	*parts.Dependencies
	options Options
	// launcher is the process that starts runners as root. Its PID is zero if this service has started no launcher. A
	// service can start a launcher only while it is root.
	launcher           runner.Launcher
	socketOpenedAsRoot *socket.Listener // the control socket, if it was opened while the process was root
	socket             *socket.Listener // the control socket; nil until it is open
	webListeners       []net.Listener   // listeners for the web page that the system passed to the service
}

// newStartup reads the settings and checks the environment. If the service was started as root, newStartup does
// the work that needs root.
func newStartup(o Options) (*startup, error) {
	b, err := readStartupSettings(o)
	if err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	var w io.Writer = o.LogFile
	if o.StartedOnDemand || o.ServiceManager != nil {
		w = logs.RotatingFile{File: o.LogFile}
	}
	b.Log = newLogger(&o, b.Settings, w)
	if err := doctor.CheckOpenFileLimit(); err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	if len(o.InheritedRestrictions) > 0 {
		b.Log.Warn("the service inherited restrictions from the process that started it", "inherited",
			strings.Join(o.InheritedRestrictions, "; "))
	}
	if err := socket.CheckPath(o.Paths.SocketPath); err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	if runAs := b.Settings.CurrentConfig().RunAs; o.ExternalRunners.SpawnSocketPath == "" &&
		accounts.CurrentUserID() == 0 &&
		runAs != config.RunAsService {
		if err := b.bootstrapRoot(); err != nil {
			return nil, &ExitError{ExitCodeConfig, fmt.Errorf("cannot prepare the service for run_as = %q: %w", runAs, err)}
		}
	}
	b.ProgramFiles = doctor.ProgramFiles(o.RunnerCommand[0])
	return b, nil
}

// readStartupSettings reads the settings that do not need the store. The returned startup writes no log.
func readStartupSettings(o Options) (*startup, error) {
	users := &access.UserDirectory{}
	keeper, err := settings.New(settings.Options{SettingsFile: o.Paths.SettingsFile,
		RequireSettingsFile: o.RequireSettingsFile,
		DefaultValues:       defaultsForServiceManager(&o, users), FlagValues: o.FlagSettings})
	if err != nil {
		return nil, err
	}
	return &startup{options: o, Dependencies: &parts.Dependencies{
		ServiceInfo: parts.ServiceInfo{
			Version: o.Version, Paths: o.Paths, StartedOnDemand: o.StartedOnDemand,
			InheritedRestrictions: o.InheritedRestrictions, StartAtBootAdvice: o.StartAtBootAdvice, SystemdUnit: o.SystemdUnit,
		},
		CoreParts: parts.CoreParts{Log: slog.New(slog.DiscardHandler), UserLimits: control.NewUserLimits()},
		SettingsParts: parts.SettingsParts{Settings: keeper, SettingsLock: settings.NewLock(),
			PauseOfAllJobs: &settings.PauseOfAllJobs{}},
		AccessParts: parts.AccessParts{UserDirectory: users,
			Rights: &access.Rights{Paths: o.Paths, UserDirectory: users, Settings: keeper}},
		NodeParts:       parts.NodeParts{DrainState: &cluster.DrainState{}},
		ExamineStateDir: examineStateDir,
	}}, nil
}

// openStore opens the store and applies the settings in it. If the state directory is a copy of the state directory of
// another running node, openStore gives this node a new identity and opens the store again.
func (st *startup) openStore(ctx context.Context) error {
	err := st.tryOpenStore(ctx)
	if errors.Is(err, errStateDirCopied) {
		if err = st.replaceNodeID(); err == nil {
			err = st.tryOpenStore(ctx)
		}
	}
	return err
}

// tryOpenStore opens the store once. It returns errStateDirCopied if the state directory is a copy of the state
// directory of another running node.
func (st *startup) tryOpenStore(ctx context.Context) error {
	url, err := st.Settings.CurrentConfig().StoreURL()
	if err != nil {
		return err
	}
	st.NodeName, st.StoreLocation = st.nodeName(), storeLocation{Dir: st.Paths.StateDir, URL: url}
	open, err := st.storeOpener(url)
	if err != nil {
		return err
	}
	st.Store, err = open(ctx, st.Paths.StateDir, st.Log,
		func(storedSettings []store.Setting) (queue.RankPolicy, error) {
			if err := handlers.ApplyStoredSettings(storedSettings, st.DrainState, st.PauseOfAllJobs, st.Settings); err != nil {
				return queue.RankPolicy{}, err
			}
			st.Rights.ResolveAccessSettings()
			return st.Settings.CurrentConfig().JobOrder(), nil
		})
	return err
}

// storeOpener returns the opener of the store at url; "" means the store in the state directory.
func (st *startup) storeOpener(url string) (storeOpener, error) {
	switch {
	case url != "" && st.ReadOnly: // without a service, such a queue can be read with the tools of the database
		return nil, queue.Errorf(queue.CodeWrongState,
			"the service is not running, and a queue in PostgreSQL can be read only through it; start it with: "+
				"queuectl service start")
	case url != "":
		node, err := st.loadNodeIdentity()
		return postgresOpener(url, node), err
	case st.ReadOnly:
		return openStoreReadOnly, nil
	case st.options.openLocalStore != nil:
		return st.options.openLocalStore, nil
	}
	return openSQLiteStore, nil
}

// defaultsForServiceManager returns default settings that depend on how the service was started. If a ServiceManager
// started the service, all jobs run as the service's own account by default.
func defaultsForServiceManager(o *Options, d *access.UserDirectory) map[string]string {
	if o.ServiceManager == nil {
		return nil
	}
	return map[string]string{"run_as": config.FixedRunAsValue(d.AccountByUID(accounts.CurrentUserID()).UserName)}
}

// nodeName returns the name under which other nodes that share the queue see this node.
func (st *startup) nodeName() string {
	host, _ := os.Hostname() // without a host name, nodeName uses localhost
	return cmp.Or(st.Settings.CurrentConfig().NodeName, host, "localhost")
}
