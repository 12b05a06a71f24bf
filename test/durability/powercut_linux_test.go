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
	cutDiskMiB       = 40 // size of the disk
	cutClients       = 12
	cutJobsPerClient = 24 // number of jobs of each client
	cutWorkers       = 4
	cutsPerRun       = 250 // maximum number of simulated power cuts for one workload
)

// promise is a fact that the service acknowledged. The position is the length of the disk's log at that time.
type promise struct {
	position int64
	id       string
	state    string // state of the job; "" accepts any state
	output   string // output of the job; "" if the output is not checked
}

// workload records what clients requested and what the service replied, each with the length of the disk's log
// at that time.
type workload struct {
	*testrig.Disk
	mu            sync.Mutex
	sentPositions map[string]int64 // by job id, the log position before the job was requested; guarded by mu
	promises      []promise        // guarded by mu
	startPosition int64            // log position when the service was started
	killPosition  int64            // log position when the service was killed
}

// recordSent records that jobs are about to be enqueued.
func (w *workload) recordSent(ids ...string) {
	position := logPosition(w.Disk)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.sentPositions[id] = position
	}
}

// recordReply records as a promise that the service reported a job with this state and output.
func (w *workload) recordReply(id, state, output string) {
	p := promise{logPosition(w.Disk), id, state, output}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.promises = append(w.promises, p)
}

// runWorkload runs the service on a FUSE disk while clients send requests. Then it kills the
// service.
func runWorkload(t testing.TB, bin string, env ...string) *workload {
	t.Helper()
	w := &workload{Disk: testrig.NewDisk(t, cutDiskMiB), sentPositions: map[string]int64{}}
	watchdog := time.AfterFunc(2*time.Minute, func() {
		t.Error("the workload hangs")
		w.Abort()
	})
	defer watchdog.Stop()
	if err := mountImage(w.Path("fuse/disk.img"), w.Path("disk")); err != nil {
		t.Fatal(err)
	}
	q := &testrig.Queue{TB: t, Bin: bin, Dir: w.Path("disk"), Env: env, ServiceLog: &testrig.LockedBuffer{}}
	defer func() {
		w.killPosition = logPosition(w.Disk)
		q.Kill()
		q.KillRunners()
		if err := testrig.Unmount(w.Path("disk")); err != nil {
			t.Error(err)
		}
	}()
	w.startPosition = logPosition(w.Disk)
	q.Start("--workers", strconv.Itoa(cutWorkers))
	var clients sync.WaitGroup
	for i := range cutClients {
		clients.Go(func() {
			a := &testrig.Requester{Q: q}
			for k := range cutJobsPerClient {
				if err := w.sendJob(a, fmt.Sprintf("c%d-%d", i, k), (i+k)%12); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	clients.Wait()
	return w
}

// sendJob sends the requests for one job: usually one that enqueues it and one that waits for its end.
// jobKind selects the kind of job.
func (w *workload) sendJob(a *testrig.Requester, id string, jobKind int) error {
	spec := testrig.Fields{"id": id, "max_retries": 0}
	// This shell command stores the length of the disk's log when the job starts.
	recordStart := fmt.Sprintf("stat -c %%s %s >%s; ", w.Path("log"), w.Path("begun-"+id))
	output := ""
	switch {
	case jobKind == 0: // the output of this job is stored in a file
		spec["command"] = recordStart + "seq 20000"
		output = numbersTo(20000)
	case jobKind < 4: // the outputs of these jobs are stored in the database
		spec["command"] = recordStart + "echo " + id
		output = id + "\n"
	case jobKind < 7:
		spec["command"] = recordStart
	case jobKind == 7:
		return w.useBatch(a, id)
	default: // these jobs never start
		spec["command"], spec["delay"] = "true", "1h"
	}
	w.recordSent(id)
	if err := sendRequest(a, "enqueue", spec); err != nil {
		return err
	}
	w.recordReply(id, "", "")
	switch {
	case jobKind < 7:
		if err := sendRequest(a, "wait", testrig.Fields{"id": id}); err != nil {
			return err
		}
		w.recordReply(id, "completed", output)
	case jobKind == 8:
		if err := sendRequest(a, "cancel", testrig.Fields{"id": id}); err != nil {
			return err
		}
		w.recordReply(id, "cancelled", "")
	}
	return nil
}

// useBatch enqueues three jobs in one request.
func (w *workload) useBatch(a *testrig.Requester, id string) error {
	var ids []string
	var jobs []testrig.Fields
	for k := range 3 {
		ids = append(ids, fmt.Sprint(id, "-", k))
		jobs = append(jobs, testrig.Fields{"id": ids[k], "argv": []string{"true"}, "delay": "1h"})
	}
	w.recordSent(ids...)
	if err := sendRequest(a, "enqueue.batch", testrig.Fields{"jobs": jobs, "commit": true}); err != nil {
		return err
	}
	for _, id := range ids {
		w.recordReply(id, "", "")
	}
	return nil
}

// sendRequest sends a request. It returns an error if the request fails or the service refuses it.
func sendRequest(a *testrig.Requester, method string, params any) error {
	got, err := a.Request(method, params, func(json.RawMessage) {})
	if err == nil && got.Error != nil {
		err = fmt.Errorf("%+v", *got.Error)
	}
	if err != nil {
		return fmt.Errorf("%s %v: %w", method, params, err)
	}
	return nil
}

// numbersTo returns the numbers from 1 to n, one per line, like the program seq.
func numbersTo(n int) string {
	var text []byte
	for i := 1; i <= n; i++ {
		text = append(strconv.AppendInt(text, int64(i), 10), '\n')
	}
	return string(text)
}

// powerCut is one simulated power cut.
type powerCut struct {
	position int64
	kind     int
	seed     uint64
}

// chooseCuts chooses n power cuts, ordered by position. One third are spread over all writes. The others are
// at the moment of a reply or a few writes after it, because a missing fsync loses data there.
func (w *workload) chooseCuts(n int, rng *rand.Rand) (cuts []powerCut) {
	records := readRecords(w.Disk)
	spread := func(at int64) int64 { // returns the end of one of the next four records
		i, _ := slices.BinarySearchFunc(records, at, func(r logRecord, at int64) int { return int(r.endPosition - at) })
		return records[min(i+rng.IntN(4), len(records)-1)].endPosition
	}
	for i := range n {
		c := powerCut{kind: i % cutKindCount, seed: rng.Uint64()}
		acknowledged := w.promises[rng.IntN(len(w.promises))].position
		switch rng.IntN(3) {
		case 0:
			c.position = spread(w.startPosition + rng.Int64N(w.killPosition-w.startPosition))
		case 1:
			c.position = acknowledged
		default:
			c.position = spread(acknowledged)
		}
		cuts = append(cuts, c)
	}
	slices.SortFunc(cuts, func(a, b powerCut) int { return int(a.position - b.position) })
	return cuts
}

// verdict lists what is wrong after a power cut. brokenPromises contains promises that do not hold. It also
// contains jobs that had started before the power cut and wait again, although no start is recorded.
// otherFaults contains faults that a loss of writes cannot explain, such as a service that does not start.
type verdict struct{ brokenPromises, otherFaults []string }

// checkAfterCut starts the service on the content of the disk after a power cut and compares its jobs with the
// promises. It changes the stored boot ids, so that the machine seems to have booted again.
func (w *workload) checkAfterCut(bin, image string, c powerCut) (v verdict) {
	dir := w.Path("disk") // the same path as before the power cut
	if err := mountImage(image, dir); err != nil {
		v.otherFaults = append(v.otherFaults, err.Error())
		return v
	}
	q := &testrig.Queue{TB: w, Bin: bin, Dir: dir, ServiceLog: &testrig.LockedBuffer{}}
	defer func() {
		q.Kill()
		q.KillRunners()
		if err := testrig.Unmount(dir); err != nil {
			v.otherFaults = append(v.otherFaults, err.Error())
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
	if err := q.TryStart("--workers", "0"); err != nil {
		v.otherFaults = append(v.otherFaults, fmt.Sprintf("the service does not start: %v", err))
		return v
	}
	a := &testrig.Requester{Q: q}
	q.WaitUntil("all leased jobs are settled", 20*time.Second, func() bool {
		return q.QueryInt(`SELECT (SELECT count(*) FROM jobs WHERE place = 3) + (SELECT length(reserved) FROM meta)`) == 0
	})
	jobs, err := a.ListAll("")
	if err != nil {
		v.otherFaults = append(v.otherFaults, err.Error())
		return v
	}
	w.compareJobs(a, jobs, c, &v)
	if verdict := checkIntegrity(q); verdict != "ok" {
		v.otherFaults = append(v.otherFaults, "integrity_check: "+verdict)
	}
	if a.Conn != nil {
		a.Conn.Close()
	}
	return v
}

// compareJobs compares the stored jobs with the requests and the promises.
func (w *workload) compareJobs(a *testrig.Requester, jobs []testrig.Job, c powerCut, v *verdict) {
	stored := map[string]testrig.Job{}
	for _, j := range jobs {
		if _, duplicate := stored[j.ID]; duplicate {
			v.otherFaults = append(v.otherFaults, "job "+j.ID+" is there twice")
		}
		stored[j.ID] = j
		if sent, ok := w.sentPositions[j.ID]; !ok || sent > c.position {
			v.otherFaults = append(v.otherFaults, "job "+j.ID+" had not been asked for")
		}
		if j.Attempts > 1 {
			v.otherFaults = append(v.otherFaults, fmt.Sprintf("job %s is %s with %d attempts", j.ID, j.State, j.Attempts))
		}
		if w.hadStarted(j.ID, c) && j.State == "pending" && j.Reason == "" {
			v.brokenPromises = append(v.brokenPromises, fmt.Sprintf("job %s had begun and waits without a trace of that", j.ID))
		}
	}
	for _, p := range w.promises {
		j, ok := stored[p.id]
		switch {
		case p.position > c.position:
		case !ok:
			v.brokenPromises = append(v.brokenPromises, "job "+p.id+" is gone")
		case p.state != "" && j.State != p.state:
			v.brokenPromises = append(v.brokenPromises, fmt.Sprintf("job %s was %s and is %s", p.id, p.state, j.State))
		// Outputs above 1,000 bytes are in files and are always checked. To save time, smaller outputs are
		// checked only for the newest promise.
		case p.output != "" && (len(p.output) > 1000 || p.position == c.position):
			if out, err := a.Logs(p.id); err != nil || string(out) != p.output {
				v.brokenPromises = append(v.brokenPromises, fmt.Sprintf("job %s: %d bytes of its output, want %d: %v",
					p.id, len(out), len(p.output), err))
			}
		}
	}
}

// hadStarted reports whether the job noted its start in a file before the power cut.
func (w *workload) hadStarted(id string, c powerCut) bool {
	raw, err := os.ReadFile(w.Path("begun-" + id))
	position, bad := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return err == nil && bad == nil && position <= c.position
}

// checkIntegrity returns the result of SQLite's integrity_check.
func checkIntegrity(q *testrig.Queue) (verdict string) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(q.Dir, "queuectl.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&verdict); err != nil {
		return err.Error()
	}
	return verdict
}

// simulateCuts simulates n power cuts of a workload. After each cut it calls isEnough, and stops if that returns
// true.
func (w *workload) simulateCuts(bin string, n int, rng *rand.Rand, isEnough func(powerCut, verdict) bool) {
	w.Helper()
	cutter := &powerCutter{records: readRecords(w.Disk), durableContent: slices.Clone(w.InitialContent)}
	for i, c := range w.chooseCuts(n, rng) {
		// Give each image a new name, because another mount namespace may still mount the previous image.
		image := w.Path(fmt.Sprintf("cut.img.%d", i))
		if err := os.WriteFile(image, cutter.contentAfter(c.position, c.kind, rand.New(rand.NewPCG(c.seed, 0))),
			0o600); err != nil {
			w.Fatal(err)
		}
		stop := isEnough(c, w.checkAfterCut(bin, image, c))
		if err := os.Remove(image); err != nil {
			w.Fatal(err)
		}
		if stop {
			return
		}
	}
}

// testSeed returns the seed of a test's random numbers: the value of QUEUECTL_SEED, or a random seed if it is
// unset.
func testSeed(t testing.TB) uint64 {
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
	rng := rand.New(rand.NewPCG(testSeed(t), 1))
	for remaining := n; remaining > 0 && !t.Failed(); remaining -= cutsPerRun {
		bin := testrig.BuiltProgram(t, "")
		w := runWorkload(t, bin)
		w.simulateCuts(bin, min(remaining, cutsPerRun), rng, func(c powerCut, v verdict) bool {
			if len(v.brokenPromises)+len(v.otherFaults) > 0 {
				t.Errorf("cut at %d of %d to %d, kind %d, seed %d: lost %v, wrong %v", c.position, w.startPosition,
					w.killPosition, c.kind, c.seed, firstItems(v.brokenPromises), firstItems(v.otherFaults))
			}
			return false
		})
		t.Logf("%d promises of %d jobs, %d writes and flushes", len(w.promises), len(w.sentPositions),
			len(readRecords(w.Disk)))
		w.Close()
	}
}

// The power-cut test can detect lost jobs. With SQLite's synchronous=NORMAL, which does not flush at each
// commit, it finds that acknowledged jobs are lost.
func TestPowerCutTestDetectsLoss(t *testing.T) {
	testrig.RequireDisks(t, "/dev/fuse", "/dev/loop-control")
	rng := rand.New(rand.NewPCG(testSeed(t), 2))
	bin := testrig.BuiltProgram(t, "failpoint")
	w := runWorkload(t, bin, "QUEUECTL_FAILPOINTS=normalsync")
	tried, lost := 0, 0
	w.simulateCuts(bin, 20, rng, func(_ powerCut, v verdict) bool {
		tried++
		lost = len(v.brokenPromises)
		if len(v.otherFaults) > 0 {
			t.Errorf("faults that lost writes cannot explain: %v", firstItems(v.otherFaults))
		}
		return lost > 0
	})
	t.Logf("cut %d lost %d promises", tried, lost)
	if lost == 0 {
		t.Errorf("%d power cuts without flushes lost nothing, so the test cannot detect lost jobs", tried)
	}
}

// firstItems returns the first five items of a list as text, and the number of further items.
func firstItems(items []string) string {
	text := strings.Join(items[:min(len(items), 5)], "; ")
	if len(items) > 5 {
		text += fmt.Sprintf("; and %d more", len(items)-5)
	}
	return text
}
