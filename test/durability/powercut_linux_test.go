package durability

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// These constants are the sizes of the simulated disk and of the workload that clients cause on it.
const (
	powerCutDiskMiB         = 40 // size of the disk
	powerCutClientCount     = 12
	powerCutJobsPerClient   = 24 // number of jobs of each client
	powerCutWorkerCount     = 4
	maxPowerCutsPerWorkload = 250 // maximum number of simulated power cuts for one workload
)

// acknowledgedJobState is a fact that the service acknowledged. logPosition is the length of the disk's log at that
// time.
type acknowledgedJobState struct {
	logPosition int64
	jobID       string
	jobState    string // state of the job; "" accepts any state
	jobOutput   string // output of the job; "" if the output is not checked
}

// diskWorkload records what clients requested and what the service replied, each with the log position (the length of
// the disk's log) at that time.
type diskWorkload struct {
	*testrig.Disk
	mu sync.Mutex
	// by job id, the log position before the job was requested; guarded by mu
	sentLogPositionByJobID map[string]int64
	acknowledgedJobStates  []acknowledgedJobState // guarded by mu
	startLogPosition       int64                  // log position when the service was started
	killLogPosition        int64                  // log position when the service was killed
}

// recordSentJobs records that jobs are about to be enqueued.
func (w *diskWorkload) recordSentJobs(ids ...string) {
	position := diskLogPosition(w.Disk)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.sentLogPositionByJobID[id] = position
	}
}

// recordAcknowledgedJob records that the service reported a job with this state and output, so that a power cut after
// this time must not change them.
func (w *diskWorkload) recordAcknowledgedJob(jobID, state, output string) {
	p := acknowledgedJobState{diskLogPosition(w.Disk), jobID, state, output}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acknowledgedJobStates = append(w.acknowledgedJobStates, p)
}

// runDiskWorkload runs the service on a FUSE disk while clients send requests. Then it kills the
// service.
func runDiskWorkload(t testing.TB, binaryPath string, env ...string) *diskWorkload {
	t.Helper()
	w := &diskWorkload{Disk: testrig.NewDisk(t, powerCutDiskMiB), sentLogPositionByJobID: map[string]int64{}}
	watchdog := time.AfterFunc(2*time.Minute, func() {
		t.Error("the workload hangs")
		w.AbortServer()
	})
	defer watchdog.Stop()
	if err := mountImage(w.Path("fuse/disk.img"), w.Path("disk")); err != nil {
		t.Fatal(err)
	}
	q := &testrig.Harness{TB: t, ClientPath: binaryPath, StateDir: w.Path("disk"), ServiceEnv: env,
		ServiceLog: &testrig.LockedBuffer{}}
	defer func() {
		w.killLogPosition = diskLogPosition(w.Disk)
		q.KillService()
		q.KillRunners()
		if err := testrig.Unmount(w.Path("disk")); err != nil {
			t.Error(err)
		}
	}()
	w.startLogPosition = diskLogPosition(w.Disk)
	q.StartService("--workers", strconv.Itoa(powerCutWorkerCount))
	var clients sync.WaitGroup
	for i := range powerCutClientCount {
		clients.Go(func() {
			a := &testrig.Requester{TargetQueue: q}
			for k := range powerCutJobsPerClient {
				if err := w.sendJobRequests(a, fmt.Sprintf("c%d-%d", i, k), (i+k)%12); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	clients.Wait()
	return w
}

// sendJobRequests sends the requests for one job: usually one request that enqueues the job, and one that waits for the
// job's end. jobKind selects the kind of job.
func (w *diskWorkload) sendJobRequests(requester *testrig.Requester, jobID string, jobKind int) error {
	spec := testrig.JSONFields{"id": jobID, "max_retries": 0}
	// This shell command stores the length of the disk's log when the job starts.
	recordStart := fmt.Sprintf("stat -c %%s %s >%s; ", w.Path("log"), w.Path("begun-"+jobID))
	output := ""
	switch {
	case jobKind == 0: // the output of this job is stored in a file
		spec["command"] = recordStart + "seq 20000"
		output = numberLines(20000)
	case jobKind < 4: // the outputs of these jobs are stored in the database
		spec["command"] = recordStart + "echo " + jobID
		output = jobID + "\n"
	case jobKind < 7:
		spec["command"] = recordStart
	case jobKind == 7:
		return w.enqueueBatchOfThree(requester, jobID)
	default: // these jobs never start
		spec["command"], spec["delay"] = "true", "1h"
	}
	w.recordSentJobs(jobID)
	if err := sendRequest(requester, "enqueue", spec); err != nil {
		return err
	}
	w.recordAcknowledgedJob(jobID, "", "")
	switch {
	case jobKind < 7:
		if err := sendRequest(requester, "wait", testrig.JSONFields{"id": jobID}); err != nil {
			return err
		}
		w.recordAcknowledgedJob(jobID, "completed", output)
	case jobKind == 8:
		if err := sendRequest(requester, "cancel", testrig.JSONFields{"id": jobID}); err != nil {
			return err
		}
		w.recordAcknowledgedJob(jobID, "cancelled", "")
	}
	return nil
}

// enqueueBatchOfThree enqueues three jobs in one request.
func (w *diskWorkload) enqueueBatchOfThree(requester *testrig.Requester, batchID string) error {
	var ids []string
	var jobs []testrig.JSONFields
	for k := range 3 {
		ids = append(ids, fmt.Sprint(batchID, "-", k))
		jobs = append(jobs, testrig.JSONFields{"id": ids[k], "argv": []string{"true"}, "delay": "1h"})
	}
	w.recordSentJobs(ids...)
	if err := sendRequest(requester, "enqueue.batch", testrig.JSONFields{"jobs": jobs, "commit": true}); err != nil {
		return err
	}
	for _, id := range ids {
		w.recordAcknowledgedJob(id, "", "")
	}
	return nil
}

// sendRequest sends a request. It returns an error if the request fails or the service refuses it.
func sendRequest(requester *testrig.Requester, method string, params any) error {
	got, err := requester.Request(method, params, func(json.RawMessage) {})
	if err == nil && got.Error != nil {
		err = fmt.Errorf("%+v", *got.Error)
	}
	if err != nil {
		return fmt.Errorf("%s %v: %w", method, params, err)
	}
	return nil
}

// numberLines returns the numbers from 1 to n, one per line, like the program seq.
func numberLines(n int) string {
	var text []byte
	for i := 1; i <= n; i++ {
		text = append(strconv.AppendInt(text, int64(i), 10), '\n')
	}
	return string(text)
}

// powerCut is one simulated power cut.
type powerCut struct {
	logPosition int64
	kind        int
	seed        uint64
}

// choosePowerCuts chooses cutCount power cuts, ordered by position. One third are spread over all writes. The others
// are at the moment of a reply or a few writes after it, because a power cut at these moments shows whether an fsync
// before the reply was missing.
func (w *diskWorkload) choosePowerCuts(cutCount int, rng *rand.Rand) (cuts []powerCut) {
	records := readDiskLog(w.Disk)
	spread := func(at int64) int64 { // returns the end of one of the next four records
		i, _ := slices.BinarySearchFunc(records, at, func(r diskLogRecord,
			at int64) int {
			return int(r.endLogPosition - at)
		})
		return records[min(i+rng.IntN(4), len(records)-1)].endLogPosition
	}
	for i := range cutCount {
		c := powerCut{kind: i % cutKindCount, seed: rng.Uint64()}
		acknowledged := w.acknowledgedJobStates[rng.IntN(len(w.acknowledgedJobStates))].logPosition
		switch rng.IntN(3) {
		case 0:
			c.logPosition = spread(w.startLogPosition + rng.Int64N(w.killLogPosition-w.startLogPosition))
		case 1:
			c.logPosition = acknowledged
		default:
			c.logPosition = spread(acknowledged)
		}
		cuts = append(cuts, c)
	}
	slices.SortFunc(cuts, func(a, b powerCut) int { return int(a.logPosition - b.logPosition) })
	return cuts
}

// powerCutFindings lists what is wrong after a power cut. brokenPromises contains acknowledged facts that no longer
// hold. It also contains jobs that had started before the power cut and wait again, although no start is recorded.
// otherFaults contains faults that a loss of writes cannot explain, such as a service that does not start.
type powerCutFindings struct{ brokenPromises, otherFaults []string }

// checkAfterPowerCut starts the service on the content of the disk after a power cut and compares its jobs with the
// acknowledged facts. Before that, it changes the stored boot ids, so that the service assumes a reboot of the machine.
func (w *diskWorkload) checkAfterPowerCut(binaryPath, imagePath string, c powerCut) (findings powerCutFindings) {
	dir := w.Path("disk") // the same path as before the power cut
	if err := mountImage(imagePath, dir); err != nil {
		findings.otherFaults = append(findings.otherFaults, err.Error())
		return findings
	}
	q := &testrig.Harness{TB: w, ClientPath: binaryPath, StateDir: dir, ServiceLog: &testrig.LockedBuffer{}}
	defer func() {
		q.KillService()
		q.KillRunners()
		if err := testrig.Unmount(dir); err != nil {
			findings.otherFaults = append(findings.otherFaults, err.Error())
		}
	}()
	boots, _ := filepath.Glob(filepath.Join(dir, "runner", "*", "boot-id"))
	for _, name := range boots {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			continue // the content of the file was lost in the power cut
		}
		if err := os.WriteFile(name, []byte("00000000-0000-0000-0000-000000000000"), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	if err := q.TryStartService("--workers", "0"); err != nil {
		findings.otherFaults = append(findings.otherFaults, fmt.Sprintf("the service does not start: %v", err))
		return findings
	}
	a := &testrig.Requester{TargetQueue: q}
	q.WaitUntil("all leased jobs are settled", 20*time.Second, func() bool {
		return q.QueryDatabaseInt(`SELECT (SELECT count(*) FROM jobs WHERE place = 3) +
			(SELECT length(reserved) FROM meta)`) == 0
	})
	jobs, err := a.ListAllJobs("")
	if err != nil {
		findings.otherFaults = append(findings.otherFaults, err.Error())
		return findings
	}
	w.compareStoredJobs(a, jobs, c, &findings)
	if verdict := sqliteIntegrityResult(q); verdict != "ok" {
		findings.otherFaults = append(findings.otherFaults, "integrity_check: "+verdict)
	}
	if a.Conn != nil {
		a.Conn.Close()
	}
	return findings
}

// compareStoredJobs compares the stored jobs with the sent requests and the acknowledged facts.
func (w *diskWorkload) compareStoredJobs(requester *testrig.Requester, jobs []testrig.Job, c powerCut,
	findings *powerCutFindings) {
	stored := map[string]testrig.Job{}
	for _, j := range jobs {
		if _, duplicate := stored[j.ID]; duplicate {
			findings.otherFaults = append(findings.otherFaults, "job "+j.ID+" is there twice")
		}
		stored[j.ID] = j
		if sent, ok := w.sentLogPositionByJobID[j.ID]; !ok || sent > c.logPosition {
			findings.otherFaults = append(findings.otherFaults, "job "+j.ID+" had not been asked for")
		}
		if j.AttemptCount > 1 {
			findings.otherFaults = append(findings.otherFaults, fmt.Sprintf("job %s is %s with %d attempts", j.ID, j.State,
				j.AttemptCount))
		}
		if w.hadJobStartedBefore(j.ID, c) && j.State == "pending" && j.Reason == "" {
			findings.brokenPromises = append(findings.brokenPromises, fmt.Sprintf("job %s had begun and waits without a trace "+
				"of that", j.ID))
		}
	}
	for _, p := range w.acknowledgedJobStates {
		j, ok := stored[p.jobID]
		switch {
		case p.logPosition > c.logPosition:
		case !ok:
			findings.brokenPromises = append(findings.brokenPromises, "job "+p.jobID+" is gone")
		case p.jobState != "" && j.State != p.jobState:
			findings.brokenPromises = append(findings.brokenPromises, fmt.Sprintf("job %s was %s and is %s", p.jobID, p.jobState,
				j.State))
		// Outputs above 1,000 bytes are in files and are always checked. To save time, smaller outputs are checked only for a
		// fact that was acknowledged at the moment of the power cut.
		case p.jobOutput != "" && (len(p.jobOutput) > 1000 || p.logPosition == c.logPosition):
			if out, err := requester.JobStdout(p.jobID); err != nil || string(out) != p.jobOutput {
				findings.brokenPromises = append(findings.brokenPromises, fmt.Sprintf("job %s: %d bytes of its output, want %d: %v",
					p.jobID, len(out), len(p.jobOutput), err))
			}
		}
	}
}

// hadJobStartedBefore reports whether the job noted its start in a file before the power cut.
func (w *diskWorkload) hadJobStartedBefore(id string, cut powerCut) bool {
	raw, err := os.ReadFile(w.Path("begun-" + id))
	position, bad := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return err == nil && bad == nil && position <= cut.logPosition
}

// sqliteIntegrityResult returns the result of SQLite's integrity_check.
func sqliteIntegrityResult(q *testrig.Harness) (result string) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(q.StateDir, "queuectl.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&result); err != nil {
		return err.Error()
	}
	return result
}

// simulatePowerCuts simulates cutCount power cuts of a workload. After each cut it calls shouldStop, and stops if
// shouldStop returns true.
func (w *diskWorkload) simulatePowerCuts(binaryPath string, cutCount int, rng *rand.Rand,
	shouldStop func(powerCut, powerCutFindings) bool) {
	w.Helper()
	cutter := &powerCutSimulator{records: readDiskLog(w.Disk), durableContent: slices.Clone(w.InitialContent)}
	for i, c := range w.choosePowerCuts(cutCount, rng) {
		// Give each image a new name, because another mount namespace may still mount the previous image.
		image := w.Path(fmt.Sprintf("cut.img.%d", i))
		if err := os.WriteFile(image, cutter.contentAfterPowerCut(c.logPosition, c.kind, rand.New(rand.NewPCG(c.seed, 0))),
			0o600); err != nil {
			w.Fatal(err)
		}
		stop := shouldStop(c, w.checkAfterPowerCut(binaryPath, image, c))
		if err := os.Remove(image); err != nil {
			w.Fatal(err)
		}
		if stop {
			return
		}
	}
}

// randomTestSeed returns the seed of a test's random numbers: the value of QUEUECTL_SEED, or a random seed if it is
// unset.
func randomTestSeed(t testing.TB) uint64 {
	n := rand.Uint64()
	if s := os.Getenv("QUEUECTL_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("QUEUECTL_SEED=%d", n)
	return n
}

// Whenever the power fails, the database is intact and each acknowledged job exists exactly once. A job that
// was reported as completed or cancelled still has that state and its output. The simulated disk loses, tears
// and reorders writes that were not flushed.
func TestPowerCut(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	testrig.RequireDisks(t, "/dev/fuse", "/dev/loop-control")
	n := 60
	if s := os.Getenv("QUEUECTL_CUTS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	rng := rand.New(rand.NewPCG(randomTestSeed(t), 1))
	for remaining := n; remaining > 0 && !t.Failed(); remaining -= maxPowerCutsPerWorkload {
		bin := testrig.BuiltProgram(t, "")
		w := runDiskWorkload(t, bin)
		w.simulatePowerCuts(bin, min(remaining, maxPowerCutsPerWorkload), rng, func(c powerCut, v powerCutFindings) bool {
			if len(v.brokenPromises)+len(v.otherFaults) > 0 {
				t.Errorf("cut at %d of %d to %d, kind %d, seed %d: lost %v, wrong %v", c.logPosition, w.startLogPosition,
					w.killLogPosition, c.kind, c.seed, summarizeFindings(v.brokenPromises), summarizeFindings(v.otherFaults))
			}
			return false
		})
		t.Logf("%d promises of %d jobs, %d writes and flushes", len(w.acknowledgedJobStates), len(w.sentLogPositionByJobID),
			len(readDiskLog(w.Disk)))
		w.Close()
	}
}

// The power-cut test can detect lost jobs. With SQLite's synchronous=NORMAL, which does not flush at each
// commit, it finds that acknowledged jobs are lost.
func TestPowerCutTestDetectsLostJobs(t *testing.T) {
	testrig.RequireDisks(t, "/dev/fuse", "/dev/loop-control")
	rng := rand.New(rand.NewPCG(randomTestSeed(t), 2))
	bin := testrig.BuiltProgram(t, "failpoint")
	w := runDiskWorkload(t, bin, "QUEUECTL_FAILPOINTS=normalsync")
	tried, lost := 0, 0
	w.simulatePowerCuts(bin, 20, rng, func(_ powerCut, v powerCutFindings) bool {
		tried++
		lost = len(v.brokenPromises)
		if len(v.otherFaults) > 0 {
			t.Errorf("faults that lost writes cannot explain: %v", summarizeFindings(v.otherFaults))
		}
		return lost > 0
	})
	t.Logf("cut %d lost %d promises", tried, lost)
	if lost == 0 {
		t.Errorf("%d power cuts without flushes lost nothing, so the test cannot detect lost jobs", tried)
	}
}

// summarizeFindings returns the first five items of a list as text, and the number of further items.
func summarizeFindings(items []string) string {
	text := strings.Join(items[:min(len(items), 5)], "; ")
	if len(items) > 5 {
		text += fmt.Sprintf("; and %d more", len(items)-5)
	}
	return text
}
