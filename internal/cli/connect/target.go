// Package connect finds the service that a command uses, starts it if necessary and connects to it. It
// also finds and executes queuectld.
//
// Start with ServiceFinder.
package connect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// ServiceFinder finds the service that a command uses and connects to it.
type ServiceFinder struct {
	messageOutput          *term.Output
	SocketPath, ServiceDir string // the flags --socket and --dir
	Version                string // version of this program
	// FailureExitCode is the exit code for every failure of queuectl itself. 0 means that the exit code depends on
	// the error.
	FailureExitCode int

	executingClientVersion string          // version of the queuectl that has executed this process; "" if the user has
	lastClient             *control.Client // the client of the most recent request; nil before the first
}

// NewServiceFinder returns a ServiceFinder for a program of the given version. The ServiceFinder prints its messages to
// o.
func NewServiceFinder(o *term.Output, version string) ServiceFinder {
	defer os.Unsetenv(clientVersionVariable) // jobs must not inherit the variable
	return ServiceFinder{messageOutput: o, Version: version, executingClientVersion: os.Getenv(clientVersionVariable)}
}

// Target is the service that a command uses.
type Target struct {
	SocketPath    string
	StartCommand  string // command that starts the service, for messages
	IsUserService bool   // the service is the user's own, so a command may start it automatically
	NoQueueExists bool   // neither the user nor the system has a queue yet

	servicePaths config.Paths // paths of the service's files; the zero value if they are unknown

	// ServeFlags holds the flags with which "queuectl serve" uses the directory of this service. It is nil if no flags are
	// needed, because the directory is the user's default one. It is also nil if the directory is unknown.
	ServeFlags []string
}

// CanStart reports whether the command "queuectl service start" can start the service in the
// background.
func (t *Target) CanStart() bool { return t.IsUserService || t.ServeFlags != nil }

// ChooseTarget selects the service. It considers, in this order: the flags, the environment, the user's own
// service if its directory exists, and the system's service if its directory or socket exists. ChooseTarget
// does not check whether the service runs.
func (f *ServiceFinder) ChooseTarget() (Target, error) {
	if f.SocketPath != "" {
		return f.targetOfSocketFlag()
	}
	if f.ServiceDir != "" {
		dir, err := f.AbsServiceDir()
		return targetInDir(dir, f.ServiceDir), err
	}
	if s := os.Getenv("QUEUECTL_SOCKET"); s != "" {
		return targetAtSocket(s), checkSocketPath("QUEUECTL_SOCKET", s)
	}
	user, err := config.UserPaths()
	own := Target{SocketPath: user.SocketPath, StartCommand: startUserServiceCommand, IsUserService: true,
		servicePaths: user}
	if err == nil && files.Exists(user.StateDir) {
		return own, nil
	}
	system := config.SystemPaths()
	if files.Exists(system.StateDir) || socketExists(system.SocketPath) {
		return Target{SocketPath: system.SocketPath, StartCommand: StartSystemServiceCommand, servicePaths: system}, nil
	}
	own.NoQueueExists = true
	return own, err
}

// targetOfSocketFlag returns the service whose socket is the value of --socket. If --dir is also set, its value is the
// directory of the service.
func (f *ServiceFinder) targetOfSocketFlag() (Target, error) {
	t := targetAtSocket(f.SocketPath)
	if err := checkSocketPath("--socket", f.SocketPath); err != nil || f.ServiceDir == "" {
		return t, err
	}
	dir, err := f.AbsServiceDir()
	if err != nil {
		return t, err
	}
	socket, err := filepath.Abs(f.SocketPath)
	t.StartCommand = "queuectl --dir " + queue.QuoteShellWord(f.ServiceDir) + " --socket " +
		queue.QuoteShellWord(f.SocketPath) +
		" service start"
	t.ServeFlags = []string{"--dir", dir, "--socket", socket}
	return t, err
}

// startUserServiceCommand is the command that starts the user's own service.
const startUserServiceCommand = "queuectl service start"

// targetInDir returns the service whose files are all in dir. dirAsTyped is dir as the user wrote it.
func targetInDir(dir, dirAsTyped string) Target {
	paths := config.PathsInDir(dir)
	if user, err := config.UserPaths(); err == nil && dir == user.StateDir {
		return Target{SocketPath: user.SocketPath, StartCommand: startUserServiceCommand, servicePaths: paths}
	}
	return Target{SocketPath: paths.SocketPath,
		StartCommand: "queuectl --dir " + queue.QuoteShellWord(dirAsTyped) + " service start",
		ServeFlags:   []string{"--dir", dir}, servicePaths: paths}
}

// targetAtSocket returns the service that uses a socket. If possible, it derives the service's directory from
// the path of the socket.
func targetAtSocket(socketPath string) Target {
	user, err := config.UserPaths()
	around, known := config.PathsOfSocket(socketPath)
	switch whole, failed := filepath.Abs(around.StateDir); {
	case socketPath == config.SystemPaths().SocketPath:
		return Target{SocketPath: socketPath, StartCommand: StartSystemServiceCommand, servicePaths: config.SystemPaths()}
	case err == nil && socketPath == user.SocketPath:
		return Target{SocketPath: socketPath, StartCommand: startUserServiceCommand, servicePaths: user}
	case known && failed == nil:
		t := targetInDir(whole, around.StateDir)
		t.SocketPath, t.servicePaths = socketPath, around
		return t
	}
	return Target{SocketPath: socketPath, StartCommand: "queuectl serve --socket " + queue.QuoteShellWord(socketPath)}
}

// ServicePaths returns the paths of the chosen service's files. It returns an error if the service's directory is
// unknown.
func (f *ServiceFinder) ServicePaths() (config.Paths, error) {
	t, err := f.ChooseTarget()
	if err == nil && t.servicePaths.StateDir == "" {
		err = fault.Usagef("the directory with the queue of the socket %s is unknown; give it with --dir", t.SocketPath)
	}
	return t.servicePaths, err
}

// Connect connects to the chosen service. c is nil if no service could be chosen. If the service was chosen
// but the connection failed, c is not nil and err is the reason.
func (f *ServiceFinder) Connect(ctx context.Context) (c *control.Client, t Target, err error) {
	if t, err = f.ChooseTarget(); err != nil {
		return nil, t, err
	}
	c = control.NewClient(t.SocketPath)
	f.lastClient = c
	if err = c.Connect(ctx); err == nil && t.IsUserService && !f.messageOutput.WantsJSON() &&
		f.messageOutput.ShowsInfo() {
		if user, failed := config.UserPaths(); failed == nil {
			if text := ambiguousServiceMessage(user, config.SystemPaths()); text != "" {
				f.messageOutput.PrintTerminalMessage("%s", text)
			}
		}
	}
	return c, t, err
}

// ambiguousServiceMessage returns a message for a machine on which both the user and the system have a service. The
// message says that the client uses the user's own service.
//
// Each user gets the message only once: the first call creates a marker file in the user's state directory. If this
// file exists, ambiguousServiceMessage returns "".
func ambiguousServiceMessage(userPaths, systemPaths config.Paths) string {
	if !files.Exists(systemPaths.StateDir) && !socketExists(systemPaths.SocketPath) {
		return ""
	}
	mark, err := os.OpenFile(filepath.Join(userPaths.StateDir, config.BothServicesMarkerName),
		os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ""
	}
	mark.Close()
	return "queuectl: using your own service (" + userPaths.SocketPath + "); to use the machine's service, add --socket " +
		systemPaths.SocketPath
}

// Client returns a client that is connected to the chosen service.
func (f *ServiceFinder) Client() (*control.Client, error) {
	c, t, err := f.Connect(context.Background())
	return c, t.ExplainConnectError(err)
}

// PrivateRunManifestName is the name of the file that marks the directory of a private run ("queuectl run --private").
const PrivateRunManifestName = "private.json"

// PrivateRunDir returns the directory in --dir, and whether it belongs to a private run. Such a directory can
// be read without a running service. For any other directory, the caller must return an error if no service
// runs.
func (f *ServiceFinder) PrivateRunDir() (dir string, isPrivate bool) {
	if f.SocketPath != "" || f.ServiceDir == "" {
		return "", false
	}
	dir, err := f.AbsServiceDir()
	return dir, err == nil && files.Exists(filepath.Join(dir, PrivateRunManifestName))
}

// ForgetClient drops the client of the most recent request, because its service does not answer. VersionSkewHint then
// does not ask that service for its version.
func (f *ServiceFinder) ForgetClient() { f.lastClient = nil }

// versionRequestTimeout bounds how long VersionSkewHint waits for the service to report its version.
const versionRequestTimeout = time.Second

// VersionSkewHint returns a hint if err may mean that the service does not know the request, because the service and
// this program have different versions. It returns "" if the versions are equal, or if the service does not report its
// version.
func (f *ServiceFinder) VersionSkewHint(err error) string {
	if f.lastClient == nil || !errors.Is(err, queue.ErrUnsupported) && !errors.Is(err, queue.ErrInvalid) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionRequestTimeout)
	defer cancel()
	defer f.lastClient.Close()
	h, err := f.lastClient.Hello(ctx, control.HelloParams{})
	if err != nil || h.Version == f.Version {
		return ""
	}
	return fmt.Sprintf("; the service (version %s) and this program (version %s) differ; after an upgrade, run: "+
		"queuectl service restart", h.Version, f.Version)
}

// ErrNoQueue reports that no queue exists yet.
var ErrNoQueue = &queue.Error{Code: queue.CodeUnavailable,
	Message: "there is no queue yet; your first job creates it: queuectl enqueue 'echo hello' (or run: " +
		"queuectl service start)"}

// ExplainConnectError adds advice on what the user can do to an error of connecting to the service.
func (t Target) ExplainConnectError(err error) error {
	if errors.Is(err, control.ErrUnreachable) && !errors.Is(err, os.ErrPermission) {
		if start, registered := osservice.FindUserService(); t.IsUserService && registered {
			t.StartCommand = start
		} else if t.NoQueueExists {
			return ErrNoQueue
		}
		return queue.Errorf(queue.CodeUnavailable, "the service is not running (%s); start it with: %s", t.SocketPath,
			t.StartCommand)
	}
	return err
}

// AbsServiceDir returns the absolute path of --dir. The directory may not exist yet.
func (f *ServiceFinder) AbsServiceDir() (string, error) {
	dir, err := filepath.Abs(f.ServiceDir)
	if err != nil {
		return "", fault.Usagef("--dir: the current directory no longer exists (%v); change to another directory, or give "+
			"--dir an absolute path", err)
	}
	if file := files.FirstNonDirInPath(dir); file != "" {
		return "", fault.Usagef("--dir: %s is not a directory; give the directory of the service's data", file)
	}
	return dir, nil
}
