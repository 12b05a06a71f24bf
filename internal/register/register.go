// Package register makes queuectl a service of the operating system, by the files that
// packages install too, and takes that back.
package register

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/registered"
	"github.com/queuectl/queuectl/queue"
)

// Name is what the service is called.
const Name = registered.Name

// Options say which service is meant.
type Options struct {
	User    bool          // the user's own, else the system's
	Program string        // the path of queuectld
	Client  string        // that of queuectl, which runs jobs
	Places  config.Places // of that service
	Talk    Talk
}

// Talk is how a service is spoken to that its manager does not know, or cannot ask to
// keep its jobs. On Windows alone the registration itself needs it.
type Talk struct {
	Begin   func() error              // starts the user's own in the background; it answers then
	End     func(keepJobs bool) error // asks it to stop; it has let go of its folder then
	Answers func() bool
}

// serve are the words after the program's name that make it the system's service. Where
// root says less, its places are others.
func (o Options) serve() []string {
	return []string{"serve", "--dir", o.Places.State, "--socket", o.Places.Socket, "--config", o.Places.File}
}

// NotRegistered is what verbs on a service say that is not.
func (o Options) NotRegistered() error {
	flag := ""
	if o.User {
		flag = " --user"
	}
	return queue.Errorf(queue.CodeNotFound, "no service is registered; register one with: queuectl service install%s", flag)
}

// allowed says who may, unless root asks, which is an administrator on Windows.
func (o Options) allowed(verb string, root bool) error {
	if o.User || root {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, rootsAlone, verb)
}

// act does something with a service that has to be registered.
func (o Options) act(verb string, root, registered bool, do func() error) error {
	if !registered {
		return o.NotRegistered()
	}
	if err := o.allowed(verb, root); err != nil {
		return err
	}
	return do()
}
