package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/register"
	"github.com/queuectl/queuectl/queue"
)

// target is the service that was chosen.
type target struct {
	socket string
	start  string // the command that starts it
	own    bool   // it is the user's own, so it may be started by the way
}

// choose finds the service: by flag, by environment, else the user's own if its
// folder exists, else the system's if that does. Whether it answers does not
// matter.
func (a *app) choose() (target, error) {
	if a.socket != "" {
		return target{socket: a.socket, start: "queuectl serve --socket " + a.socket}, isSocket("--socket", a.socket)
	}
	if a.dir != "" {
		dir, err := a.ownFolder()
		return target{socket: config.In(dir).Socket, start: "queuectl serve --dir " + a.dir}, err
	}
	if s := os.Getenv("QUEUECTL_SOCKET"); s != "" {
		return target{socket: s, start: "queuectl serve --socket " + s}, isSocket("QUEUECTL_SOCKET", s)
	}
	user, err := config.User()
	own := target{socket: user.Socket, start: "queuectl serve", own: true}
	if err == nil && exists(user.State) {
		return own, nil
	}
	system := config.System()
	if exists(system.State) || exists(system.Socket) {
		return target{socket: system.Socket, start: "systemctl start queuectl"}, nil
	}
	return own, err
}

// folder is the places of the chosen service, as far as they are known.
func (a *app) folder() (config.Places, error) {
	t, err := a.choose()
	if err != nil {
		return config.Places{}, err
	}
	user, err := config.User()
	switch system := config.System(); {
	case t.socket == system.Socket:
		return system, nil
	case err == nil && t.socket == user.Socket:
		return user, nil
	case filepath.Base(t.socket) == config.SocketName:
		return config.In(filepath.Dir(t.socket)), nil
	}
	return config.Places{}, usage("where the queue of %s is cannot be told; name its folder with --dir", t.socket)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// client speaks to the chosen service.
func (a *app) client() (*control.Client, error) {
	t, err := a.choose()
	if err != nil {
		return nil, err
	}
	c := control.NewClient(t.socket)
	a.asked = c
	return c, a.reached(c.Connect(context.Background()), t)
}

// skewAfter bounds the question for the version of a service that refused.
const skewAfter = time.Second

// skew is what to add to an error of a service that does not know what it was asked,
// if it is of another version: "" if it is not, or does not say.
func (a *app) skew(err error) string {
	if a.asked == nil || !errors.Is(err, queue.ErrUnsupported) && !errors.Is(err, queue.ErrInvalid) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), skewAfter)
	defer cancel()
	defer a.asked.Close()
	h, err := a.asked.Hello(ctx, control.HelloParams{})
	if err != nil || h.Version == version {
		return ""
	}
	return fmt.Sprintf("; the service is queuectl %s and this program %s: if it is the older one, restart it", h.Version, version)
}

// reached adds to an error of connecting what to do next.
func (a *app) reached(err error, t target) error {
	if errors.Is(err, control.ErrUnreachable) && !errors.Is(err, os.ErrPermission) {
		if start, registered := register.Own(); t.own && registered {
			t.start = start
		}
		return queue.Errorf(queue.CodeUnavailable, "the service is not running (%s); start it with: %s", t.socket, t.start)
	}
	return err
}

// startWithin bounds how long a service may take to answer that was started by
// the way.
const startWithin = 15 * time.Second

// clientStarting speaks to the chosen service, and starts it in the background
// where that is the user's own and does not run.
func (a *app) clientStarting(ctx context.Context) (*control.Client, error) {
	t, err := a.choose()
	if err != nil {
		return nil, err
	}
	c := control.NewClient(t.socket)
	a.asked = c
	err = c.Connect(ctx)
	if !errors.Is(err, control.ErrUnreachable) || !t.own || os.Getenv("QUEUECTL_NO_START") == "1" {
		return c, a.reached(err, t)
	}
	if _, registered := register.Own(); registered { // then it was stopped on purpose
		return c, a.reached(err, t)
	}
	log, ended, err := startService(t)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(a.err, "queuectl: started a service in the background; its log is %s\n", log)
	for deadline := time.Now().Add(startWithin); ; {
		err := c.Connect(ctx)
		if !errors.Is(err, control.ErrUnreachable) {
			return c, err
		}
		select {
		case <-ended: // another one may have been quicker
			if time.Now().After(deadline.Add(2*time.Second - startWithin)) {
				return nil, queue.Errorf(queue.CodeUnavailable, "the service ended at once; see %s", log)
			}
		default:
		}
		if time.Now().After(deadline) {
			return nil, queue.Errorf(queue.CodeUnavailable, "the service does not answer; see %s", log)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// startService starts the user's own service in the background.
func startService(t target) (log string, ended <-chan struct{}, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("start a service: %w", err)
	}
	log = filepath.Join(filepath.Dir(t.socket), config.LogName)
	cmd := exec.Command(self, "serve", "--background")
	cmd.Dir = "/"
	cmd.SysProcAttr = detached()
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start a service: %w", err)
	}
	done := make(chan struct{})
	go func() { // ends with the service, or this process
		cmd.Wait()
		close(done)
	}()
	return log, done, nil
}
