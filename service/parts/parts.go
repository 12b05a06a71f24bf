// Package parts lists the parts of a service, such as the store and the worker pool. Package service and the
// packages below it share this one list.
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

// Dependencies are the parts that package service and the packages below it use. All of these parts exist once the
// store is open.
type Dependencies struct {
	ServiceInfo
	CoreParts
	SettingsParts
	AccessParts
	NodeParts
	Hooks              *hooks.Hooks
	ApplyTraceSettings func() (problem string) // applies changed settings to the exporter of traces
	// JobAccountFor returns the account that jobs would run as with the given settings.
	JobAccountFor   func(*config.Settings) (worker.Account, error)
	ExamineStateDir func(dir string) []store.Finding // checks the state directory of a queue whose store is on a server
}

// ServiceInfo holds the facts about the service that replies and findings contain.
type ServiceInfo struct {
	Version       string
	Paths         config.Paths
	NodeName      string           // name of this node
	StoreLocation fmt.Stringer     // where the store is
	StartedAt     queue.UnixMillis // when the service started
	// ReadOnly means read-only mode: no service runs, and only the queue's files are read. See
	// service.OpenOffline.
	ReadOnly              bool
	SocketInherited       bool          // another process created the socket, so the settings do not determine its mode
	StartedOnDemand       bool          // a client started the service on demand
	InheritedRestrictions []string      // see service.Options.InheritedRestrictions
	StartAtBootAdvice     func() string // see service.Options.StartAtBootAdvice; may be nil
	SystemdUnit           systemd.Unit  // the systemd unit of the service
	ProgramFiles          []ProgramFile // the program files of the service and of its runner
}

// ProgramFile describes the file of a program at the time when the service started.
type ProgramFile struct {
	Path            string
	FileInfoAtStart os.FileInfo
}

// CoreParts are the parts of the service that store and run jobs.
type CoreParts struct {
	Store           store.Store
	StoreMaintainer store.Maintainer // the store's maintenance operations; nil if the store has none
	Cluster         store.Cluster    // nil if no other node can use the store
	Pool            *worker.Pool
	RunnerLocation  runner.RunnersLocation // where the runners are
	JobAccount      worker.Account         // account that jobs run as
	OutputFiles     *cluster.OutputFiles
	UserLimits      *control.UserLimits
	Log             *slog.Logger
	LogFile         *os.File // log file that the service opens again after a log rotation; nil if it has none
}

// SettingsParts are the parts of the service that keep settings.
type SettingsParts struct {
	Settings       *settings.Keeper
	SettingsLock   *settings.Lock
	PauseOfAllJobs *settings.PauseOfAllJobs
	QueueRules     *settings.QueueRules
	GateRules      *settings.GateRules
	UserQuota      *settings.UserQuota
}

// AccessParts are the parts of the service that decide rights.
type AccessParts struct {
	UserDirectory *access.UserDirectory
	Rights        *access.Rights
	Owners        *access.Owners
	Guard         *access.Guard
}

// NodeParts are the parts of the service that deal with the nodes that share the queue.
type NodeParts struct {
	NodeRegistry    *cluster.NodeRegistry
	JobRouter       *cluster.JobRouter
	DrainState      *cluster.DrainState
	Drainer         *cluster.Drainer
	NodeLeaseKeeper *cluster.NodeLeaseKeeper
}
