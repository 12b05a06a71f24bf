package postgres

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/test/pgserver"
)

// queueProgram is a queue to measure: the command that runs a node, and the command that fills the queue. A node is
// a process that takes jobs from the queue.
type queueProgram struct {
	queueName   string
	nodeCommand []string // nil means this test program, with the environment variable roleEnvVariable set to queueName
	fillCommand []string
}

var testProgramPath, _ = os.Executable()

// queuePrograms lists the queues to measure.
var queuePrograms = []queueProgram{
	{queueName: "queuectl"},
	{queueName: "river"},
	{queueName: "graphile-worker", nodeCommand: []string{"node", "graphile.mjs"},
		fillCommand: []string{"node", "graphile.mjs", "fill"}},
	{queueName: "pg-boss", nodeCommand: []string{"node", "boss.mjs"}, fillCommand: []string{"node", "boss.mjs", "fill"}},
}

// buildCommand returns the command of a node or, if fillsQueue is true, the command that fills the queue.
// nodeNameOrJobCount is the name of the node or, if fillsQueue is true, the number of jobs to enqueue.
func (p queueProgram) buildCommand(fillsQueue bool, url, nodeNameOrJobCount string) *exec.Cmd {
	argv, role := p.nodeCommand, p.queueName
	if fillsQueue {
		argv, role = p.fillCommand, p.queueName+"-fill"
	}
	if argv == nil {
		argv = []string{testProgramPath}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GOGC=400", // the service also runs with this value of GOGC
		roleEnvVariable+"="+role, urlEnvVariable+"="+url, nodeNameEnvVariable+"="+nodeNameOrJobCount, claimSizeEnvVariable+
			"="+strconv.Itoa(jobsPerClaim))
	cmd.Stderr = os.Stderr
	return cmd
}

// startNode starts a node and waits until the node is ready.
func (p queueProgram) startNode(t *testing.T, url, nodeName string) (
	cmd *exec.Cmd, stdin io.WriteCloser, outputLines *bufio.Scanner) {
	t.Helper()
	cmd = p.buildCommand(false, url, nodeName)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if outputLines = bufio.NewScanner(out); !outputLines.Scan() || outputLines.Text() != "ready" {
		cmd.Process.Kill()
		t.Fatalf("%s printed %q, want ready", p.queueName, outputLines.Text())
	}
	return cmd, stdin, outputLines
}

// runAllJobs lets the given number of nodes run all jobs of a queue, and returns how long that took. The queue contains
// jobCount jobs.
func (p queueProgram) runAllJobs(t *testing.T, url string, nodeCount, jobCount int) time.Duration {
	t.Helper()
	var mu sync.Mutex
	done, last := make([]int, nodeCount), time.Time{}
	ended := make(chan struct{})
	var nodeInputs []io.Writer
	for i := range nodeCount {
		cmd, in, lines := p.startNode(t, url, strconv.Itoa(i))
		defer cmd.Wait()
		defer cmd.Process.Kill()
		nodeInputs = append(nodeInputs, in)
		go func() {
			for lines.Scan() {
				n, err := strconv.Atoi(lines.Text())
				if err != nil {
					t.Errorf("%s printed %q, want a number", p.queueName, lines.Text())
					continue
				}
				mu.Lock()
				done[i] = n
				sum := 0
				for _, d := range done {
					sum += d
				}
				if sum >= jobCount && last.IsZero() {
					last = time.Now()
					close(ended)
				}
				mu.Unlock()
			}
		}()
	}
	began := time.Now()
	for _, in := range nodeInputs {
		fmt.Fprintln(in, "go")
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Fatalf("%s has ended %v of %d jobs in 5 minutes", p.queueName, done, jobCount)
	}
	return last.Sub(began)
}

// TestDrainSpeedOfEachQueue measures how fast one, two and four nodes empty each queue. All queues use the same
// PostgreSQL server, one after another. The server stores every commit durably.
func TestDrainSpeedOfEachQueue(t *testing.T) {
	jobs, rounds := numberFromEnv("QUEUECTL_BENCH_JOBS", 60_000), numberFromEnv("QUEUECTL_BENCH_ROUNDS", 1)
	server := pgserver.New(t, "max_connections=200", "shared_buffers=512MB", "max_wal_size=4GB")
	defer server.StopAndRemove()
	only := os.Getenv("QUEUECTL_BENCH_ONLY")
	rates := map[string][]float64{}
	admin := server.CreateDatabase(t)
	for round := range rounds {
		for _, nodes := range nodeCountsFromEnv() {
			for i := range queuePrograms {
				p := queuePrograms[(i+round)%len(queuePrograms)] // each round begins with a different queue
				if only != "" && !slices.Contains(strings.Split(only, ","), p.queueName) {
					continue
				}
				url := server.CreateDatabase(t)
				fillQueue(t, p, url, jobs)
				pgserver.Query(t, url, "VACUUM ANALYZE")
				pgserver.Query(t, url, "CHECKPOINT")
				took := p.runAllJobs(t, url, nodes, jobs)
				name := pgserver.Query(t, url, "SELECT current_database()")
				// Drop the database, because the server might vacuum it during the next measurement.
				pgserver.Query(t, admin, "DROP DATABASE "+name+" WITH (FORCE)")
				key := fmt.Sprintf("%-16s %d nodes", p.queueName, nodes)
				rates[key] = append(rates[key], float64(jobs)/took.Seconds())
				t.Logf("%s: %.0f jobs/s", key, float64(jobs)/took.Seconds())
			}
		}
	}
	for _, nodes := range nodeCountsFromEnv() {
		for _, p := range queuePrograms {
			key := fmt.Sprintf("%-16s %d nodes", p.queueName, nodes)
			if list := rates[key]; list != nil {
				slices.Sort(list)
				t.Logf("%s: median %.0f jobs/s, %.0f to %.0f", key, list[len(list)/2], list[0], list[len(list)-1])
			}
		}
	}
}

// numberFromEnv returns the number in an environment variable, or defaultValue if the variable contains
// no number.
func numberFromEnv(variableName string, defaultValue int) int {
	if n, err := strconv.Atoi(os.Getenv(variableName)); err == nil {
		return n
	}
	return defaultValue
}

// nodeCountsFromEnv returns the numbers of nodes to measure with, for example 1, 2 and 4.
func nodeCountsFromEnv() (counts []int) {
	for word := range strings.FieldsSeq(cmp.Or(os.Getenv("QUEUECTL_BENCH_NODES"), "1 2 4")) {
		n, _ := strconv.Atoi(word)
		counts = append(counts, n)
	}
	return counts
}

// TestDrainSpeedWithManyWaitingJobs measures how fast a node claims and ends 20,000 jobs while 1,000, 100,000 and
// 1,000,000 jobs wait. It runs the jobs in steps of 1,000 and refills the queue after each step. The first step is not
// measured.
func TestDrainSpeedWithManyWaitingJobs(t *testing.T) {
	server := pgserver.New(t, "max_connections=200", "shared_buffers=512MB", "max_wal_size=16GB")
	defer server.StopAndRemove()
	ours := queuePrograms[0]
	best := 0.0
	depth := numberFromEnv("QUEUECTL_BENCH_DEPTH", 1_000_000)
	for _, rows := range slices.Compact([]int{1000, min(100_000, depth), depth}) {
		url := server.CreateDatabase(t)
		fillQueue(t, ours, url, 1000)
		if rows > 1000 {
			multiplyJobRows(t, url, rows)
		}
		drain := startNodeForRepeatedRuns(t, url)
		took, jobs := time.Duration(0), numberFromEnv("QUEUECTL_BENCH_DRAINED", 20_000)
		for n := -1000; n < jobs; n += 1000 {
			one := drain(1000)
			fillQueue(t, ours, url, 1000)
			if n >= 0 {
				took += one
			}
		}
		drain(0)
		rate := float64(jobs) / took.Seconds()
		best = max(best, rate)
		t.Logf("with %8d waiting jobs: %.0f jobs/s, 1 / %.2f of the best", rows, rate, best/rate)
	}
}

// startNodeForRepeatedRuns starts a node. The returned function makes the node claim and end the given number of jobs,
// and returns how long that took. If the number is 0, the function stops the node.
func startNodeForRepeatedRuns(t *testing.T, url string) func(jobs int) time.Duration {
	t.Helper()
	cmd, in, lines := queueProgram{queueName: "queuectl-again"}.startNode(t, url, "")
	t.Cleanup(func() { cmd.Process.Kill() })
	return func(jobs int) time.Duration {
		t.Helper()
		if jobs == 0 {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			return 0
		}
		fmt.Fprintln(in, jobs)
		if !lines.Scan() {
			t.Fatal("the node has ended")
		}
		us, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("the node printed %q", lines.Text())
		}
		return time.Duration(us) * time.Microsecond
	}
}

// fillQueue enqueues a number of jobs in the queue of a program.
func fillQueue(t *testing.T, p queueProgram, url string, jobs int) {
	t.Helper()
	if out, err := p.buildCommand(true, url, strconv.Itoa(jobs)).Output(); err != nil {
		t.Fatalf("%s: %v\n%s", p.queueName, err, out)
	}
}

// multiplyJobRows copies the row of the first job until the table of jobs has totalRows rows. This is faster
// than enqueueing the jobs.
func multiplyJobRows(t *testing.T, url string, totalRows int) {
	t.Helper()
	columns := pgserver.Query(t, url, `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'queuectl.jobs'::regclass AND attnum > 0 AND attname NOT IN ('seq', 'id', 'rank', 'arrival')`)
	for from := 1001; from <= totalRows; from += 500_000 {
		upto := min(from+499_999, totalRows)
		pgserver.Query(t, url, fmt.Sprintf(`INSERT INTO queuectl.jobs (seq, id, rank, arrival, %s)
			SELECT n, n::text, rank + n, arrival + n, %s FROM queuectl.jobs, generate_series(%d, %d) n WHERE seq = 1`,
			columns, columns, from, upto))
	}
	pgserver.Query(t, url, fmt.Sprintf(`UPDATE queuectl.meta SET next_seq = %d, enqueued = %d, pending = %d,
		users = '1000/%d ', queues = 'default=%d/1000/0/0 '`, totalRows+1, totalRows, totalRows, totalRows, totalRows))
	pgserver.Query(t, url, "VACUUM ANALYZE")
	pgserver.Query(t, url, "CHECKPOINT")
}

// TestLatencyUntilIdleNodeClaimsJob measures how soon a waiting node claims a job that another node enqueues.
func TestLatencyUntilIdleNodeClaimsJob(t *testing.T) {
	server := pgserver.New(t)
	defer server.StopAndRemove()
	url := server.CreateDatabase(t)
	a, err := openStore(t.Context(), url, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := openStore(t.Context(), url, "b")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var took []time.Duration
	for range numberFromEnv("QUEUECTL_BENCH_WAKEUPS", 200) {
		begun := make(chan time.Time, 1)
		go func() {
			if jobs, err := b.AwaitJobs(t.Context(), 1); err != nil || len(jobs) != 1 {
				t.Error(len(jobs), err)
			}
			begun <- time.Now()
		}()
		// After this pause, node b waits for a job, and both nodes know all earlier changes of the queue.
		time.Sleep(20 * time.Millisecond)
		before := time.Now()
		if err := enqueueJobs(t.Context(), a, 1); err != nil {
			t.Fatal(err)
		}
		took = append(took, (<-begun).Sub(before))
	}
	slices.Sort(took)
	t.Logf("from the request on one node to the claim on another: p50 %v, p95 %v", took[len(took)/2],
		took[len(took)*95/100])
}
