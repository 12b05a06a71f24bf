// Package parts lists the parts of an open queue, so that the packages below service share them without a list for
// each of their types.
//
// Start with Dependencies.
package parts

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Dependencies are the parts that package service and the packages below it use. They exist once the store is open.
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

// ServiceInfo describes the service to clients.
type ServiceInfo struct {
	Version   string
	Paths     config.Paths
	Node      string       // name of this node
	Location  fmt.Stringer // where the store is
	StartedAt queue.Millis // when the service started
	// read-only mode: no service runs, and only the queue's files are read; see service.OpenOffline
	ReadOnly              bool
	StartedOnDemand       bool          // a client started the service on demand
	InheritedRestrictions []string      // restrictions that the service inherited; see Options
	BootAdvice            func() string // see Options.BootAdvice; may be nil
	SystemdUnit           systemd.Unit  // the systemd unit of the service
	Programs              []ProgramFile // the files of the running programs
}

// ProgramFile is the file of a program as it was when the service started.
type ProgramFile struct {
	Path string
	Info os.FileInfo
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
