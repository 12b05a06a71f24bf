package control

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// exampleAPI is the part of a service that ExampleClient calls.
type exampleAPI struct{ API }

func (exampleAPI) Hello(context.Context, HelloParams) (HelloResult, error) { return HelloResult{}, nil }

func (exampleAPI) Enqueue(_ context.Context, p EnqueueParams) (EnqueueResult, error) {
	return EnqueueResult{JobID: *p.JobSpec.ID, State: queue.Pending.String()}, nil
}

func (exampleAPI) WaitForJobs(_ context.Context, p JobWaitParams, handleNotice func(JobEndNotice) error) (JobWaitResult,
	error) {
	return JobWaitResult{}, handleNotice(JobEndNotice{Job{ID: p.IDs[0], State: queue.Completed.String()}})
}

// serveExampleAPI serves an API on a socket until the caller calls stop.
func serveExampleAPI(api API) (socketPath string, stop func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	socketPath = filepath.Join(dir, "queuectl.sock")
	l, err := socket.Listen(socketPath, ownerOnlySocketPerms())
	if err != nil {
		panic(err)
	}
	server := NewServer(api, ConnectionLimits{func() (all, user int) { return 100, 100 }}, allowAllAuthorizer{},
		NewUserLimits(),
		slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx, l) }()
	return socketPath, func() {
		cancel()
		<-ended
		os.RemoveAll(dir)
	}
}

// A program enqueues a job and waits until it has ended.
func ExampleClient() {
	path, stop := serveExampleAPI(exampleAPI{}) // a service listens on /run/queuectl/queuectl.sock
	defer stop()

	client := NewClient(path)
	defer client.Close()
	id, command := "nightly-backup", "tar czf /backup/home.tgz /home"
	job, err := client.Enqueue(context.Background(), EnqueueParams{JobSpec: queue.Spec{ID: &id, Command: &command},
		IdempotencyKey: NewIdempotencyKey()})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(job.JobID, "is stored")
	_, err = client.WaitForJobs(context.Background(), JobWaitParams{IDs: []string{job.JobID}}, func(e JobEndNotice) error {
		fmt.Println(e.Job.ID, "is", e.Job.State)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}

	// Output:
	// nightly-backup is stored
	// nightly-backup is completed
}
