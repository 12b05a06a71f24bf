package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	if exists(system.State) || socketExists(system.Socket) {
		return target{socket: system.Socket, start: startSystem}, nil
	}
	return own, err
}

// folder is the places of the chosen service, as far as they are known.
func (a *app) folder() (config.Places, error) {
	t, err := a.choose()
	if err != nil {
		return config.Places{}, err
	}
	if a.socket == "" && a.dir != "" {
		dir, err := a.ownFolder()
		return config.In(dir), err
	}
	user, err := config.User()
	switch system := config.System(); {
	case t.socket == system.Socket:
		return system, nil
	case err == nil && t.socket == user.Socket:
		return user, nil
	}
	if around, ok := config.Around(t.socket); ok {
		return around, nil
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
