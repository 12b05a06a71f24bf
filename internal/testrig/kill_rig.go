//go:build linux || windows

package testrig

import (
	"bufio"
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver with which QueryDatabaseInt reads the database

	"github.com/queuectl/queuectl/test/pgserver"
)

// ledgerJobScript is the shell script of the jobs of a LedgerQueue. Its arguments are: tag, size, offset, seconds, exit
// code. The tag is the name of the job, the same in all attempts.
//
// The script appends notes to a file, the ledger. First it tries to take the lock of its tag. If another
// process holds that lock, it writes the note X, but continues. It writes S, prints the first half of its
// output, sleeps, prints the second half and writes E. The output is a part of a file of numbers. Each note is
// 20 bytes and is appended with one write, so that notes of several jobs do not mix.
var ledgerJobScript = `note() { printf '%s %s %02d %07d\n' "$1" "$2" "$QUEUECTL_ATTEMPT" $$ >>"$RIG/ledger"; }
` + LockingCommand("$RIG/locks/$1") + ` || note X "$1"
note S "$1"
bytes() { dd if="$RIG/numbers" iflag=skip_bytes,count_bytes,fullblock skip="$1" count="$2" bs=65536 status=none; }
if [ "$2" = 10 ]; then printf '%09d\n' $(($3 / 10)); else bytes "$3" $(($2 / 2)); fi
[ "$4" = 0 ] || sleep "$4"
[ "$2" = 10 ] || bytes $(($3 + $2 / 2)) $(($2 / 2))
note E "$1"
exit "$5"
`

const LedgerEntryBytes = 20 // size of one note in the ledger, in bytes

// LedgerQueue is a queue whose jobs write their starts and ends to a file, the ledger; see ledgerJobScript.
type LedgerQueue struct {
	*Harness
	NumbersFileContent []byte // content of the file "numbers", parts of which the jobs print

	Mu                       sync.Mutex
	AcknowledgedJobs         map[string]LedgerJob // acknowledged jobs, by tag; guarded by Mu
	ResentRequestCount       int                  // number of requests that were repeated after an error; guarded by Mu
	RecognisedDuplicateCount int                  // number of resent requests that the service recognised; guarded by Mu
}

// LedgerJob contains the parameters of one job of a LedgerQueue; see ledgerJobScript.
type LedgerJob struct {
	ID string
	// OutputBytes and OutputOffset say which part of the file "numbers" the job prints.
	OutputBytes, OutputOffset, RunSeconds, ExitCode int
}

// NewLedgerQueue creates a queue and the files that its jobs need; see ledgerJobScript. buildTag is the build tag of
// the program (see BuiltProgram).
func NewLedgerQueue(t testing.TB, buildTag string) *LedgerQueue {
	t.Helper()
	r := &LedgerQueue{Harness: NewHarness(t, buildTag), AcknowledgedJobs: map[string]LedgerJob{}}
	for i := range 400_000 {
		r.NumbersFileContent = fmt.Appendf(r.NumbersFileContent, "%09d\n", i)
	}
	r.WriteFile("numbers", string(r.NumbersFileContent))
	r.WriteFile("job.sh", ledgerJobScript)
	r.WriteFile("ledger", "")
	if err := os.Mkdir(filepath.Join(r.StateDir, "locks"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

// WriteFile creates a file in the directory of the queue.
func (r *LedgerQueue) WriteFile(name, text string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.StateDir, name), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

// EnqueueParams returns the parameters of the request that enqueues a job.
func (r *LedgerQueue) EnqueueParams(jobTag string, j LedgerJob) map[string]any {
	words := []string{ToolPath("sh"), r.Path("job.sh"), jobTag}
	for _, n := range []int{j.OutputBytes, j.OutputOffset, j.RunSeconds, j.ExitCode} {
		words = append(words, strconv.Itoa(n))
	}
	return map[string]any{"argv": words, "env": map[string]string{"RIG": r.StateDir}, "cwd": r.StateDir, "max_retries": 0,
		"output_limit": 8 << 20}
}

// ledgerEntry is one note in the ledger: a job has started (S), has ended (E), or found its lock taken (X).
type ledgerEntry struct {
	Kind               string // X, S or E, as ledgerJobScript defines
	JobTag             string
	attemptNumber, PID int
}

// ReadLedger returns the notes in the ledger, in their order.
func (r *LedgerQueue) ReadLedger() (entries []ledgerEntry) {
	r.Helper()
	raw, err := os.ReadFile(filepath.Join(r.StateDir, "ledger"))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var n ledgerEntry
		if _, err := fmt.Sscanf(line, "%s %s %d %d\n", &n.Kind, &n.JobTag, &n.attemptNumber, &n.PID); err != nil {
			r.Fatalf("ledger line %q: %v", line, err)
		}
		entries = append(entries, n)
	}
	return entries
}

// CountLedgerEntries counts the notes of one kind (S, E or X) in the ledger, by the tag of the job.
func (r *LedgerQueue) CountLedgerEntries(kind string) map[string]int {
	r.Helper()
	n := map[string]int{}
	for _, e := range r.ReadLedger() {
		if e.Kind == kind {
			n[e.JobTag]++
		}
	}
	return n
}

// CheckNoOverlappingAttempts fails the test if the ledger contains a note X. Such a note means that two processes ran
// the same job at the same time.
func (r *LedgerQueue) CheckNoOverlappingAttempts() {
	r.Helper()
	if x := r.CountLedgerEntries("X"); len(x) > 0 {
		r.Errorf("jobs that ran while the process tree of another attempt was alive: %v", x)
	}
}

// QueryDatabaseInt returns the number that an SQL query returns. It reads the database directly, without the service.
// If this fails, it tries again, because on Windows the file may be temporarily unavailable.
func (q *Harness) QueryDatabaseInt(sqlQuery string) (n int) {
	q.Helper()
	if q.StoreURL != "" {
		return q.queryPostgresInt(sqlQuery)
	}
	for tries := 1; ; tries++ {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(q.StateDir, "queuectl.db")+"?mode=ro&_pragma=busy_timeout(5000)")
		if err != nil {
			q.Fatal(err)
		}
		err = db.QueryRow(sqlQuery).Scan(&n)
		db.Close()
		switch {
		case err == nil:
			return n
		case tries == TimeoutFactor:
			q.Fatalf("%s: %v", sqlQuery, err)
		}
		time.Sleep(50 * time.Millisecond) // the file may be available at the next try
	}
}

// queryPostgresInt implements QueryDatabaseInt for a queue in a PostgreSQL database.
func (q *Harness) queryPostgresInt(query string) int {
	q.Helper()
	n, err := strconv.Atoi(pgserver.Query(q, q.StoreURL, query))
	if err != nil {
		q.Fatalf("%s: %v", query, err)
	}
	return n
}

// CountReservedJobs returns the number of reserved jobs: the service has sent them to a runner, but does not know
// yet whether they have started.
func (q *Harness) CountReservedJobs() int {
	q.Helper()
	return q.QueryDatabaseInt(`SELECT length(reserved) - length(replace(reserved, "/", "")) FROM meta`)
}

// Requester sends requests over a connection to the service. It reconnects when the connection breaks.
type Requester struct {
	TargetQueue  *Harness
	Conn         net.Conn
	reader       *bufio.Reader
	ReplyTimeout time.Duration // timeout for a reply and its notifications; 0 means 30 s
}

// Request sends one request and returns its reply. If notifications arrive before the reply, it passes them to
// onNotification. An error means that the connection broke. In that case the service may or may not have executed the
// request.
func (r *Requester) Request(method string, params any, onNotification func(json.RawMessage)) (ServiceMessage, error) {
	got, err := r.tryRequest(method, params, onNotification)
	if err != nil && r.Conn != nil {
		r.Conn.Close()
		r.Conn = nil
	}
	return got, err
}

// tryRequest is like Request, but does not close a broken connection.
func (r *Requester) tryRequest(
	method string, params any, onNotification func(json.RawMessage),
) (reply ServiceMessage, err error) {
	if r.Conn == nil {
		if r.Conn, err = DialService(r.TargetQueue.StateDir); err != nil {
			r.Conn = nil
			return reply, err
		}
		r.reader = bufio.NewReaderSize(r.Conn, 64<<10)
	}
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return reply, err
	}
	r.Conn.SetDeadline(time.Now().Add(cmp.Or(r.ReplyTimeout, 30*time.Second)))
	if _, err := r.Conn.Write(append(line, '\n')); err != nil {
		return reply, err
	}
	for {
		raw, err := r.reader.ReadBytes('\n')
		if err != nil {
			return reply, err
		}
		reply = ServiceMessage{}
		if err := json.Unmarshal(raw, &reply); err != nil {
			return reply, err
		}
		if reply.Method == "" {
			return reply, nil
		}
		onNotification(reply.Params)
	}
}

// EnqueueUntilAcknowledged enqueues a job with an idempotency key and repeats the request until it is acknowledged.
func (r *LedgerQueue) EnqueueUntilAcknowledged(requester *Requester, jobTag string, j LedgerJob) error {
	params := r.EnqueueParams(jobTag, j)
	params["key"] = "key-" + jobTag
	sent := 0
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		got, err := requester.Request("enqueue", params, nil)
		var opErr *net.OpError
		switch {
		case errors.As(err, &opErr) && opErr.Op == "dial":
			time.Sleep(2 * time.Millisecond) // maybe no service is running at the moment
			continue
		case err != nil:
			sent++
			continue
		case got.Error != nil && got.Error.Data.Code == "unavailable":
			continue
		case got.Error != nil:
			return fmt.Errorf("enqueue %s: %+v", jobTag, *got.Error)
		}
		var ack struct {
			ID        string `json:"id"`
			Duplicate bool   `json:"duplicate"`
		}
		if err := json.Unmarshal(got.Result, &ack); err != nil {
			return err
		}
		j.ID = ack.ID
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.AcknowledgedJobs[jobTag] = j
		r.ResentRequestCount += sent
		if ack.Duplicate {
			r.RecognisedDuplicateCount++
		}
		return nil
	}
	return fmt.Errorf("enqueue %s: never acknowledged", jobTag)
}

// JobStdout returns the stored standard output of a job's last attempt.
func (r *Requester) JobStdout(id string) (out []byte, err error) {
	var decodeErr error
	got, err := r.Request("logs", map[string]any{"id": id, "stdout": true}, func(raw json.RawMessage) {
		var p struct {
			Value struct {
				Text    string `json:"text"`
				Base64  []byte `json:"base64"`
				Dropped int    `json:"dropped"`
			} `json:"value"`
		}
		if e := json.Unmarshal(raw, &p); e != nil || p.Value.Dropped > 0 {
			decodeErr = errors.Join(decodeErr, e, fmt.Errorf("%d bytes dropped", p.Value.Dropped))
		}
		out = append(append(out, p.Value.Text...), p.Value.Base64...)
	})
	if got.Error != nil {
		decodeErr = errors.New(got.Error.Message)
	}
	return out, errors.Join(err, decodeErr)
}

// ListAllJobs returns all jobs of a state, or all jobs if state is "".
func (r *Requester) ListAllJobs(state string) (jobs []Job, err error) {
	params := map[string]any{"limit": 1000}
	if state != "" {
		params["state"] = state
	}
	for {
		got, err := r.Request("list", params, nil)
		if err != nil {
			return nil, err
		}
		if got.Error != nil {
			return nil, errors.New(got.Error.Message)
		}
		var page struct {
			Jobs []Job   `json:"jobs"`
			Next *string `json:"next"`
		}
		if err := json.Unmarshal(got.Result, &page); err != nil {
			return nil, err
		}
		jobs = append(jobs, page.Jobs...)
		if page.Next == nil {
			return jobs, nil
		}
		params["cursor"] = *page.Next
	}
}

// MustRequest sends a request and returns its result. The test fails if the reply is an error.
func (r *Requester) MustRequest(method string, params any) json.RawMessage {
	r.TargetQueue.Helper()
	got, err := r.Request(method, params, nil)
	if err != nil || got.Error != nil {
		r.TargetQueue.Fatalf("%s: %v %+v", method, err, got.Error)
	}
	return got.Result
}

// EnqueueBatch enqueues all jobs in one transaction and returns their ids.
func (r *Requester) EnqueueBatch(jobs ...map[string]any) (ids []string) {
	r.TargetQueue.Helper()
	var reply struct {
		IDs []string `json:"ids"`
	}
	if err := json.Unmarshal(r.MustRequest("enqueue.batch", map[string]any{"jobs": jobs, "commit": true}),
		&reply); err != nil {
		r.TargetQueue.Fatal(err)
	}
	return reply.IDs
}

// ShowJob returns a job.
func (r *Requester) ShowJob(id string) (j Job) {
	r.TargetQueue.Helper()
	if err := json.Unmarshal(r.MustRequest("show", map[string]any{"id": id}), &j); err != nil {
		r.TargetQueue.Fatalf("show %s: %v", id, err)
	}
	return j
}

// WarmUpPrefetch makes the service prefetch jobs, and then sets the number of workers. It first runs many short jobs,
// because the service sends jobs to a runner in advance only if earlier jobs were short.
func (r *Requester) WarmUpPrefetch(workerCount int) {
	r.TargetQueue.Helper()
	if PrefetchFailpoints != "" { // with these failpoints, the service prefetches without a warm-up
		r.MustRequest("worker.scale", map[string]any{"count": workerCount})
		return
	}
	r.MustRequest("worker.scale", map[string]any{"count": 1})
	var jobs []map[string]any
	for range 60 {
		jobs = append(jobs, map[string]any{"argv": []string{ToolPath("true")}, "labels": map[string]string{"rig": "warm"}})
	}
	r.EnqueueBatch(jobs...)
	r.TargetQueue.WaitUntil("warm", 20*time.Second, func() bool {
		return r.TargetQueue.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	r.MustRequest("worker.scale", map[string]any{"count": workerCount})
}

// StrayProcesses lists the processes that belong to the queue but are neither its service nor its runners. A process
// belongs to the queue if its command line or environment contains the queue's directory.
func (q *Harness) StrayProcesses() (processes []string) {
	for pid, commands := range ProcessesUsingDir(q.StateDir) {
		if !strings.HasPrefix(commands, q.ClientPath) && !strings.HasPrefix(commands,
			filepath.Join(filepath.Dir(q.ClientPath), ProgramFileNames[1])) && !strings.Contains(commands, " runner ") &&
			!strings.Contains(commands, runnerHelperCommandText) {
			processes = append(processes, fmt.Sprintf("%d %q", pid, commands))
		}
	}
	return processes
}

// WaitForFailpointKill waits until the service ends. It reports whether a failpoint killed the service before the
// timeout.
func (q *Harness) WaitForFailpointKill(timeout time.Duration) bool {
	select {
	case err := <-q.ServiceExit:
		q.ServiceCmd = nil
		return wasKilledByFailpoint(err)
	case <-time.After(timeout):
		return false
	}
}
