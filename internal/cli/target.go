package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/registered"
	"github.com/queuectl/queuectl/queue"
)

// Finder finds the service that a command uses and connects to it.
type Finder struct {
	messages    *Output
	Socket, Dir string // the flags --socket and --dir
	Version     string // version of this program
	// FailureCode is the exit code for every failure of queuectl itself. If it is 0, the exit code
	// depends on the error.
	FailureCode int

	executedBy string          // version of the queuectl that executed this process; "" if none did
	lastClient *control.Client // the client of the most recent request; nil before the first
}

// NewFinder returns a Finder for a program of this version. It prints its messages to o.
func NewFinder(o *Output, version string) Finder {
	return Finder{messages: o, Version: version, executedBy: takeClientVersion()}
}

// Target is the service that a command uses.
type Target struct {
	Socket string
	Start  string // command that starts the service, to be named in messages
	Own    bool   // the service is the user's own, so a command may start it automatically
	None   bool   // neither the user nor the system has a queue yet

	// Serve holds the flags that make serve use this service's directory. nil means the user's default
	// directory, or that the directory is unknown.
	Serve []string
}

// Startable reports whether the command "queuectl service start" can start the service in the
// background.
func (t *Target) Startable() bool { return t.Own || t.Serve != nil }

// Choose selects the service: from the flags, then from the environment, then the user's own
// service if its directory exists, then the system's if its directory or socket exists. Choose does
// not check whether the service runs.
func (f *Finder) Choose() (Target, error) {
	if f.Socket != "" {
		return f.chosenBySocket()
	}
	if f.Dir != "" {
		dir, err := f.OwnDir()
		return targetInDir(dir, f.Dir), err
	}
	if s := os.Getenv("QUEUECTL_SOCKET"); s != "" {
		return targetAt(s), isSocket("QUEUECTL_SOCKET", s)
	}
	user, err := config.User()
	own := Target{Socket: user.Socket, Start: startHint, Own: true}
	if err == nil && exists(user.State) {
		return own, nil
	}
	system := config.System()
	if exists(system.State) || socketExists(system.Socket) {
		return Target{Socket: system.Socket, Start: StartSystem}, nil
	}
	own.None = true
	return own, err
}

// chosenBySocket returns the service that --socket names, with the directory of --dir if that is
// also set.
func (f *Finder) chosenBySocket() (Target, error) {
	t := targetAt(f.Socket)
	if err := isSocket("--socket", f.Socket); err != nil || f.Dir == "" {
		return t, err
	}
	dir, err := f.OwnDir()
	if err != nil {
		return t, err
	}
	socket, err := filepath.Abs(f.Socket)
	t.Start = "queuectl --dir " + queue.Word(f.Dir) + " --socket " + queue.Word(f.Socket) + " service start"
	t.Serve = []string{"--dir", dir, "--socket", socket}
	return t, err
}

// startHint is the command that starts the user's own service.
const startHint = "queuectl service start"

// targetInDir returns the service whose files are all in dir. named is the directory as the user
// wrote it.
func targetInDir(dir, named string) Target {
	if user, err := config.User(); err == nil && dir == user.State {
		return Target{Socket: user.Socket, Start: startHint}
	}
	return Target{Socket: config.In(dir).Socket, Start: "queuectl --dir " + queue.Word(named) + " service start", Serve: []string{"--dir", dir}}
}

// targetAt returns the service of a socket. Its directory is derived from the socket's path if
// possible.
func targetAt(socket string) Target {
	user, err := config.User()
	around, known := config.Around(socket)
	switch whole, failed := filepath.Abs(around.State); {
	case socket == config.System().Socket:
		return Target{Socket: socket, Start: StartSystem}
	case err == nil && socket == user.Socket:
		return Target{Socket: socket, Start: startHint}
	case known && failed == nil:
		t := targetInDir(whole, around.State)
		t.Socket = socket
		return t
	}
	return Target{Socket: socket, Start: "queuectl serve --socket " + queue.Word(socket)}
}

// Folder returns the paths of the chosen service. It returns an error if they are unknown.
func (f *Finder) Folder() (config.Places, error) {
	t, err := f.Choose()
	if err != nil {
		return config.Places{}, err
	}
	if f.Socket == "" && f.Dir != "" {
		dir, err := f.OwnDir()
		return config.In(dir), err
	}
	user, err := config.User()
	switch system := config.System(); {
	case t.Socket == system.Socket:
		return system, nil
	case err == nil && t.Socket == user.Socket:
		return user, nil
	}
	if around, ok := config.Around(t.Socket); ok {
		return around, nil
	}
	return config.Places{}, Usage("the directory of the service at %s is unknown; give it with --dir", t.Socket)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// connect connects to the chosen service. If no service could be chosen, c is nil. If the
// connection failed, c is valid and err is the reason.
func (f *Finder) connect(ctx context.Context) (c *control.Client, t Target, err error) {
	if t, err = f.Choose(); err != nil {
		return nil, t, err
	}
	c = control.NewClient(t.Socket)
	f.lastClient = c
	if err = c.Connect(ctx); err == nil && t.Own && !f.messages.Structured() && IsTerminal(f.messages.Err) && !f.messages.Quiet {
		if user, failed := config.User(); failed == nil {
			if text := bothServices(user, config.System()); text != "" {
				f.messages.Say("%s", text)
			}
		}
	}
	return c, t, err
}

// bothServices returns a message that the user's own service is used although the machine has one
// too. It returns the message only at the first call for each user, and "" at all later calls. A
// marker file in the user's state directory records that.
func bothServices(user, system config.Places) string {
	if !exists(system.State) && !socketExists(system.Socket) {
		return ""
	}
	mark, err := os.OpenFile(filepath.Join(user.State, config.BothName), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ""
	}
	mark.Close()
	return "queuectl: using your own service (" + user.Socket + "); to use the machine's service, add --socket " + system.Socket
}

// Client returns a client that is connected to the chosen service.
func (f *Finder) Client() (*control.Client, error) {
	c, t, err := f.connect(context.Background())
	if c == nil {
		return nil, err
	}
	return c, t.Reached(err)
}

// errOther means that queuectld has executed the command.
var errOther = errors.New("queuectld has executed the command")

// execDaemon executes queuectld with the same arguments instead of this program.
func (a *App) execDaemon() error {
	exit, err := a.Finder.Exec()
	if err == nil {
		a.Exit = exit
	}
	return err
}

// reader returns a client for a command that only reads. If the service does not run and --dir
// names the directory of a private run, the client reads the queue's files.
func (a *App) reader(ctx context.Context) (*control.Client, error) {
	if a.offline != nil {
		return a.offline, nil
	}
	c, t, err := a.connect(ctx)
	if c == nil {
		return nil, err
	}
	dir, private := a.privateFolder()
	if !errors.Is(err, control.ErrUnreachable) || errors.Is(err, os.ErrPermission) || !private {
		return c, t.Reached(err)
	}
	if a.program.Offline == nil {
		return nil, cmp.Or(a.execDaemon(), errOther)
	}
	opened, failed := a.program.Offline(ctx, a, dir)
	if errors.Is(failed, os.ErrNotExist) {
		return c, t.Reached(err)
	}
	if failed != nil {
		return nil, failed
	}
	fmt.Fprintf(a.Err, "queuectl: no service is running for the queue in %s; reading its files\n", dir)
	a.forget()
	a.offline = opened
	return opened, nil
}

// readerUnless returns a client as reader does. If the command waits for future events, it
// requires a running service.
func (a *App) readerUnless(ctx context.Context, waits bool) (*control.Client, error) {
	if waits {
		return a.Client()
	}
	return a.reader(ctx)
}

// manifestName is the name of the file that marks the directory of a private run.
const manifestName = "private.json"

// privateFolder returns the directory of --dir, and whether it belongs to a private run. For any
// other directory, the caller must return an error if the service does not run, so that scripts
// notice it.
func (f *Finder) privateFolder() (dir string, private bool) {
	if f.Socket != "" || f.Dir == "" {
		return "", false
	}
	dir, err := f.OwnDir()
	return dir, err == nil && exists(filepath.Join(dir, manifestName))
}

// answer calls a method of the chosen service and prints the reply: as JSON if the user asked for
// that, otherwise with the function print.
func answer[P, R any](ctx context.Context, a *App, method func(*control.Client, context.Context, P) (R, error), p P, print func(R) error) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	return answerOf(ctx, a, c, method, p, print)
}

// ReadingClient returns a client for a command that only lists things. If there is no queue, the
// command says so and succeeds.
func (a *App) ReadingClient(ctx context.Context) (*control.Client, error) {
	a.missingIsEmpty = true
	return a.reader(ctx)
}

// readAnswer calls a method and prints the reply, like answer. It is for commands that only read,
// because those can read the directory of a private run while its service is stopped.
func readAnswer[P, R any](ctx context.Context, a *App, method func(*control.Client, context.Context, P) (R, error), p P, print func(R) error) error {
	c, err := a.ReadingClient(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return answerOf(ctx, a, c, method, p, print)
}

// answerOf does the same as answer, but with a client that is already connected.
func answerOf[P, R any](ctx context.Context, a *App, c *control.Client, method func(*control.Client, context.Context, P) (R, error), p P, print func(R) error) error {
	got, err := method(c, ctx, p)
	switch {
	case err != nil:
		return err
	case a.Structured():
		return a.PrintJSON(got)
	}
	return print(got)
}

// forget drops the client of the most recent request, because the service does not answer.
func (f *Finder) forget() { f.lastClient = nil }

// skewAfter bounds the request for the version of a service that rejected a request.
const skewAfter = time.Second

// skew returns a hint for the error that a service returns for an unknown request: the service may
// have another version than this program. skew returns "" if the versions are equal or the service
// does not report its own.
func (f *Finder) skew(err error) string {
	if f.lastClient == nil || !errors.Is(err, queue.ErrUnsupported) && !errors.Is(err, queue.ErrInvalid) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), skewAfter)
	defer cancel()
	defer f.lastClient.Close()
	h, err := f.lastClient.Hello(ctx, control.HelloParams{})
	if err != nil || h.Version == f.Version {
		return ""
	}
	return fmt.Sprintf("; the service has version %s, but this program has %s; if the service is older, run: queuectl service restart", h.Version, f.Version)
}

// errNoQueue reports that no queue exists yet.
var errNoQueue = &queue.Error{Code: queue.CodeUnavailable, Message: "there is no queue yet; your first job creates it: queuectl enqueue 'echo hello' (or run: queuectl service start)"}

// errNothingToCheck is the error of a health check if no queue exists. Unlike a list, a health
// check must then fail.
var errNothingToCheck = &queue.Error{Code: queue.CodeUnavailable, Message: "there is no queue yet, so there is nothing to check; your first job creates it: queuectl enqueue 'echo hello' (or run: queuectl service start)"}

// Reached adds the next step to a connection error.
func (t Target) Reached(err error) error {
	if errors.Is(err, control.ErrUnreachable) && !errors.Is(err, os.ErrPermission) {
		if start, registered := registered.Own(); t.Own && registered {
			t.Start = start
		} else if t.None {
			return errNoQueue
		}
		return queue.Errorf(queue.CodeUnavailable, "the service is not running (%s); start it with: %s", t.Socket, t.Start)
	}
	return err
}
