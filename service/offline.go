package service

import (
	"context"
	"os"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/handlers"
)

// OpenOffline returns a client that reads the files of a queue whose service is not running. The client can call
// only methods that change nothing, and no other process can use it. It returns an error if other accounts
// can change the directory. If there is no queue, the error is fs.ErrNotExist. See docs/decisions/0068.
func OpenOffline(ctx context.Context, o Options) (*control.Client, error) {
	if err := statedir.Check(o.Places.State); err != nil {
		return nil, queue.Errorf(queue.CodeDenied, "%v", err)
	}
	o.openLocal, o.openRemote = openReadOnly, func(string, member) opener { return rejectReadOnly }
	b, err := readStartup(o)
	if err != nil {
		return nil, &ExitError{ExitConfig, err}
	}
	b.readOnly = true
	q, err := b.openStore(ctx)
	if err != nil {
		return nil, err
	}
	// The runners' location is needed to find the output files. The pool of this service never runs; methods that
	// read its state need it.
	home := runner.Location{Dir: cluster.RunnersDir(o.Places)}
	s := newService(b, q, home, b.directory.AccountOf(accounts.CurrentUser()), nil)
	if err := s.owners.Load(ctx); err != nil {
		return nil, err
	}
	if err := s.queueRules.LoadRules(ctx); err != nil {
		return nil, err
	}
	e := newEndpoint(b)
	api, _ := handlers.New(s.dependencies(e))
	server := control.NewServer(api, s.connectionLimits(), &authorizer{newAdmission(s), s.rights}, s.shares, s.log)
	return server.ClientAs(control.Peer{UID: accounts.CurrentUser(), GID: -1, PID: os.Getpid()}), nil
}
