package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// While two users attack a service, its replies to a third user must take at most these times, and its processes may
// use at most this memory.
const (
	maxRunLatency         = 250 * time.Millisecond // for 99 % of runs of "true": enqueue, wait and logs together
	maxShowLatency        = 100 * time.Millisecond // for 99 % of "show" requests
	maxServiceMemoryBytes = 128 << 20              // resident bytes of the service, also at their peak
	maxRunnerMemoryBytes  = 64 << 20               // resident bytes of each runner, also at their peak
)

// shortAttackTime is the duration of the attack if the environment variable QUEUECTL_ABUSE is unset. The
// test then does not check the latency limits, because a short attack gives too few measurements, and other
// tests run at the same time.
const shortAttackTime = 5 * time.Second

// multiUserSettings configures a service for users who do not trust each other. No user can occupy
// all workers.
const multiUserSettings = "run_as = \"submitter\"\nworkers = 8\nmax_running_per_user = 3\n"

// attackingUsers are the users who attack the service. One of the attacks sends SIGSTOP to all other processes of the
// attacking user, so no process outside the test may run as one of these users.
var attackingUsers = []testrig.Person{{Name: "bin", Uid: 2, Gid: 2}, {Name: "sys", Uid: 3, Gid: 3}}

// Two users attack a service in every known way, first one attack at a time and then all at the same
// time. The service still serves a third user in time, refuses no request of that user, and uses a
// limited amount of memory. Neither the service nor a runner ends. "make abuse" attacks for five minutes
// on an otherwise idle machine.
//
// The third user sends raw requests, so that the measured times do not include the start of a client. The
// attacking processes may use only a part of the processor time; see abuserCPUShare.
func TestAbuse(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessProgram(t, "perl", "needs perl; .ci/run runs it")
	length, measures := shortAttackTime, os.Getenv("QUEUECTL_ABUSE") != ""
	if measures {
		var err error
		if length, err = time.ParseDuration(os.Getenv("QUEUECTL_ABUSE")); err != nil {
			t.Fatal(err)
		}
	}
	q := testrig.StartQueueWithRootRunners(t, multiUserSettings+
		fmt.Sprintf("max_bytes_per_user = \"%dMiB\"\n", abuseQuotaMiB),
		"accounts = *\n")
	q.MustRunCLI("worker", "scale", "8")
	program := filepath.Join(filepath.Dir(q.RootRunnerDir), "test")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("install", "-m", "755", self, program).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	service := q.ServiceCmd.Process.Pid
	runQuotaAttack(q, t, program)
	quiet, attack, after := serviceMeasurement{q: q, servicePID: service}, serviceMeasurement{q: q, servicePID: service},
		serviceMeasurement{q: q, servicePID: service}
	quiet.measureFor(t, 2*time.Second, nil)
	t.Logf("before: %s", &quiet)
	first := quiet.sampleMemoryByPID()
	attack.measureFor(t, length, func(ctx context.Context) {
		var wg sync.WaitGroup
		for _, p := range attackingUsers {
			wg.Go(func() { runAttacker(q, ctx, program, p, length, os.Getenv(attackNamesEnvVar)) })
		}
		wg.Wait()
	})
	t.Logf("while they attack: %s", &attack)
	after.measureFor(t, 5*time.Second, nil)
	t.Logf("after: %s", &after)
	t.Logf("memory in MB:\n%s", memoryTable(first, attack.peakMemoryBytesByPID, after.sampleMemoryByPID()))

	for _, m := range []*serviceMeasurement{&quiet, &attack, &after} {
		for _, e := range m.refusalErrs[:min(10, len(m.refusalErrs))] {
			t.Errorf("refused: %v", e)
		}
	}
	if len(after.runTimes) == 0 {
		t.Error("no job of the third user ended after the attack")
	}
	if measures {
		if got := percentile(attack.runTimes, 99); got > maxRunLatency {
			t.Errorf("99%% of the third user's runs took up to %v, want %v", got, maxRunLatency)
		}
		if got := percentile(attack.showTimes, 99); got > maxShowLatency {
			t.Errorf("99%% of the third user's shows took up to %v, want %v", got, maxShowLatency)
		}
	}
	for pid, bytes := range attack.peakMemoryBytesByPID {
		limit, process := int64(maxRunnerMemoryBytes), "a runner"
		if pid == service {
			limit, process = maxServiceMemoryBytes, "the service"
		}
		if bytes > limit {
			t.Errorf("%s had %d MB, want %d at most", process, bytes>>20, limit>>20)
		}
	}
	for _, p := range attackingUsers {
		checkByteQuota(q, t, p, abuseQuotaMiB<<20)
	}
	checkDatabaseSize(q, t, int64(len(attackingUsers))*abuseQuotaMiB<<20)
	for pid := range first {
		if !testrig.IsProcessAlive(pid) {
			t.Errorf("process %d, which ran at the start of the test, has ended", pid)
		}
	}
}

// runAttacker executes the attacks of one user for the given time. attackNames selects
// some of them; "" means all.
func runAttacker(q *testrig.Harness, ctx context.Context, program string, p testrig.Person, duration time.Duration,
	attackNames string) {
	dir, err := os.MkdirTemp(filepath.Dir(program), p.Name)
	if err == nil {
		err = os.Chown(dir, p.Uid, p.Gid)
	}
	if err != nil {
		q.Error(err)
		return
	}
	cmd := testrig.CommandAs(exec.CommandContext(ctx, program), p)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), abuserSocketEnvVar + "=" + q.Path(testrig.SocketName),
		abuserDirEnvVar + "=" + dir, attackDurationEnvVar + "=" + duration.String(), attackNamesEnvVar + "=" + attackNames}
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	q.Logf("%s:\n%s", p.Name, out)
	if err != nil && ctx.Err() == nil {
		q.Errorf("%s: %v", p.Name, err)
	}
}

// serviceMeasurement holds how long the requests of the third user took, and the memory of the
// service and its runners.
type serviceMeasurement struct {
	q          *testrig.Harness
	servicePID int // pid of the service

	mu                   sync.Mutex
	runTimes, showTimes  []time.Duration          // durations of runs and of "show" requests; guarded by mu
	runPartDurations     [4][]time.Duration       // durations of parts of runs, by index in runPartNames; guarded by mu
	slowestReplyByMethod map[string]time.Duration // the slowest reply to any other request, by method; guarded by mu
	refusalErrs          []error                  // errors of requests that the service refused; guarded by mu
	peakMemoryBytesByPID map[int]int64            // most resident bytes, by pid; guarded by mu
}

// runPartNames names the parts of a run. The parts end when the enqueue is acknowledged, when the job starts, when the
// job ends, and when the client has read the end and the output of the job.
var runPartNames = [4]string{"stored", "queued", "ran", "reported"}

// measureFor sends the requests of the third user for the given duration and measures them. If runAlongside is not
// nil, measureFor runs it at the same time. It returns after the duration, when runAlongside has returned too.
func (m *serviceMeasurement) measureFor(t *testing.T, duration time.Duration, runAlongside func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var requests sync.WaitGroup
	if runAlongside != nil {
		requests.Go(func() { runAlongside(t.Context()) })
	}
	for _, request := range []func(*rawClient) error{m.measureShortJob, m.measureShortJob, m.requestAllOtherMethods,
		m.requestOverNewConnection} {
		requests.Go(func() { m.repeatRequests(ctx, request) })
	}
	requests.Go(func() {
		for ctx.Err() == nil {
			m.sampleMemoryByPID()
			sleepUntilDone(ctx, 100*time.Millisecond)
		}
	})
	requests.Wait()
}

func sleepUntilDone(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// repeatRequests sends a request of the third user again and again until ctx ends. After an error,
// it opens a new connection.
func (m *serviceMeasurement) repeatRequests(ctx context.Context, request func(*rawClient) error) {
	for ctx.Err() == nil {
		err := m.repeatOnConnection(ctx, request)
		if errors.Is(err, errReconnect) {
			sleepUntilDone(ctx, 10*time.Millisecond)
			continue
		}
		if err != nil && ctx.Err() == nil {
			m.mu.Lock()
			m.refusalErrs = append(m.refusalErrs, err)
			m.mu.Unlock()
			sleepUntilDone(ctx, 100*time.Millisecond)
		}
	}
}

// repeatOnConnection sends a request again and again on one connection, until an error occurs or ctx ends.
func (m *serviceMeasurement) repeatOnConnection(ctx context.Context, request func(*rawClient) error) error {
	conn, err := testrig.ConnectAs(m.q.StateDir, testrig.UucpUser)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := newRawClient(conn)
	for ctx.Err() == nil {
		if err := request(c); err != nil {
			return err
		}
		sleepUntilDone(ctx, 10*time.Millisecond)
	}
	return nil
}

// measureShortJob enqueues a "true" job, waits for it, reads its output, and requests its details. It records how
// long each part took.
func (m *serviceMeasurement) measureShortJob(c *rawClient) error {
	started := time.Now()
	result, err := c.call("enqueue", `{"argv":["true"],"cwd":"/"}`)
	var j struct {
		ID, State string
		Queue     int64 `json:"queue_time_ms"`
		Run       int64 `json:"run_time_ms"`
	}
	if err == nil {
		err = json.Unmarshal(result, &j)
	}
	stored := time.Now()
	id := fmt.Sprintf(`{"id":%q}`, j.ID)
	for _, method := range []string{"wait", "logs"} {
		if err == nil {
			if _, err = c.call(method, id); err != nil {
				err = fmt.Errorf("%s: %w", method, err)
			}
		}
	}
	ended := time.Now()
	if err == nil {
		if result, err = c.call("show", id); err != nil {
			err = fmt.Errorf("show: %w", err)
		}
	}
	if err == nil {
		err = json.Unmarshal(result, &j)
	}
	if err == nil && j.State != "completed" {
		err = fmt.Errorf("job %s: %s", j.ID, result)
	}
	if err != nil {
		return fmt.Errorf("after %v: %w", time.Since(started), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runTimes, m.showTimes = append(m.runTimes, ended.Sub(started)), append(m.showTimes, time.Since(ended))
	queued, run := time.Duration(j.Queue)*time.Millisecond, time.Duration(j.Run)*time.Millisecond
	for i, elapsed := range [4]time.Duration{stored.Sub(started), queued, run, max(0, ended.Sub(stored)-queued-run)} {
		m.runPartDurations[i] = append(m.runPartDurations[i], elapsed)
	}
	return nil
}

// errReconnect makes repeatRequests use a new connection for the next request.
var errReconnect = errors.New("reconnect")

// requestOverNewConnection sends one request over a new connection, as the command-line client does.
func (m *serviceMeasurement) requestOverNewConnection(c *rawClient) error {
	if _, err := c.call("whoami", `{}`); err != nil {
		return fmt.Errorf("whoami on a new connection: %w", err)
	}
	return errReconnect
}

// requestAllOtherMethods sends one request of every other method that a user may call.
func (m *serviceMeasurement) requestAllOtherMethods(c *rawClient) error {
	result, err := c.call("enqueue", `{"argv":["true"],"cwd":"/","delay":"1h"}`)
	if err != nil {
		return err
	}
	var j struct{ ID string }
	if err := json.Unmarshal(result, &j); err != nil {
		return err
	}
	id := fmt.Sprintf(`{"id":%q}`, j.ID)
	for _, request := range [][2]string{
		{"status", `{}`}, {"whoami", `{}`}, {"list", `{"limit":50}`}, {"list", `{"user":"uucp","limit":10}`},
		{"worker.list", `{}`}, {"hold", id}, {"release", id},
		{"edit", fmt.Sprintf(`{"id":%q,"set":{"priority":6}}`, j.ID)}, {"cancel", id}, {"retry", id},
		{"cancel", `{"label":{"none":"such"}}`}, {"rm", id},
	} {
		started := time.Now()
		if _, err := c.call(request[0], request[1]); err != nil {
			return fmt.Errorf("%s after %v: %w", request[0], time.Since(started), err)
		}
		m.mu.Lock()
		if m.slowestReplyByMethod == nil {
			m.slowestReplyByMethod = map[string]time.Duration{}
		}
		m.slowestReplyByMethod[request[0]] = max(m.slowestReplyByMethod[request[0]], time.Since(started))
		m.mu.Unlock()
	}
	return nil
}

// sampleMemoryByPID returns the resident memory of the service and the runners, in bytes by pid. It
// also updates the peaks in m.
func (m *serviceMeasurement) sampleMemoryByPID() map[int]int64 {
	now := map[int]int64{}
	for _, pid := range append(m.q.RunnerPIDs(), m.servicePID) {
		if n := testrig.ResidentMemoryBytes(pid); n > 0 {
			now[pid] = n
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peakMemoryBytesByPID == nil {
		m.peakMemoryBytesByPID = map[int]int64{}
	}
	for pid, n := range now {
		m.peakMemoryBytesByPID[pid] = max(m.peakMemoryBytesByPID[pid], n)
	}
	return now
}

// percentile returns the given percentile of the durations.
func percentile(durations []time.Duration, percent int) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// String returns a report of how fast the service replied.
func (m *serviceMeasurement) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	line := func(name string, durations []time.Duration) {
		fmt.Fprintf(&b, "\n%6d × %-7s p50 %-8v p99 %-8v longest %v", len(durations), name,
			percentile(durations, 50).Round(100*time.Microsecond), percentile(durations, 99).Round(100*time.Microsecond),
			percentile(durations, 100).Round(100*time.Microsecond))
	}
	line("run", m.runTimes)
	for i, list := range m.runPartDurations {
		line(" "+runPartNames[i], list)
	}
	line("show", m.showTimes)
	fmt.Fprintf(&b, "\n%d refused; longest", len(m.refusalErrs))
	names := slices.Collect(func(yield func(string) bool) {
		for name := range m.slowestReplyByMethod {
			if !yield(name) {
				return
			}
		}
	})
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(m.slowestReplyByMethod[b], m.slowestReplyByMethod[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		fmt.Fprintf(&b, " %s %v", name, m.slowestReplyByMethod[name].Round(time.Millisecond))
	}
	return b.String()
}

// memoryTable returns a table with the memory of each process: before, at the peak, and after.
func memoryTable(samples ...map[int]int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10s %8s %8s %8s\n", "pid", "before", "peak", "after")
	pids := map[int]bool{}
	for _, bytes := range samples {
		for pid := range bytes {
			pids[pid] = true
		}
	}
	var sortedPIDs []int
	for pid := range pids {
		sortedPIDs = append(sortedPIDs, pid)
	}
	slices.Sort(sortedPIDs)
	for _, pid := range sortedPIDs {
		fmt.Fprintf(&b, "%10d", pid)
		for _, bytes := range samples {
			fmt.Fprintf(&b, " %8d", bytes[pid]>>20)
		}
		b.WriteString("\n")
	}
	return b.String()
}
