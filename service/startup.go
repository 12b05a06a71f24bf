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

// startup holds the parts of the service that exist before the store is open.
type startup struct {
	options          Options
	readOnly         bool // read-only mode: no service runs, and only the queue's files are read; see OpenOffline
	log              *slog.Logger
	settings         *settings.Keeper
	accountDirectory *access.UserDirectory
	accessRights     *access.Rights
	drainState       *cluster.DrainState
	globalPause      *settings.PauseOfAllJobs
	programFiles     []parts.ProgramFile // files of the service and runner programs at the start; nil in read-only mode
	// launcher is the process that starts runners as root. Its PID is zero if this service has started no launcher. A
	// service can start a launcher only while it is root.
	launcher           runner.Launcher
	socketOpenedAsRoot *socket.Listener // the control socket, if it was opened while the process was root
	socket             *socket.Listener // the control socket; nil until it is open
	isSocketInherited  bool             // another process created the socket, so the settings do not determine its mode
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
	b.log = newLogger(&o, b.settings, w)
	if err := doctor.CheckOpenFileLimit(); err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	if len(o.InheritedRestrictions) > 0 {
		b.log.Warn("the service inherited restrictions from the process that started it", "inherited",
			strings.Join(o.InheritedRestrictions, "; "))
	}
	if err := socket.CheckPath(o.Paths.SocketPath); err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	if runAs := b.settings.CurrentConfig().RunAs; o.ExternalRunners.SpawnSocketPath == "" &&
		accounts.CurrentUserID() == 0 &&
		runAs != config.RunAsService {
		if err := b.bootstrapRoot(); err != nil {
			return nil, &ExitError{ExitCodeConfig, fmt.Errorf("cannot prepare the service for run_as = %q: %w", runAs, err)}
		}
	}
	b.programFiles = doctor.ProgramFiles(o.RunnerCommand[0])
	return b, nil
}

// readStartupSettings reads the settings that do not need the store. The returned startup writes no log.
func readStartupSettings(o Options) (*startup, error) {
	b := &startup{options: o, log: slog.New(slog.DiscardHandler), accountDirectory: &access.UserDirectory{},
		drainState: &cluster.DrainState{}, globalPause: &settings.PauseOfAllJobs{}}
	var err error
	if b.settings, err = settings.New(settings.Options{SettingsFile: o.Paths.SettingsFile,
		RequireSettingsFile: o.RequireSettingsFile,
		DefaultValues:       defaultSettingsForManager(&o, b.accountDirectory), FlagValues: o.FlagSettings}); err != nil {
		return nil, err
	}
	b.accessRights = &access.Rights{Paths: o.Paths, UserDirectory: b.accountDirectory, Settings: b.settings}
	return b, nil
}

// openStore opens the store and applies the settings in it. If the state directory is a copy of the state directory of
// another running node, openStore gives this node a new identity and opens the store again.
func (st *startup) openStore(ctx context.Context) (q openedStore, err error) {
	q, err = st.tryOpenStore(ctx)
	if errors.Is(err, errDirCopied) {
		if err = st.replaceNodeID(); err == nil {
			q, err = st.tryOpenStore(ctx)
		}
	}
	return q, err
}

// tryOpenStore opens the store once. It returns errDirCopied if the state directory is a copy of the state directory of
// another running node.
func (st *startup) tryOpenStore(ctx context.Context) (q openedStore, err error) {
	open := st.options.openLocalStore
	url, err := st.settings.CurrentConfig().StoreURL()
	if err != nil {
		return q, err
	}
	q.nodeName = st.nodeName()
	q.location = storeLocation{Dir: st.options.Paths.StateDir, URL: url}
	if url != "" {
		var node nodeIdentity
		if !st.readOnly {
			if node, err = st.loadNodeIdentity(); err != nil {
				return q, err
			}
		}
		open = st.options.remoteStoreOpener(url, node)
	}
	q.store, err = open(ctx, st.options.Paths.StateDir, st.log,
		func(storedSettings []store.Setting) (queue.RankOrder, error) {
			if err := handlers.ApplyStoredSettings(storedSettings, st.drainState, st.globalPause, st.settings); err != nil {
				return queue.RankOrder{}, err
			}
			st.accessRights.ResolveAccessSettings()
			return st.settings.CurrentConfig().JobOrder(), nil
		})
	return q, err
}

// defaultSettingsForManager returns default settings that depend on how the service was started. If a ServiceManager
// started the service, all jobs run as the service's own account by default.
func defaultSettingsForManager(o *Options, d *access.UserDirectory) map[string]string {
	if o.ServiceManager == nil {
		return nil
	}
	return map[string]string{"run_as": config.FixedRunAsValue(d.AccountByUID(accounts.CurrentUserID()).UserName)}
}

// nodeName returns the name under which other nodes that share the queue see this node.
func (st *startup) nodeName() string {
	host, _ := os.Hostname() // without a host name, nodeName uses localhost
	return cmp.Or(st.settings.CurrentConfig().NodeName, host, "localhost")
}
