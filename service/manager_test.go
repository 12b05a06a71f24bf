package service

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
)

// blockingStore is a store whose method PreviousSession closes callSignal and then waits until unblock is
// closed.
type blockingStore struct {
	store.Store
	callSignal, unblock chan struct{}
}

// PreviousSession implements store.Session.
func (s blockingStore) PreviousSession(ctx context.Context) (store.PreviousSession, error) {
	close(s.callSignal)
	select {
	case <-s.unblock:
		return s.Store.PreviousSession(ctx)
	case <-ctx.Done():
		return store.PreviousSession{}, ctx.Err()
	}
}

// A service notifies its service manager that it listens before it takes over the jobs that an earlier
// service left running, because that may take long. Requests that arrive during this time are answered
// afterwards.
func TestManagerDoesNotWaitForAdoption(t *testing.T) {
	dir, err := os.MkdirTemp("", "qm") // a directory with a short name, since the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := blockingStore{callSignal: make(chan struct{}), unblock: make(chan struct{})}
	listens, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	o := Options{
		Paths: config.PathsIn(dir + "/state"), Flags: map[string]string{"workers": "1", "run_as": config.RunAsService},
		KeepJobs: true, Version: "test",
		RunnerCommand: []string{os.Args[0], "-test.run=^$"}, LogFile: log,
		Manager: &Manager{OnListening: func() { close(listens) }, ExtendStopTimeout: func() {},
			LogHandler: slog.DiscardHandler},
		OnReady: func() { close(ready) },
		openLocal: func(_ context.Context, _ string, _ *slog.Logger,
			orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error) {
			order, err := orderOf(nil)
			s.Store = memstore.New(order)
			return s, err
		},
	}
	go func() { ended <- Run(ctx, o, nil) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	waitClosed(t, "call of OnListening", listens)
	waitClosed(t, "call of the store", s.callSignal)
	c := control.NewClient(o.Paths.Socket)
	defer c.Close()
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	close(s.unblock)
	waitClosed(t, "call of OnReady", ready)
	if _, err := c.Status(ctx, control.NoParams{}); err != nil {
		t.Errorf("the early client got %v", err)
	}
}

// waitClosed waits until a channel is closed.
func waitClosed(t *testing.T, description string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("no %s within 30 s", description)
	}
}
