package postgres

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/postgres"
)

// If the environment variable roleEnvVariable is set, this test program does not run tests. Instead it fills a queue or
// runs as a node, that is, a process that takes jobs from a queue. The other variables configure it.
const (
	roleEnvVariable     = "QUEUECTL_BENCH_ROLE"
	urlEnvVariable      = "QUEUECTL_BENCH_URL"
	nodeNameEnvVariable = "QUEUECTL_BENCH_NODE"

	claimSizeEnvVariable = "QUEUECTL_BENCH_BLOCK"
)

func TestMain(m *testing.M) {
	role := processRoles[os.Getenv(roleEnvVariable)]
	if role == nil {
		os.Exit(m.Run())
	}
	if err := role(context.Background(), os.Getenv(urlEnvVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// processRoles maps each value of roleEnvVariable to the function that a process with this value runs. A node prints
// "ready" and begins when it reads a line. Every few milliseconds, a node prints how many jobs it has recorded as
// completed in the database.
var processRoles = map[string]func(ctx context.Context, url string) error{
	"queuectl": runQueuectlNode, "queuectl-fill": fillQueuectlQueue, "queuectl-again": runRepeatingQueuectlNode,
	"river": runRiverNode, "river-fill": fillRiverQueue,
}

// waitForStartLine prints "ready" and waits for a line on standard input.
func waitForStartLine() {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

// printEndedJobCount prints the number of ended jobs whenever the number has changed. It does not return.
func printEndedJobCount(endedJobs *atomic.Int64) {
	printed := int64(-1)
	for range time.Tick(5 * time.Millisecond) {
		if n := endedJobs.Load(); n != printed {
			fmt.Println(n)
			printed = n
		}
	}
}

// jobCountFromEnv returns the number of jobs to enqueue. It is for a process that fills the queue: there, the variable
// nodeNameEnvVariable contains this number instead of the name of a node.
func jobCountFromEnv() int {
	n, _ := strconv.Atoi(os.Getenv(nodeNameEnvVariable))
	return n
}

// jobsPerClaim is the number of jobs that a node of queuectl, graphile-worker or pg-boss claims with one
// request. A node of River claims twice as many.
var jobsPerClaim = numberFromEnv(claimSizeEnvVariable, 1000)

// openStore connects to the queue as a node with the given name.
func openStore(ctx context.Context, url, nodeName string) (*postgres.Store, error) {
	s, err := postgres.Open(ctx, url, postgres.Options{RankOrder: queue.RankPolicy{Scheduling: "fifo", AgingUnit: "time",
		AgingInterval: time.Minute}, Node: postgres.NodeConfig{NodeName: nodeName, StateDirID: nodeName,
		LeaseDuration: time.Hour}})
	if err != nil {
		return nil, err
	}
	return s, s.SetThisNodeProperties(ctx, store.Node{Name: nodeName})
}

func fillQueuectlQueue(ctx context.Context, url string) error {
	s, err := openStore(ctx, url, "fill")
	if err != nil {
		return err
	}
	defer s.Close()
	for n := jobCountFromEnv(); n > 0; {
		jobs := min(n, queue.MaxJobsPerRequest)
		if err := enqueueJobs(ctx, s, jobs); err != nil {
			return err
		}
		n -= jobs
	}
	return nil
}

// enqueueJobs enqueues n jobs with one request.
func enqueueJobs(ctx context.Context, s *postgres.Store, n int) error {
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = queue.Job{ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}, Cwd: "/"},
			UID: 1000, Queue: "default",
			MaxAttempts: 3}
	}
	_, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: drafts, UID: 1000, MaxPendingJobs: 1 << 30,
		MaxPendingJobsPerUser: 1 << 30})
	return err
}

// runQueuectlNode claims jobs and immediately records their end, like a service whose jobs take no time, until the
// process is killed. For each job, it stores an attempt and an event, as the service does.
func runQueuectlNode(ctx context.Context, url string) error {
	s, err := openStore(ctx, url, "node"+os.Getenv(nodeNameEnvVariable))
	if err != nil {
		return err
	}
	waitForStartLine()
	var endedJobs atomic.Int64
	go printEndedJobCount(&endedJobs)
	return claimAndEndJobs(ctx, s, &endedJobs, math.MaxInt)
}

// runRepeatingQueuectlNode is a node that reads numbers, one per line. For each number, it ends that many jobs and
// prints how long that took, in microseconds.
func runRepeatingQueuectlNode(ctx context.Context, url string) error {
	s, err := openStore(ctx, url, "again")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		began := time.Now()
		if err := claimAndEndJobs(ctx, s, new(atomic.Int64), n); err != nil {
			return err
		}
		fmt.Println(time.Since(began).Microseconds())
	}
	return s.Close()
}

// claimAndEndJobs claims jobs and records their end. It counts the jobs in endedJobs and returns when it has ended
// targetCount jobs.
func claimAndEndJobs(ctx context.Context, s *postgres.Store, endedJobs *atomic.Int64, targetCount int) error {
	report, left := store.LeaseReport{}, targetCount
	for {
		report.MaxJobsToClaim = min(jobsPerClaim, left)
		grant, err := s.ReportAndClaim(ctx, report)
		if err != nil {
			return err
		}
		if endedJobs.Add(int64(len(report.Settlements))) == int64(targetCount) {
			return nil
		}
		report.Settlements = nil
		if len(grant.ClaimedJobs) == 0 && left > 0 {
			jobs, err := s.AwaitJobs(ctx, min(jobsPerClaim, left))
			if err != nil {
				return err
			}
			grant.ClaimedJobs = jobs
		}
		left -= len(grant.ClaimedJobs)
		now := s.Now()
		for i := range grant.ClaimedJobs {
			j := &grant.ClaimedJobs[i]
			report.Settlements = append(report.Settlements, store.Settlement{Lease: j.Lease(),
				Attempt: queue.Attempt{StartedAt: now, EndedAt: now, Worker: "1/1", Node: "node", PID: 4711,
					CPUTime: time.Millisecond, PeakRSSBytes: 1 << 20, CountsTowardMaxAttempts: true},
				Decision: queue.AttemptDecision{NextState: queue.Completed, RecordsAttempt: true, CountsTowardMaxAttempts: true}})
		}
	}
}

// noopJob is the type of a River job that does nothing. noopWorker executes these jobs.
type noopJob struct{}

func (noopJob) Kind() string { return "nothing" }

type noopWorker struct{ river.WorkerDefaults[noopJob] }

func (noopWorker) Work(context.Context, *river.Job[noopJob]) error { return nil }

func fillRiverQueue(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	m, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	c, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return err
	}
	for n := jobCountFromEnv(); n > 0; {
		list := make([]river.InsertManyParams, min(n, 1000))
		for i := range list {
			list[i].Args = noopJob{}
		}
		if _, err := c.InsertManyFast(ctx, list); err != nil {
			return err
		}
		n -= len(list)
	}
	return nil
}

// runRiverNode is a client of River with the settings of River's own benchmark: a pause of 2 ms between two
// claims, and claims of up to one job for each worker of the client.
func runRiverNode(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, noopWorker{})
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2 * jobsPerClaim}}, Workers: workers,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	var endedJobs atomic.Int64
	events, _ := c.SubscribeConfig(&river.SubscribeConfig{ChanSize: 100_000,
		Kinds: []river.EventKind{river.EventKindJobCompleted}})
	go func() {
		for range events {
			endedJobs.Add(1)
		}
	}()
	waitForStartLine()
	go printEndedJobCount(&endedJobs)
	if err := c.Start(ctx); err != nil {
		return err
	}
	select {}
}
