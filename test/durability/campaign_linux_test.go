package durability

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// These constants set the size of TestCampaign and the time limits that the service must keep.
const (
	// faultTime is how long faults are injected in one round. Then the campaign waits until all jobs have ended,
	// and checks them.
	faultTime   = 40 * time.Second
	clientCount = 5 // concurrent clients
	diskSize    = "48M"
	// The service must send its first reply within this time after its start, even if runners hang.
	readyTimeLimit = 3 * time.Second
	// A reply must arrive within this time, in addition to the time for which the request asks the service to
	// wait.
	replyTimeLimit = 35 * time.Second
	// After the last fault, all jobs must end within this time.
	jobsEndTimeLimit = 90 * time.Second
)

// Whatever faults happen and whatever clients request, no acknowledged job is lost, and no job runs twice at
// the same time. If a job runs again, a record says so. The service keeps running.
//
// While several clients send random requests, the test kills and stops the service and its runners, fills the
// disk, and damages directories of runners. The jobs write their starts and ends to a file on another disk,
// the ledger. At the end of each round, the test waits until all jobs have ended, and compares the stored
// jobs with the ledger, the events, and the replies that clients received.
//
// QUEUECTL_CAMPAIGN sets how long faults are injected. QUEUECTL_CAMPAIGN_SEED repeats the operations of an
// earlier campaign in the same order. QUEUECTL_CAMPAIGN_FAULTS names the faults to inject.
// QUEUECTL_CAMPAIGN_DIR is the directory for the ledger and the logs. If QUEUECTL_CAMPAIGN_TRACE is set, the
// log names each operation and fault.
func TestCampaign(t *testing.T) {
	testrig.SkipIfShort(t)
	// This test runs in parallel with other tests, because the promises must also hold on a busy machine.
	t.Parallel()
	length := 10 * time.Second
	if d, err := time.ParseDuration(os.Getenv("QUEUECTL_CAMPAIGN")); err == nil {
		length = d
	}
	c := newCampaign(t, length)
	for remaining := length; remaining > 0; remaining -= faultTime {
		c.runRound(min(remaining, faultTime))
	}
	c.report()
}

// campaign contains a queue on a small disk, the faults and clients that disturb it, and the test's records
// about its jobs.
type campaign struct {
	*testrig.Queue
	recordDir   string // directory on another disk for the ledger, the locks and the logs
	diskMount   string // mount point of the small disk; "" if there is no such disk
	seed        uint64
	numbersText string           // a long text of decimal numbers; the output of each job is a part of it
	service     *campaignService // process of the service that was started last
	events      *campaignEvents  // receives the events of this round

	diskFull       atomic.Bool // the disk is full or was full a moment ago
	outputFaulted  atomic.Bool // a fault of this round may have prevented the service from storing output
	clientsStopped atomic.Bool // clients must start no more operations
	stoppedJobs    atomic.Bool // a client or a fault of this round has ended running jobs
	runnerFaulted  atomic.Bool // a fault of this round has affected a runner

	mu              sync.Mutex
	jobs            map[string]*trackedJob   // jobs of this round, by tag; guarded by mu
	groups          map[string]*sentRequests // requests about whole groups; guarded by mu
	recentJobs      []*trackedJob            // acknowledged jobs, newest last; guarded by mu
	batches         map[string][]string      // tags of the jobs of each batch whose commit was sent; guarded by mu
	cutOutputs      map[string]bool          // numbers of jobs with a truncated output; guarded by mu
	counts          map[string]int           // numbers of operations and faults, by kind; guarded by mu
	maxLatencies    map[string]time.Duration // longest time to a reply, by verb; guarded by mu
	latencies       []time.Duration          // times to all replies; guarded by mu
	startTimes      []time.Duration          // times until a service was ready; guarded by mu
	violations      map[string]int           // number of violations, by kind; guarded by mu
	firstViolations []string                 // texts of the first violations, shortened; guarded by mu

	ledgerStart int64 // byte offset in the ledger at which this round begins
	roundCount  int
}

// sentRequests records which kinds of requests clients have sent about a job or a group of jobs. Clients
// record a request before they send it. So if a request has had an effect, its kind is recorded.
type sentRequests struct {
	remove, revive, release, kill, edit, cancel, requeue bool
}

// trackedJob is a job that a client tried to enqueue.
type trackedJob struct {
	campaignJob
	sentRequests
	id             string  // "" until the enqueue is acknowledged
	neverCommitted bool    // the batch of the job was not committed, so the job must not exist
	isRemoved      bool    // the service has acknowledged the removal of the job
	endedAt        float64 // uptime in seconds when a cancellation or removal was acknowledged; 0 if none was
	heldAt         float64 // uptime in seconds when a hold was acknowledged; 0 if none was
}

func newCampaign(t *testing.T, duration time.Duration) *campaign {
	t.Helper()
	c := &campaign{
		Queue: testrig.NewQueue(t, ""), seed: uint64(time.Now().UnixNano()),
		jobs: map[string]*trackedJob{}, groups: map[string]*sentRequests{}, batches: map[string][]string{},
		cutOutputs: map[string]bool{},
		counts:     map[string]int{}, maxLatencies: map[string]time.Duration{}, violations: map[string]int{},
	}
	if n, err := strconv.ParseUint(os.Getenv("QUEUECTL_CAMPAIGN_SEED"), 10, 64); err == nil {
		c.seed = n
	}
	recordDir, err := os.MkdirTemp(os.Getenv("QUEUECTL_CAMPAIGN_DIR"), "qc")
	if err != nil {
		t.Fatal(err)
	}
	c.recordDir = recordDir
	var numbers strings.Builder
	for i := range numbersTextBytes / 10 {
		fmt.Fprintf(&numbers, "%09d\n", i)
	}
	c.numbersText = numbers.String()
	for name, text := range map[string]string{"numbers": c.numbersText, "job.sh": campaignScript, "ledger": ""} {
		if err := os.WriteFile(filepath.Join(recordDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(recordDir, "locks"), 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if _, err := exec.LookPath("mkfs.ext4"); err == nil {
			c.diskMount = c.Mount(diskSize)
			c.Dir = filepath.Join(c.diskMount, "q")
		}
	}
	if c.diskMount == "" {
		c.Dir = c.Path("q")
	}
	t.Cleanup(func() { // runs before the disk is unmounted
		c.endProcesses()
		if t.Failed() {
			t.Logf("the ledger and the logs are in %s", recordDir)
			return
		}
		os.RemoveAll(recordDir)
	})
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// All jobs belong to one user. So turn off max_bytes_per_user, the quota that would keep this user from
	// filling the disk.
	settings := "max_bytes_per_user = 0\nretention_output = \"12MiB\"\nretention_events = \"10m\"\nstop_timeout = " +
		"\"2s\"\njob_retry_delay = \"1s\"\noutput_grace = \"100ms\"\n"
	if err := os.WriteFile(c.Path("queuectl.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Logf("campaign of %v with the seed %d, below %s", duration, c.seed, recordDir)
	c.startService()
	c.mustRequest("worker.scale", testrig.Fields{"count": 6})
	return c
}

// runRound injects faults and sends requests for the given time. Then it waits until all jobs have
// ended, and checks them.
func (c *campaign) runRound(duration time.Duration) {
	c.roundCount++
	for _, flag := range []*atomic.Bool{&c.clientsStopped, &c.stoppedJobs, &c.runnerFaulted} {
		flag.Store(false)
	}
	c.events = c.followEvents()
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var clients sync.WaitGroup
	for i := range clientCount {
		client := &campaignClient{campaign: c, name: fmt.Sprintf("r%dc%d", c.roundCount, i), rng: c.newRand(i),
			requester: testrig.Requester{Q: c.Queue, Timeout: replyTimeLimit + 5*time.Second}}
		clients.Go(func() { client.run(ctx) })
	}
	c.injectFaults(ctx)
	clients.Wait()
	c.traceStep("faults over")
	c.quiesce()
	c.traceStep("at rest")
	c.check()
	c.traceStep("checked")
	c.clear()
}

// newRand returns a random source for this round. i is the index of a client, or clientCount for the fault
// injector.
func (c *campaign) newRand(i int) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, uint64(c.roundCount)<<16|uint64(i)))
}

// quiesce resets the settings that may delay jobs, and waits until all jobs of the round have ended.
func (c *campaign) quiesce() {
	c.Helper()
	for _, key := range []string{"max_running_per_user", "settle_delay", "scheduling", "aging",
		"worker_heartbeat_interval"} {
		c.mustRequest("config.unset", testrig.Fields{"key": key})
	}
	c.mustRequest("drain", testrig.Fields{"off": true})
	c.mustRequest("worker.scale", testrig.Fields{"count": 8})
	for deadline := time.Now().Add(jobsEndTimeLimit); ; time.Sleep(20 * time.Millisecond) {
		open := c.unfinished()
		if open == "" {
			return
		}
		if time.Now().After(deadline) {
			c.recordViolation("unrest", "%v after the last fault: %s\n%s", jobsEndTimeLimit, open, c.describeUnfinished())
			return
		}
	}
}

// unfinished describes how many jobs wait or run and how many workers are busy. It returns "" if no job waits
// or runs and no worker is busy.
func (c *campaign) unfinished() string {
	var status struct {
		Jobs    map[string]int
		Workers struct{ Busy int }
		Health  string
	}
	if err := c.get("status", testrig.Fields{}, &status); err != nil {
		return err.Error()
	}
	if n := status.Jobs["pending"] + status.Jobs["failed"] + status.Jobs["processing"] + status.Jobs["blocked"]; n > 0 ||
		status.Workers.Busy > 0 {
		return fmt.Sprintf("%v, %d busy, %s", status.Jobs, status.Workers.Busy, status.Health)
	}
	return ""
}

// describeUnfinished returns details for the error message about a queue whose jobs do not end.
func (c *campaign) describeUnfinished() string {
	var text strings.Builder
	for _, state := range []string{"processing", "pending", "failed"} {
		jobs, err := c.listJobs(state)
		fmt.Fprintf(&text, "%s: %d, %v\n", state, len(jobs), err)
		for i, j := range jobs {
			if i == 5 {
				break
			}
			fmt.Fprintf(&text, "  %s %s %s, attempts %d, pid %d, %s\n", j.ID, j.Reason, j.Error, j.Attempts, j.PID,
				j.Labels["tag"])
		}
	}
	for _, line := range testrig.ProcessesWithArg(c.Dir) {
		fmt.Fprintln(&text, line)
	}
	return text.String()
}

// clear removes all jobs of the round that was just checked.
func (c *campaign) clear() {
	c.Helper()
	c.startService()
	if a := c.mustRequest("clear", testrig.Fields{"yes": true}); a.Error != nil {
		c.recordViolation("clear", "%+v", *a.Error)
	}
	info, err := os.Stat(filepath.Join(c.recordDir, "ledger"))
	if err != nil {
		c.Fatal(err)
	}
	c.ledgerStart = info.Size()
	os.RemoveAll(filepath.Join(c.recordDir, "locks"))
	if err := os.Mkdir(filepath.Join(c.recordDir, "locks"), 0o700); err != nil {
		c.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.jobs)
	clear(c.groups)
	clear(c.batches)
	c.recentJobs = nil
}

// traceSteps reports whether the log names each operation and fault.
var traceSteps = os.Getenv("QUEUECTL_CAMPAIGN_TRACE") != ""

// traceStep logs a step if traceSteps is true.
func (c *campaign) traceStep(step string) {
	if traceSteps {
		c.Logf("uptime %.2f: %s", uptime(), step)
	}
}

// count counts an operation or a fault.
func (c *campaign) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name]++
}

// maxReportedPerKind is the maximum number of violations of one kind that are reported in full.
const maxReportedPerKind = 8

// recordViolation records that the queue broke a promise. kind names the promise, and format and args
// describe the case.
func (c *campaign) recordViolation(kind, format string, args ...any) {
	c.mu.Lock()
	c.violations[kind]++
	n := c.violations[kind]
	message := fmt.Sprintf("round %d, uptime %.2f: %s: %s", c.roundCount, uptime(), kind, fmt.Sprintf(format, args...))
	if n <= maxReportedPerKind {
		c.firstViolations = append(c.firstViolations, message[:min(300, len(message))])
	}
	c.mu.Unlock()
	if n <= maxReportedPerKind {
		c.Error(message)
	}
}

// report logs how often each operation and fault occurred, and the violations.
func (c *campaign) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	group := ""
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		if kind, _, _ := strings.Cut(what, " "); kind != group {
			group = kind
			fmt.Fprintf(&text, "\n  %s:", kind)
		}
		_, name, _ := strings.Cut(what, " ")
		fmt.Fprintf(&text, " %s %d,", name, c.counts[what])
	}
	slices.Sort(c.latencies)
	slices.Sort(c.startTimes)
	slow := 0
	for _, d := range c.latencies {
		if d > 5*time.Second {
			slow++
		}
	}
	quantile := func(list []time.Duration, fraction float64) time.Duration {
		if len(list) == 0 {
			return 0
		}
		return list[min(int(fraction*float64(len(list))), len(list)-1)].Round(time.Millisecond)
	}
	fmt.Fprintf(&text, "\n  answers: %d, p50 %v, p99 %v, longest %v, above 5 s %d", len(c.latencies),
		quantile(c.latencies, 0.5), quantile(c.latencies, 0.99), quantile(c.latencies, 1), slow)
	fmt.Fprintf(&text, "\n  services ready: %d, p50 %v, longest %v", len(c.startTimes), quantile(c.startTimes, 0.5),
		quantile(c.startTimes, 1))
	verbs := slices.SortedFunc(maps.Keys(c.maxLatencies),
		func(a, b string) int { return cmp.Compare(c.maxLatencies[b], c.maxLatencies[a]) })
	fmt.Fprint(&text, "\n  slowest answers:")
	for _, verb := range verbs[:min(8, len(verbs))] {
		fmt.Fprintf(&text, " %s %v,", verb, c.maxLatencies[verb].Round(time.Millisecond))
	}
	fmt.Fprintf(&text, "\n  violations: %v", c.violations)
	for _, message := range c.firstViolations { // repeat the first violations at the end, because the log is long
		fmt.Fprintf(&text, "\n  %q", message)
	}
	c.Logf("campaign, seed %d, %d rounds:%s", c.seed, c.roundCount, text.String())
}
