//go:build linux || windows

package runner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// outputPiece is one piece of output, in the format that `queuectl logs --jsonl` prints.
type outputPiece struct {
	Attempt int
	Stream  string
	At      time.Time
	Text    string
	Base64  []byte
	Dropped int64 // number of bytes that were not kept
}

// readOutputPieces returns the output that `queuectl logs --jsonl` prints.
func readOutputPieces(q *testrig.Harness, logsArgs ...string) (output []outputPiece) {
	q.Helper()
	out := q.MustRunCLI(append([]string{"logs", "--jsonl"}, logsArgs...)...)
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p outputPiece
		if err := d.Decode(&p); err == io.EOF {
			return output
		} else if err != nil {
			q.Fatal(err)
		}
		output = append(output, p)
	}
}

// randomBytes returns random bytes. Calls with the same size return the same bytes.
func randomBytes(size int) []byte {
	r := rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(size >> 16)})
	b := make([]byte, size)
	r.Read(b)
	return b
}

// Output of any size and content is stored byte for byte.
func TestOutputIsStoredByteForByte(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	sizes := []int{0, 1, 10, 4096, 65535, 65536, 65537, 70000, 100000, 131072, 150001, 204800, 3 << 20}
	var ids []string
	for _, n := range sizes {
		path := q.WriteFile(fmt.Sprint("noise", n), string(randomBytes(n)))
		ids = append(ids, w.Enqueue(testrig.JSONFields{"command": "cat " + path, "output_limit": "8MiB"}))
	}
	for i, id := range ids {
		j := w.WaitJobEnded(id)
		r := q.RunCLI("logs", id)
		if want := string(randomBytes(sizes[i])); j.State != "completed" || r.ExitCode != 0 ||
			r.Stdout != want || r.Stderr != "" {
			t.Errorf("%d bytes: job is %s; %d bytes of output, the same: %v; stderr %q", sizes[i], j.State, len(r.Stdout),
				r.Stdout == want, r.Stderr)
		}
	}
}

// If a job prints more than its output limit, the service stores the first and the last part of the output and the size
// of the gap between these parts. Each part has half of the limit's size. The job can still finish, and the service and
// the runner use little memory.
func TestOutputAboveLimitKeepsBothEnds(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	yes := w.Enqueue(testrig.JSONFields{"command": "timeout 2 yes; echo end"})
	zero := w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf("head -c %dM /dev/zero", 300/testrig.JobCountDivisor)})
	for _, c := range []struct {
		id         string
		head, tail string
		total      int64
	}{{yes, "y\ny\n", "y\nend\n", 0}, {zero, "\x00\x00", "\x00\x00", 300 / testrig.JobCountDivisor << 20}} {
		if j := w.WaitJobEnded(c.id); j.State != "completed" {
			t.Fatalf("a job that prints more than its limit: %+v", j)
		}
		var stored bytes.Buffer
		var dropped int64
		gaps := 0
		for _, p := range readOutputPieces(q, c.id) {
			stored.WriteString(p.Text)
			stored.Write(p.Base64)
			if p.Dropped > 0 {
				gaps++
				dropped += p.Dropped
				if stored.Len() != 512<<10 {
					t.Errorf("the gap is after %d bytes", stored.Len())
				}
			}
		}
		if stored.Len() != 1<<20 || gaps != 1 || c.total > 0 && dropped != c.total-1<<20 ||
			!strings.HasPrefix(stored.String(), c.head) || !strings.HasSuffix(stored.String(), c.tail) {
			t.Errorf("kept %d bytes, %d gaps of %d bytes", stored.Len(), gaps, dropped)
		}
		if out := q.RunCLI("logs", c.id).Stdout; !strings.Contains(out,
			fmt.Sprintf("[%d bytes of stdout were not kept]", dropped)) {
			t.Errorf("logs do not name the gap of %d bytes", dropped)
		}
	}
	for _, pid := range append(q.RunnerPIDs(), q.ServiceCmd.Process.Pid) {
		if got := testrig.PeakMemoryBytes(t, pid); got > 64<<20 {
			t.Errorf("process %d held %d MiB", pid, got>>20)
		}
	}
}

// If a part of an output was not stored, a command that shows the end of the output prints a line about the
// gap.
func TestShowMarksGapInStoredOutput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "printf first; sleep 0.1; printf '%70s'; sleep 0.1; printf last!",
		"output_limit": 10})
	w.WaitJobEnded(id)
	const want = "first\n[70 bytes of stdout were not kept]\nlast!"
	if r := q.RunCLI("logs", id); r.ExitCode != 0 || r.Stdout != want {
		t.Errorf("logs: exit code %d, got %q, want %q", r.ExitCode, r.Stdout, want)
	}
	if r := q.RunCLI("show", id); !strings.Contains(r.Stdout, "\nOutput:\n  "+strings.ReplaceAll(want, "\n", "\n  ")+
		"\n") {
		t.Errorf("show: got %q, want %q in it", r.Stdout, want)
	}
	if got := w.ShowJob(id).Output; got != want {
		t.Errorf("show in JSON: got %q, want %q", got, want)
	}
}

// While a job runs, `queuectl logs -f` prints the output as it arrives, for all attempts of the job, and
// `queuectl show` prints the output up to now.
func TestLogsFollowPrintsOutputAsItArrives(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": `echo up; while [ ! -e ` + q.Path("go$QUEUECTL_ATTEMPT") +
		` ]; do sleep 0.02; done; echo end $QUEUECTL_ATTEMPT; [ $QUEUECTL_ATTEMPT = 2 ]`, "backoff_base": 0.05})
	cmd := q.CLICommand("logs", "-f", id)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for i, want := range []string{"up", "end 1", "up", "end 2"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("line %d is %q, want %q", i, lines.Text(), want)
		}
		if want == "up" {
			if j := w.WaitJobRunning(id); j.Output != "up\n" {
				t.Errorf("show while it runs: %q", j.Output)
			}
			q.WriteFile(fmt.Sprint("go", i/2+1), "")
		}
	}
	if lines.Scan() {
		t.Errorf("logs -f printed an additional line: %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
}

// `queuectl logs -f --queue` prints the output of the queue's running jobs and of jobs that start later. It
// prints each attempt once, even a short one, and nothing from other queues or earlier jobs.
func TestLogsFollowQueuePrintsEachAttemptOnce(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	in := func(queue, id, command string) string {
		return w.Enqueue(testrig.JSONFields{"id": id, "queue": queue, "command": command, "backoff_base": 0.05})
	}
	w.WaitJobEnded(in("a", "before", "echo before"))
	in("a", "runs", "echo up; echo two; while [ ! -e "+q.Path("go")+
		" ]; do sleep 0.02; done; echo three; [ $QUEUECTL_ATTEMPT = 2 ]")
	q.WaitUntil("the job has printed", 10*time.Second,
		func() bool { return w.WaitJobRunning("runs").Output == "up\ntwo\n" })
	lines, end := q.StartPrintingCommand("logs", "-f", "--queue", "a", "-n", "1")
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("logs -f printed %q, want %q", lines.Text(), want)
		}
	}
	next("runs | two")
	w.WaitJobEnded(in("b", "elsewhere", "echo elsewhere"))
	for i := range 3 {
		id := fmt.Sprint("short", i)
		in("a", id, "echo first; [ $QUEUECTL_ATTEMPT = 2 ]")
		next(id + " | first")
		next(id + " | first")
	}
	q.WriteFile("go", "")
	for _, line := range []string{"three", "up", "two", "three"} {
		next("runs | " + line)
	}
	var burst []testrig.JSONFields
	for range 300 {
		burst = append(burst, testrig.JSONFields{"command": "echo elsewhere", "queue": "b"})
	}
	w.MustCall("enqueue.batch", testrig.JSONFields{"jobs": burst, "commit": true}, nil)
	in("a", "last", "sleep 0.3; echo last")
	next("last | last")
	end()
	if lines.Scan() {
		t.Errorf("logs -f printed an additional line: %q", lines.Text())
	}
}

// `queuectl logs` can print one attempt, one stream or only the last lines, and can add timestamps.
func TestLogsFiltersByAttemptStreamAndLines(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{
		"command": `for i in 1 2 3; do echo out$QUEUECTL_ATTEMPT-$i; echo err$QUEUECTL_ATTEMPT-$i >&2; done; printf tail; [ $QUEUECTL_ATTEMPT = 2 ]`, "backoff_base": 0.02})
	w.WaitJobEnded(id)
	for _, c := range []struct{ args, want string }{
		{"--stdout", "out2-1\nout2-2\nout2-3\ntail"},
		{"--stderr", "err2-1\nerr2-2\nerr2-3\n"},
		{"--stdout --attempt 1", "out1-1\nout1-2\nout1-3\ntail"},
		{"--stderr --attempt 2", "err2-1\nerr2-2\nerr2-3\n"},
		{"--stderr -n 1", "err2-3\n"},
		{"--stderr -n 2", "err2-2\nerr2-3\n"},
		{"--stderr -n 99", "err2-1\nerr2-2\nerr2-3\n"},
		{"--stderr -n 0", ""},
		{"--stdout -n 1", "tail"},
		{"--stdout -n 2", "out2-3\ntail"},
	} {
		if r := q.RunCLI(append([]string{"logs", id}, strings.Fields(c.args)...)...); r.ExitCode != 0 || r.Stdout != c.want {
			t.Errorf("logs %s: %q, want %q; stderr %q", c.args, r.Stdout, c.want, r.Stderr)
		}
	}
	both := q.RunCLI("logs", id).Stdout
	for _, want := range []string{"out2-1\n", "err2-3\n", "tail"} {
		if !strings.Contains(both, want) {
			t.Errorf("logs: %q lacks %q", both, want)
		}
	}
	stamp := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\S* (out|err|tail)`)
	for line := range strings.Lines(q.RunCLI("logs", id, "--timestamps").Stdout) {
		if !stamp.MatchString(line) {
			t.Errorf("a line without a timestamp: %q", line)
		}
	}
	for _, c := range []struct {
		args string
		code int
	}{{"none", 4}, {id + " --attempt 3", 4}, {id + " --attempt -1", 2}, {id + " -n -1", 2}, {"", 2}} {
		if r := q.RunCLI(append([]string{"logs"}, strings.Fields(c.args)...)...); r.ExitCode != c.code {
			t.Errorf("logs %s: code %d, want %d", c.args, r.ExitCode, c.code)
		}
	}
}

// A client that follows all attempts of a job gets the output of each attempt, even of attempts that ended before the
// client sent the request.
func TestFollowerGetsOutputOfEveryAttempt(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo said $QUEUECTL_ATTEMPT; exit 3", "max_retries": 2,
		"backoff_base": 0.001})
	w.WaitJobEnded(id)
	follow := func(params testrig.JSONFields) (list []string) {
		for a := w.Call("logs", params); ; {
			if a.Method == "" {
				return list
			}
			var piece struct {
				Value struct {
					Attempt int
					Text    string
					Ended   bool
				}
			}
			if err := json.Unmarshal(a.Params, &piece); err != nil {
				t.Fatal(err)
			}
			list = append(list, fmt.Sprint(piece.Value.Attempt, " ", strings.TrimSpace(piece.Value.Text), piece.Value.Ended))
			var err error
			if a, err = w.ReadMessage(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"1 said 1false", "1 true", "2 said 2false", "2 true", "3 said 3false"}
	if got := follow(testrig.JSONFields{"id": id, "follow": true, "all": true, "ends": true}); !slices.Equal(got, want) {
		t.Errorf("all attempts from the first: %q, want %q", got, want)
	}
	if got := follow(testrig.JSONFields{"id": id, "follow": true, "ends": true}); !slices.Equal(got, want[4:]) {
		t.Errorf("the last attempt: %q", got)
	}
	for _, params := range []testrig.JSONFields{{"all": true}, {"all": true, "follow": true, "n": 1},
		{"all": true, "follow": true, "attempt": 1}} {
		params["id"] = id
		if a := w.Call("logs", params); a.Error == nil || a.Error.Data.Field != "all" {
			t.Errorf("%v: %+v", params, a)
		}
	}
}

// The runner creates the output directory again if it was removed.
func TestRemovedOutputDirIsRecreated(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "true"}))
	if err := os.RemoveAll(q.Path("runner/output")); err != nil {
		t.Fatal(err)
	}
	j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "yes | head -c 200000; echo last"}))
	if got := q.RunCLI("logs", j.ID); len(got.Stdout) != 200_005 || !strings.HasSuffix(got.Stdout, "last\n") {
		t.Errorf("%d bytes were kept, and logs printed the warning %q", len(got.Stdout), got.Stderr)
	}
}

// `queuectl logs` omits damaged bytes of an output file. It prints the rest, reports which bytes are missing, in
// text and in JSON, and fails.
func TestLogsReportsDamagedOutputBytes(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "yes 0123456 | head -c 200000; echo last"}))
	files, _ := filepath.Glob(q.Path("runner/output/*"))
	if len(files) != 1 {
		t.Fatalf("outputs: %v", files)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"logs", j.ID}, {"logs", "--jsonl", j.ID}} {
		r := q.RunCLI(args...)
		report := regexp.MustCompile(
			`(\d+) bytes of stdout, from byte (\d+) on, cannot be read.*queuectl doctor --verify`).FindStringSubmatch(r.Stderr)
		if r.ExitCode != 1 || report == nil {
			t.Fatalf("%v: exit code %d, %q", args, r.ExitCode, r.Stderr)
		}
		marker := "[" + report[1] + " bytes of stdout are damaged]"
		if args[1] == "--jsonl" {
			marker = `"damage":{"offset":` + report[2] + `,"bytes":` + report[1] + `}`
		}
		if !strings.Contains(r.Stdout, marker) || !strings.Contains(r.Stdout, "last") || len(r.Stdout) < 150_000 {
			t.Errorf("%v: no %q in %d bytes", args, marker, len(r.Stdout))
		}
	}
	if r := q.RunCLI("logs", "--stderr", j.ID); r.ExitCode != 0 || r.Stdout+r.Stderr != "" {
		t.Errorf("logs --stderr, which is not damaged: %+v", r)
	}
	if err := os.Truncate(files[0], int64(len(raw)/4)); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{"--stdout", "--stderr"} {
		r := q.RunCLI("logs", stream, j.ID)
		report := regexp.MustCompile(
			`: (\d+) bytes of stdout, stderr or both cannot be read; .*queuectl doctor --verify`).FindStringSubmatch(r.Stderr)
		if r.ExitCode != 1 || report == nil || !strings.HasSuffix(r.Stdout, "["+report[1]+" bytes of output are damaged]\n") {
			t.Errorf("the end was cut off, %s: exit code %d, %q after %d bytes", stream, r.ExitCode, r.Stderr, len(r.Stdout))
		}
	}
}

// `queuectl logs` omits damaged bytes of an output file while the job runs, and also after the job has ended.
func TestLogsReportsDamagedOutputOfRunningJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{
		"command": "yes 0123456 | head -c 200000; echo last; until test -e go; do sleep 0.02; done",
		"cwd":     q.StateDir})
	q.WaitUntil("all is printed", 10*time.Second, func() bool {
		return strings.Contains(q.RunCLI("logs", "-n", "1", id).Stdout, "last")
	})
	files, _ := filepath.Glob(q.Path("runner/*/log-*"))
	if len(files) != 1 {
		t.Fatalf("logs of running attempts: %v", files)
	}
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("X"), 100_000); err != nil {
		t.Fatal(err)
	}
	reports := func(when string) {
		t.Helper()
		r := q.RunCLI("logs", id)
		damaged, marks := 0, 0 // add up the sizes in all lines, because a gap that spans two reads is reported in two lines
		for _, match := range regexp.MustCompile(`\[(\d+) bytes of stdout are damaged\]\n`).FindAllStringSubmatch(r.Stdout,
			-1) {
			n, _ := strconv.Atoi(match[1])
			damaged, marks = damaged+n, marks+len(match[0])
		}
		if damaged == 0 || r.ExitCode != 1 || strings.Contains(r.Stdout, "X") || !strings.Contains(r.Stdout, "last") {
			t.Fatalf("%s: exit code %d, %d damaged of %d bytes, %q", when, r.ExitCode, damaged, len(r.Stdout), r.Stderr)
		}
		if damaged > 32<<10 || len(r.Stdout) != 200_005-damaged+marks {
			t.Errorf("%s: %d bytes are damaged, and %d are printed", when, damaged, len(r.Stdout))
		}
	}
	reports("running")
	q.WriteFile("go", "")
	w.WaitJobEnded(id)
	reports("ended")
}
