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
	// faultTimePerRound is how long faults are injected in one round. After that time, the campaign waits until all jobs
	// have ended, and checks the jobs.
	faultTimePerRound   = 40 * time.Second
	campaignClientCount = 5 // concurrent clients
	campaignDiskSize    = "48M"
	// The service must send its first reply within this time after its start, even if runners hang.
	serviceReadyTimeLimit = 3 * time.Second
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
	for remaining := length; remaining > 0; remaining -= faultTimePerRound {
		c.runRound(min(remaining, faultTimePerRound))
	}
	c.logSummary()
}

// campaign contains a queue on a small disk, the faults and clients that disturb it, and the test's records about the
// jobs.
type campaign struct {
	*testrig.Harness
	recordDir        string // directory on another disk for the ledger (notes of jobs), the locks and the logs
	diskMount        string // mount point of the small disk; "" if there is no such disk
	seed             uint64
	outputSourceText string                 // a long text of decimal numbers; the output of each job is a part of it
	service          *campaignService       // process of the service that was started last
	eventReceiver    *campaignEventReceiver // receives the events of this round

	diskWasRecentlyFull  atomic.Bool // set while the disk is full and for a moment afterwards
	outputMayBeLost      atomic.Bool // a fault of this round may have prevented the service from storing output
	clientsMustStop      atomic.Bool // clients must start no more operations
	runningJobsWereEnded atomic.Bool // a client or a fault of this round has ended running jobs
	runnerHadFault       atomic.Bool // a fault of this round has affected a runner

	mu                      sync.Mutex
	jobsByTag               map[string]*trackedJob   // jobs of this round, by tag; guarded by mu
	sentRequestsByGroup     map[string]*sentRequests // requests about whole groups; guarded by mu
	recentJobs              []*trackedJob            // acknowledged jobs, newest last; guarded by mu
	jobTagsByCommittedBatch map[string][]string      // tags of the jobs of each batch whose commit was sent; guarded by mu
	truncatedOutputJobSeqs  map[string]bool          // numbers of jobs with a truncated output; guarded by mu
	operationCounts         map[string]int           // numbers of operations and faults, by kind; guarded by mu
	maxReplyLatencies       map[string]time.Duration // longest time to a reply, by API method; guarded by mu
	replyLatencies          []time.Duration          // times to all replies; guarded by mu
	serviceStartDurations   []time.Duration          // times until a service was ready; guarded by mu
	violationCounts         map[string]int           // number of violations, by kind; guarded by mu
	firstViolationTexts     []string                 // texts of the first violations, shortened; guarded by mu

	roundLedgerStartOffset int64 // byte offset in the ledger (notes of jobs) at which this round begins
	roundCount             int
}

// sentRequests records which kinds of requests clients have sent about a job or a group of jobs. Clients record a
// request before they send it. So if a request has had an effect, the kind of the request is recorded here.
type sentRequests struct {
	removeSent, retrySent, releaseSent, killSent, editSent, cancelSent, requeueSent bool
}

// trackedJob is a job that a client tried to enqueue.
type trackedJob struct {
	campaignJob
	sentRequests
	id                   string  // "" until the enqueue is acknowledged
	isInUncommittedBatch bool    // the batch of the job was not committed, so the job must not exist
	isRemoved            bool    // the service has acknowledged the removal of the job
	goneAtUptimeSeconds  float64 // uptime in seconds when a cancellation or removal was acknowledged; 0 if none was
	heldAtUptimeSeconds  float64 // uptime in seconds when a hold was acknowledged; 0 if none was
}

func newCampaign(t *testing.T, duration time.Duration) *campaign {
	t.Helper()
	c := &campaign{
		Harness: testrig.NewHarness(t, ""), seed: uint64(time.Now().UnixNano()),
		jobsByTag: map[string]*trackedJob{}, sentRequestsByGroup: map[string]*sentRequests{},
		jobTagsByCommittedBatch: map[string][]string{},
		truncatedOutputJobSeqs:  map[string]bool{},
		operationCounts:         map[string]int{}, maxReplyLatencies: map[string]time.Duration{},
		violationCounts: map[string]int{},
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
	for i := range outputSourceTextBytes / 10 {
		fmt.Fprintf(&numbers, "%09d\n", i)
	}
	c.outputSourceText = numbers.String()
	for name, text := range map[string]string{"numbers": c.outputSourceText, "job.sh": campaignJobScript, "ledger": ""} {
		if err := os.WriteFile(filepath.Join(recordDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(recordDir, "locks"), 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if _, err := exec.LookPath("mkfs.ext4"); err == nil {
			c.diskMount = c.MountQueueDisk(campaignDiskSize)
			c.StateDir = filepath.Join(c.diskMount, "q")
		}
	}
	if c.diskMount == "" {
		c.StateDir = c.Path("q")
	}
	t.Cleanup(func() { // runs before the disk is unmounted
		c.endStartedProcesses()
		if t.Failed() {
			t.Logf("the ledger and the logs are in %s", recordDir)
			return
		}
		os.RemoveAll(recordDir)
	})
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	// Without this setting, the quota of max_bytes_per_user would prevent the jobs, which all belong to one user, from
	// filling the disk.
	settings := "max_bytes_per_user = 0\nretention_output = \"12MiB\"\nretention_events = \"10m\"\nstop_timeout = " +
		"\"2s\"\njob_retry_delay = \"1s\"\noutput_grace = \"100ms\"\n"
	if err := os.WriteFile(c.Path("queuectl.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Logf("campaign of %v with the seed %d, below %s", duration, c.seed, recordDir)
	c.startService()
	c.requestUntilServed("worker.scale", testrig.JSONFields{"count": 6})
	return c
}

// runRound injects faults and sends requests for the given time. Then it waits until all jobs have ended, and checks
// the jobs.
func (c *campaign) runRound(duration time.Duration) {
	c.roundCount++
	for _, flag := range []*atomic.Bool{&c.clientsMustStop, &c.runningJobsWereEnded, &c.runnerHadFault} {
		flag.Store(false)
	}
	c.eventReceiver = c.followEvents()
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var clients sync.WaitGroup
	for i := range campaignClientCount {
		client := &campaignClient{campaign: c, name: fmt.Sprintf("r%dc%d", c.roundCount, i), rng: c.newRandomSource(i),
			requester: testrig.Requester{TargetQueue: c.Harness, ReplyTimeout: replyTimeLimit + 5*time.Second}}
		clients.Go(func() { client.runRandomOperations(ctx) })
	}
	c.injectFaults(ctx)
	clients.Wait()
	c.logStep("faults over")
	c.waitUntilJobsEnd()
	c.logStep("at rest")
	c.checkRound()
	c.logStep("checked")
	c.removeRoundJobs()
}

// newRandomSource returns a random source for this round. sourceIndex is the index of a client, or campaignClientCount
// for the fault injector.
func (c *campaign) newRandomSource(sourceIndex int) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, uint64(c.roundCount)<<16|uint64(sourceIndex)))
}

// waitUntilJobsEnd resets the settings that may delay jobs, and waits until all jobs of the round have ended.
func (c *campaign) waitUntilJobsEnd() {
	c.Helper()
	for _, key := range []string{"max_running_per_user", "settle_delay", "scheduling", "aging",
		"worker_heartbeat_interval"} {
		c.requestUntilServed("config.unset", testrig.JSONFields{"key": key})
	}
	c.requestUntilServed("drain", testrig.JSONFields{"off": true})
	c.requestUntilServed("worker.scale", testrig.JSONFields{"count": 8})
	for deadline := time.Now().Add(jobsEndTimeLimit); ; time.Sleep(20 * time.Millisecond) {
		open := c.unfinishedJobsSummary()
		if open == "" {
			return
		}
		if time.Now().After(deadline) {
			c.recordViolation("unrest", "%v after the last fault: %s\n%s", jobsEndTimeLimit, open, c.describeUnfinishedJobs())
			return
		}
	}
}

// unfinishedJobsSummary describes how many jobs wait or run and how many workers are busy. It returns "" if no job
// waits or runs and no worker is busy.
func (c *campaign) unfinishedJobsSummary() string {
	var status struct {
		Jobs    map[string]int
		Workers struct{ Busy int }
		Health  string
	}
	if err := c.requestResult("status", testrig.JSONFields{}, &status); err != nil {
		return err.Error()
	}
	if n := status.Jobs["pending"] + status.Jobs["failed"] + status.Jobs["processing"] + status.Jobs["blocked"]; n > 0 ||
		status.Workers.Busy > 0 {
		return fmt.Sprintf("%v, %d busy, %s", status.Jobs, status.Workers.Busy, status.Health)
	}
	return ""
}

// describeUnfinishedJobs returns details for the error message about a queue whose jobs do not end.
func (c *campaign) describeUnfinishedJobs() string {
	var text strings.Builder
	for _, state := range []string{"processing", "pending", "failed"} {
		jobs, err := c.listJobs(state)
		fmt.Fprintf(&text, "%s: %d, %v\n", state, len(jobs), err)
		for i, j := range jobs {
			if i == 5 {
				break
			}
			fmt.Fprintf(&text, "  %s %s %s, attempts %d, pid %d, %s\n", j.ID, j.Reason, j.Error, j.AttemptCount, j.PID,
				j.Labels["tag"])
		}
	}
	for _, line := range testrig.ProcessesWithArg(c.StateDir) {
		fmt.Fprintln(&text, line)
	}
	return text.String()
}

// removeRoundJobs removes all jobs of the round that was just checked.
func (c *campaign) removeRoundJobs() {
	c.Helper()
	c.startService()
	if a := c.requestUntilServed("clear", testrig.JSONFields{"yes": true}); a.Error != nil {
		c.recordViolation("clear", "%+v", *a.Error)
	}
	info, err := os.Stat(filepath.Join(c.recordDir, "ledger"))
	if err != nil {
		c.Fatal(err)
	}
	c.roundLedgerStartOffset = info.Size()
	os.RemoveAll(filepath.Join(c.recordDir, "locks"))
	if err := os.Mkdir(filepath.Join(c.recordDir, "locks"), 0o700); err != nil {
		c.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.jobsByTag)
	clear(c.sentRequestsByGroup)
	clear(c.jobTagsByCommittedBatch)
	c.recentJobs = nil
}

// logsEachStep reports whether the log names each operation and fault.
var logsEachStep = os.Getenv("QUEUECTL_CAMPAIGN_TRACE") != ""

// logStep logs a step if logsEachStep is true.
func (c *campaign) logStep(step string) {
	if logsEachStep {
		c.Logf("uptime %.2f: %s", uptimeSeconds(), step)
	}
}

// countOperation counts an operation or a fault.
func (c *campaign) countOperation(operationName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.operationCounts[operationName]++
}

// maxReportedViolationsPerKind is the maximum number of violations of one kind that are reported in full.
const maxReportedViolationsPerKind = 8

// recordViolation records that the queue broke a promise. kind names the promise, and format and args
// describe the case.
func (c *campaign) recordViolation(kind, format string, args ...any) {
	c.mu.Lock()
	c.violationCounts[kind]++
	n := c.violationCounts[kind]
	message := fmt.Sprintf("round %d, uptime %.2f: %s: %s", c.roundCount, uptimeSeconds(), kind,
		fmt.Sprintf(format, args...))
	if n <= maxReportedViolationsPerKind {
		c.firstViolationTexts = append(c.firstViolationTexts, message[:min(300, len(message))])
	}
	c.mu.Unlock()
	if n <= maxReportedViolationsPerKind {
		c.Error(message)
	}
}

// logSummary logs how often each operation and fault occurred, and the violations.
func (c *campaign) logSummary() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	group := ""
	for _, what := range slices.Sorted(maps.Keys(c.operationCounts)) {
		if kind, _, _ := strings.Cut(what, " "); kind != group {
			group = kind
			fmt.Fprintf(&text, "\n  %s:", kind)
		}
		_, name, _ := strings.Cut(what, " ")
		fmt.Fprintf(&text, " %s %d,", name, c.operationCounts[what])
	}
	slices.Sort(c.replyLatencies)
	slices.Sort(c.serviceStartDurations)
	slow := 0
	for _, d := range c.replyLatencies {
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
	fmt.Fprintf(&text, "\n  answers: %d, p50 %v, p99 %v, longest %v, above 5 s %d", len(c.replyLatencies),
		quantile(c.replyLatencies, 0.5), quantile(c.replyLatencies, 0.99), quantile(c.replyLatencies, 1), slow)
	fmt.Fprintf(&text, "\n  services ready: %d, p50 %v, longest %v", len(c.serviceStartDurations),
		quantile(c.serviceStartDurations, 0.5), quantile(c.serviceStartDurations, 1))
	verbs := slices.SortedFunc(maps.Keys(c.maxReplyLatencies),
		func(a, b string) int { return cmp.Compare(c.maxReplyLatencies[b], c.maxReplyLatencies[a]) })
	fmt.Fprint(&text, "\n  slowest answers:")
	for _, verb := range verbs[:min(8, len(verbs))] {
		fmt.Fprintf(&text, " %s %v,", verb, c.maxReplyLatencies[verb].Round(time.Millisecond))
	}
	fmt.Fprintf(&text, "\n  violations: %v", c.violationCounts)
	for _, message := range c.firstViolationTexts { // repeat the first violations at the end, because the log is long
		fmt.Fprintf(&text, "\n  %q", message)
	}
	c.Logf("campaign, seed %d, %d rounds:%s", c.seed, c.roundCount, text.String())
}
