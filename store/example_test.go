package store_test

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
)

// A job is enqueued, claimed, started and settled. Every implementation of store.Store works like this; the
// example uses memstore, which keeps jobs in memory.
func Example() {
	ctx, s := context.Background(), store.Store(memstore.New(queue.RankPolicy{}))
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	command := "make all"
	draft, err := queue.ResolveSpec(&queue.Spec{Command: &command}, queue.JobDefaults{MaxRetries: 2})
	must(err)
	_, err = s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{draft}, UID: 1000, OwnerName: "ann"})
	must(err)

	// Claim the job. It stays pending until its start is reported.
	granted, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 1})
	must(err)
	job := granted.ClaimedJobs[0]
	fmt.Println(job.ID, job.State, job.Command)

	started := store.AttemptStart{Lease: job.Lease(), StartedAt: s.Now(), WorkerID: "w1", PID: 4711}
	_, err = s.ReportAndClaim(ctx, store.LeaseReport{AttemptStarts: []store.AttemptStart{started}})
	must(err)

	// The command has ended with exit code 2. The outcome decides the next state of the job.
	decision := queue.DecideAfterAttempt(&job, queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: 2},
		queue.RetryPolicy{BaseSeconds: 2, MaxDelay: time.Hour})
	_, err = s.ReportAndClaim(ctx, store.LeaseReport{Settlements: []store.Settlement{{Lease: job.Lease(),
		Decision: decision,
		Attempt: queue.Attempt{StartedAt: started.StartedAt, EndedAt: s.Now(), ExitCode: 2,
			CountsTowardMaxAttempts: decision.CountsTowardMaxAttempts}}}})
	must(err)
	job, err = s.GetWithEnvAndStdin(ctx, job.ID)
	must(err)
	fmt.Println(job.ID, job.State, job.Error)

	// Output:
	// 1 pending make all
	// 1 failed exit code 2
}
