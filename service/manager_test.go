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

// slow is a store that blocks in Left until let is closed.
type slow struct {
	store.Store
	asked, let chan struct{}
}

// Left returns the work that an earlier service has left.
func (s slow) Left(ctx context.Context) (store.Left, error) {
	close(s.asked)
	select {
	case <-s.let:
		return s.Store.Left(ctx)
	case <-ctx.Done():
		return store.Left{}, ctx.Err()
	}
}

// A service manager learns that the service listens even if the adoption of jobs takes long. Requests that
// arrive in the meantime are answered after the adoption.
func TestManagerDoesNotWaitForAdoption(t *testing.T) {
	dir, err := os.MkdirTemp("", "qm") // short enough for a socket path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := slow{asked: make(chan struct{}), let: make(chan struct{})}
	listens, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	o := Options{
		Places: config.In(dir + "/state"), Flags: map[string]string{"workers": "1", "run_as": config.RunAsService}, KeepJobs: true, Version: "test",
		Runner: []string{os.Args[0], "-test.run=^$"}, Log: log,
		Manager: &Manager{Listens: func() { close(listens) }, Longer: func() {}, Log: slog.DiscardHandler}, Ready: func() { close(ready) },
		openLocal: func(_ context.Context, _ string, _ *slog.Logger, orderOf func([]store.Setting) (queue.Order, error)) (store.Store, error) {
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
	soon(t, "that it listens", listens)
	soon(t, "what was left", s.asked)
	c := control.NewClient(o.Places.Socket)
	defer c.Close()
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	close(s.let)
	soon(t, "that it is ready", ready)
	if _, err := c.Status(ctx, control.Nothing{}); err != nil {
		t.Errorf("who came early is told %v", err)
	}
}

// soon waits until done is closed.
func soon(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("nobody says %s", what)
	}
}
