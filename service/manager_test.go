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

// previousSessionBlockingStore is a store whose method PreviousSession closes the channel called, and then waits until
// the channel unblock is closed.
type previousSessionBlockingStore struct {
	store.Store
	called, unblock chan struct{}
}

// PreviousSession implements store.Session.
func (s previousSessionBlockingStore) PreviousSession(ctx context.Context) (store.PreviousSession, error) {
	close(s.called)
	select {
	case <-s.unblock:
		return s.Store.PreviousSession(ctx)
	case <-ctx.Done():
		return store.PreviousSession{}, ctx.Err()
	}
}

// A service notifies its service manager that it listens before it takes over the jobs that an earlier service left
// running, because the takeover may take long. Requests that arrive during the takeover are answered after it.
func TestServiceManagerDoesNotWaitForAdoption(t *testing.T) {
	dir, err := os.MkdirTemp("", "qm") // a short directory name, because the path of a socket may not be long
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := previousSessionBlockingStore{called: make(chan struct{}), unblock: make(chan struct{})}
	listens, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	o := Options{
		Paths: config.PathsInDir(dir + "/state"), FlagSettings: map[string]string{"workers": "1",
			"run_as": config.RunAsService},
		KeepJobsOnStop: true, Version: "test",
		RunnerCommand: []string{os.Args[0], "-test.run=^$"}, LogFile: log,
		ServiceManager: &ServiceManager{OnListening: func() { close(listens) }, ExtendStopTimeout: func() {},
			LogHandler: slog.DiscardHandler},
		OnReady: func() { close(ready) },
		openLocalStore: func(_ context.Context, _ string, _ *slog.Logger,
			orderOf func([]store.Setting) (queue.RankPolicy, error)) (store.Store, error) {
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
	waitForClosedChannel(t, "call of OnListening", listens)
	waitForClosedChannel(t, "call of the store", s.called)
	c := control.NewClient(o.Paths.SocketPath)
	defer c.Close()
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	close(s.unblock)
	waitForClosedChannel(t, "call of OnReady", ready)
	if _, err := c.Status(ctx, control.NoParams{}); err != nil {
		t.Errorf("the early client got %v", err)
	}
}

// waitForClosedChannel waits until a channel is closed.
func waitForClosedChannel(t *testing.T, description string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("no %s within 30 s", description)
	}
}
