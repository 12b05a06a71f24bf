//go:build linux || windows

package test

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

	_ "modernc.org/sqlite" // the driver with which the test reads the database

	"github.com/queuectl/queuectl/test/pgserver"
)

// rigScript is the script of the rig's jobs. It takes the lock of its tag, and notes X if another
// process holds it. It notes its start (S), prints bytes of a numbered file, sleeps between the
// halves, notes its end (E) and exits. A note is one O_APPEND write of 20 bytes. Arguments: tag,
// size, offset, seconds, exit code.
var rigScript = `note() { printf '%s %s %02d %07d\n' "$1" "$2" "$QUEUECTL_ATTEMPT" $$ >>"$RIG/ledger"; }
` + lockingCommand("$RIG/locks/$1") + ` || note X "$1"
note S "$1"
bytes() { dd if="$RIG/numbers" iflag=skip_bytes,count_bytes,fullblock skip="$1" count="$2" bs=65536 status=none; }
if [ "$2" = 10 ]; then printf '%09d\n' $(($3 / 10)); else bytes "$3" $(($2 / 2)); fi
[ "$4" = 0 ] || sleep "$4"
[ "$2" = 10 ] || bytes $(($3 + $2 / 2)) $(($2 / 2))
note E "$1"
exit "$5"
`

const noteBytes = 20 // size of one note in the ledger

// rig is a queue whose jobs keep a ledger.
type rig struct {
	*queue
	numbers []byte

	mu         sync.Mutex
	acked      map[string]rigJob // acknowledged jobs, by tag; guarded by mu
	resent     int               // number of requests that were sent again; guarded by mu
	duplicates int               // number of resent requests that the service found to be duplicates; guarded by mu
}

// rigJob holds the parameters of one job of the rig.
type rigJob struct {
	id                          string
	size, offset, seconds, code int
}

func newRig(t testing.TB, tag string) *rig {
	t.Helper()
	r := &rig{queue: newQueue(t, tag), acked: map[string]rigJob{}}
	for i := range 400_000 {
		r.numbers = fmt.Appendf(r.numbers, "%09d\n", i)
	}
	r.writeFile("numbers", string(r.numbers))
	r.writeFile("job.sh", rigScript)
	r.writeFile("ledger", "")
	if err := os.Mkdir(filepath.Join(r.dir, "locks"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) writeFile(name, text string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

// params returns the parameters of the enqueue request for a job.
func (r *rig) params(tag string, j rigJob) map[string]any {
	words := []string{toolPath("sh"), r.path("job.sh"), tag}
	for _, n := range []int{j.size, j.offset, j.seconds, j.code} {
		words = append(words, strconv.Itoa(n))
	}
	return map[string]any{"argv": words, "env": map[string]string{"RIG": r.dir}, "cwd": r.dir, "max_retries": 0,
		"output_limit": 8 << 20}
}

// note is one line of the ledger.
type note struct {
	kind         string
	tag          string
	attempt, pid int
}

func (r *rig) ledger() (notes []note) {
	r.Helper()
	raw, err := os.ReadFile(filepath.Join(r.dir, "ledger"))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var n note
		if _, err := fmt.Sscanf(line, "%s %s %d %d\n", &n.kind, &n.tag, &n.attempt, &n.pid); err != nil {
			r.Fatalf("ledger line %q: %v", line, err)
		}
		notes = append(notes, n)
	}
	return notes
}

// countNotes counts the notes of a kind, by tag.
func (r *rig) countNotes(kind string) map[string]int {
	r.Helper()
	n := map[string]int{}
	for _, e := range r.ledger() {
		if e.kind == kind {
			n[e.tag]++
		}
	}
	return n
}

// checkNoOverlap fails the test if a job found its lock held.
func (r *rig) checkNoOverlap() {
	r.Helper()
	if x := r.countNotes("X"); len(x) > 0 {
		r.Errorf("ran while the tree of another attempt lived: %v", x)
	}
}

// queryInt returns one number from the database. It reads the database from another process than the service,
// as an administrator may. It retries because on Windows a file may be temporarily unavailable.
func (q *queue) queryInt(query string) (n int) {
	q.Helper()
	if q.store != "" {
		return q.queryIntAtServer(query)
	}
	for tries := 1; ; tries++ {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(q.dir, "queuectl.db")+"?mode=ro&_pragma=busy_timeout(5000)")
		if err != nil {
			q.Fatal(err)
		}
		err = db.QueryRow(query).Scan(&n)
		db.Close()
		switch {
		case err == nil:
			return n
		case tries == timeoutFactor:
			q.Fatalf("%s: %v", query, err)
		}
		time.Sleep(50 * time.Millisecond) // the file may be available later
	}
}

// queryIntAtServer is queryInt for a queue on a PostgreSQL server.
func (q *queue) queryIntAtServer(query string) int {
	q.Helper()
	n, err := strconv.Atoi(pgserver.Query(q, q.store, query))
	if err != nil {
		q.Fatalf("%s: %v", query, err)
	}
	return n
}

// countReserved returns the number of jobs that are claimed but not known to have started.
func (q *queue) countReserved() int {
	q.Helper()
	return q.queryInt(`SELECT length(reserved) - length(replace(reserved, "/", "")) FROM meta`)
}

// requester sends requests over a connection and reconnects when it breaks.
type requester struct {
	q       *queue
	conn    net.Conn
	in      *bufio.Reader
	timeout time.Duration // timeout of a reply with its notifications; 0 means 30 s
}

// request sends one request and returns its reply. An error means that the connection broke, before or
// after the request was carried out. onNotification receives the notifications.
func (a *requester) request(method string, params any, onNotification func(json.RawMessage)) (wireMessage, error) {
	got, err := a.tryRequest(method, params, onNotification)
	if err != nil && a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
	return got, err
}

func (a *requester) tryRequest(
	method string, params any, onNotification func(json.RawMessage),
) (got wireMessage, err error) {
	if a.conn == nil {
		if a.conn, err = dial(a.q.dir); err != nil {
			a.conn = nil
			return got, err
		}
		a.in = bufio.NewReaderSize(a.conn, 64<<10)
	}
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return got, err
	}
	a.conn.SetDeadline(time.Now().Add(cmp.Or(a.timeout, 30*time.Second)))
	if _, err := a.conn.Write(append(line, '\n')); err != nil {
		return got, err
	}
	for {
		raw, err := a.in.ReadBytes('\n')
		if err != nil {
			return got, err
		}
		got = wireMessage{}
		if err := json.Unmarshal(raw, &got); err != nil {
			return got, err
		}
		if got.Method == "" {
			return got, nil
		}
		onNotification(got.Params)
	}
}

// submit enqueues a job with a key and repeats the request until it is acknowledged.
func (r *rig) submit(a *requester, tag string, j rigJob) error {
	params := r.params(tag, j)
	params["key"] = "key-" + tag
	sent := 0
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		got, err := a.request("enqueue", params, nil)
		var op *net.OpError
		switch {
		case errors.As(err, &op) && op.Op == "dial":
			time.Sleep(2 * time.Millisecond) // try again, because no service may be running at the moment
			continue
		case err != nil:
			sent++
			continue
		case got.Error != nil && got.Error.Data.Code == "unavailable":
			continue
		case got.Error != nil:
			return fmt.Errorf("enqueue %s: %+v", tag, *got.Error)
		}
		var ack struct {
			ID        string `json:"id"`
			Duplicate bool   `json:"duplicate"`
		}
		if err := json.Unmarshal(got.Result, &ack); err != nil {
			return err
		}
		j.id = ack.ID
		r.mu.Lock()
		defer r.mu.Unlock()
		r.acked[tag] = j
		r.resent += sent
		if ack.Duplicate {
			r.duplicates++
		}
		return nil
	}
	return fmt.Errorf("enqueue %s: never acknowledged", tag)
}

// logs returns the standard output of a job's last attempt.
func (a *requester) logs(id string) (out []byte, err error) {
	var decodeErr error
	got, err := a.request("logs", map[string]any{"id": id, "stdout": true}, func(raw json.RawMessage) {
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

// listAll returns all jobs of a state, or all jobs if state is "".
func (a *requester) listAll(state string) (jobs []job, err error) {
	params := map[string]any{"limit": 1000}
	if state != "" {
		params["state"] = state
	}
	for {
		got, err := a.request("list", params, nil)
		if err != nil {
			return nil, err
		}
		if got.Error != nil {
			return nil, errors.New(got.Error.Message)
		}
		var page struct {
			Jobs []job   `json:"jobs"`
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

// mustRequest sends a request and requires a result.
func (a *requester) mustRequest(method string, params any) json.RawMessage {
	a.q.Helper()
	got, err := a.request(method, params, nil)
	if err != nil || got.Error != nil {
		a.q.Fatalf("%s: %v %+v", method, err, got.Error)
	}
	return got.Result
}

// batch enqueues jobs in one transaction and returns their ids.
func (a *requester) batch(jobs ...map[string]any) (ids []string) {
	a.q.Helper()
	var got struct {
		IDs []string `json:"ids"`
	}
	if err := json.Unmarshal(a.mustRequest("enqueue.batch", map[string]any{"jobs": jobs, "commit": true}),
		&got); err != nil {
		a.q.Fatal(err)
	}
	return got.IDs
}

func (a *requester) show(id string) (j job) {
	a.q.Helper()
	if err := json.Unmarshal(a.mustRequest("show", map[string]any{"id": id}), &j); err != nil {
		a.q.Fatalf("show %s: %v", id, err)
	}
	return j
}

// warmUp runs short jobs one by one, so that the pool learns that jobs are short and prefetches large blocks.
// Then it sets the number of workers.
func (a *requester) warmUp(workers int) {
	a.q.Helper()
	if prefetchFailpoints != "" { // the service prefetches because of the failpoints, without warming up
		a.mustRequest("worker.scale", map[string]any{"count": workers})
		return
	}
	a.mustRequest("worker.scale", map[string]any{"count": 1})
	var jobs []map[string]any
	for range 60 {
		jobs = append(jobs, map[string]any{"argv": []string{toolPath("true")}, "labels": map[string]string{"rig": "warm"}})
	}
	a.batch(jobs...)
	a.q.waitUntil("warm", 20*time.Second, func() bool {
		return a.q.queryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	a.mustRequest("worker.scale", map[string]any{"count": workers})
}

// strayProcesses lists the live processes that have the directory in their command line or environment,
// except the service and the runners.
func (q *queue) strayProcesses() (list []string) {
	for pid, commands := range processesUsing(q.dir) {
		if !strings.HasPrefix(commands, q.bin) && !strings.HasPrefix(commands,
			filepath.Join(filepath.Dir(q.bin), programs[1])) && !strings.Contains(commands, " runner ") &&
			!strings.Contains(commands, runnerHelper) {
			list = append(list, fmt.Sprintf("%d %q", pid, commands))
		}
	}
	return list
}

// waitKilled waits until the service ends by itself. It reports whether a failpoint killed the service within
// the limit.
func (q *queue) waitKilled(limit time.Duration) bool {
	select {
	case err := <-q.ended:
		q.cmd = nil
		return wasKilled(err)
	case <-time.After(limit):
		return false
	}
}
