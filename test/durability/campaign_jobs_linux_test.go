package durability

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// campaignJobScript is the shell script that every job of TestCampaign runs. The tag of a job is a name that stays the
// same in all attempts. The script holds a lock for the tag, to detect two attempts that run at the same time. The
// script appends notes to a file, the ledger, each with one write in append mode (O_APPEND). It writes X if another
// process holds the lock, S at its start, and E at its end, with the exit code. Between S and E, the script builds a
// process tree of the given shape, prints half of its output, sleeps, and prints the other half. All processes of the
// tree hold the lock, except those that may outlive the job.
//
// The arguments are: tag, size of the output in bytes, byte offset of the output in the campaign's text of numbers,
// seconds to sleep, number of attempts that fail, their exit code, shape.
var campaignJobScript = `tag=$1 size=$2 offset=$3 seconds=$4 fails=$5 code=$6 shape=$7
note() { read -r up idle </proc/uptime; printf '%s %s %s %s %s %s %s\n' \
	"$1" "$tag" "$QUEUECTL_ATTEMPT" "$$" "$up" "$2" "$QUEUECTL_COOKIE" >>"$RIG/ledger"; }
` + testrig.LockingCommand("$RIG/locks/$tag") + ` || note X 0
note S 0
case $shape in
forks) (sleep 600 >/dev/null 2>&1 &) ;;
setsid) (setsid sleep 600 >/dev/null 2>&1 &) ;;
pipe) (sleep 600 &) ;;
stubborn) trap '' TERM ;;
background) (exec 9>&-; sleep 2 >/dev/null 2>&1 &) ;;
stdin) cat ;;
esac
bytes() { [ "$2" = 0 ] ||
	dd if="$RIG/numbers" iflag=skip_bytes,count_bytes,fullblock skip="$1" count="$2" bs=65536 status=none; }
bytes "$offset" $((size / 2))
case $shape-$seconds in
*-0) ;;
bare-*) env -i sleep "$seconds" ;;
*) sleep "$seconds" ;;
esac
bytes $((offset + size / 2)) $((size - size / 2))
[ "$QUEUECTL_ATTEMPT" -le "$fails" ] || code=0
note E "$code"
exit "$code"
`

// outputSourceTextBytes is the size in bytes of a text of numbers. The output of each job is a part of this text.
const outputSourceTextBytes = 4 << 20

// campaignJob holds the parameters of one job of the campaign.
type campaignJob struct {
	tag                 string
	outputBytes         int
	outputOffsetBytes   int     // byte offset of the output in the text of numbers
	runSeconds          float64 // run time
	failingAttemptCount int     // number of attempts that fail with failExitCode
	failExitCode        int
	processTreeShape    string // shape of the process tree; see campaignJobScript
	stdin               string
	onLost              string
	group               string
	hasTimeout          bool
	extraRequestFields  testrig.JSONFields // more fields of the request
}

// randomJob returns a random job. Most jobs are short, print little and succeed.
func randomJob(rng *rand.Rand, tag string) campaignJob {
	j := campaignJob{tag: tag, outputBytes: rng.IntN(2000), processTreeShape: "plain", onLost: "retry",
		group: "g" + strconv.Itoa(rng.IntN(12)), extraRequestFields: testrig.JSONFields{}}
	one := func(n int) bool { return rng.IntN(n) == 0 }
	switch {
	case one(25):
		j.outputBytes = 200<<10 + rng.IntN(1800<<10)
	case one(8):
		j.outputBytes = 60<<10 + rng.IntN(140<<10)
	}
	j.outputOffsetBytes = 10 * rng.IntN((outputSourceTextBytes-j.outputBytes)/10)
	switch p := rng.IntN(100); {
	case p < 35:
		j.runSeconds = 0.05 + float64(rng.IntN(95))/100
	case p < 47:
		j.runSeconds = 1 + float64(rng.IntN(300))/100
	case p < 50:
		j.runSeconds = 4 + float64(rng.IntN(5))
	}
	switch p := rng.IntN(100); {
	case p < 15:
		j.failingAttemptCount, j.failExitCode = 1+rng.IntN(2), 3
	case p < 20:
		j.failingAttemptCount, j.failExitCode = 999, 4
	case p < 24:
		j.failingAttemptCount, j.failExitCode, j.extraRequestFields["defer_codes"] = 2, 75, []int{75}
	case p < 27:
		j.failingAttemptCount, j.failExitCode, j.extraRequestFields["no_retry_codes"] = 999, 5, []int{5}
	}
	shapes := []string{"forks", "setsid", "pipe", "stubborn", "background", "stdin", "bare"}
	if one(3) {
		j.processTreeShape = shapes[rng.IntN(len(shapes))]
	}
	switch j.processTreeShape {
	case "background":
		j.extraRequestFields["allow_background"] = true
	case "stdin":
		j.stdin = strings.Repeat(tag+"\n", 1+rng.IntN(400))
	}
	j.onLost = []string{"retry", "retry", "retry", "dead", "hold"}[rng.IntN(5)]
	if one(4) {
		j.extraRequestFields["id"] = "n-" + tag
	}
	shortDelay := func() time.Duration { return time.Duration(500+rng.IntN(3500)) * time.Millisecond }
	timeIn := func(d time.Duration) string { return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000Z07:00") }
	switch rng.IntN(24) {
	case 0, 1:
		j.extraRequestFields["delay"] = shortDelay().String()
	case 2:
		j.extraRequestFields["run_at"] = timeIn(shortDelay())
	case 3:
		j.extraRequestFields["expires_at"] = timeIn(shortDelay())
	}
	if j.hasTimeout = one(10); j.hasTimeout {
		j.extraRequestFields["timeout"] = 0.3 + float64(rng.IntN(200))/100
	}
	j.extraRequestFields["priority"], j.extraRequestFields["max_retries"] = rng.IntN(20)-5, rng.IntN(4)
	j.extraRequestFields["kill_after"] = fmt.Sprintf("%dms", 100+rng.IntN(900))
	return j
}

// enqueueParams returns the parameters of the request that enqueues the job.
func (c *campaign) enqueueParams(j *campaignJob) testrig.JSONFields {
	words := []string{"sh", filepath.Join(c.recordDir, "job.sh"), j.tag, strconv.Itoa(j.outputBytes),
		strconv.Itoa(j.outputOffsetBytes), strconv.FormatFloat(j.runSeconds, 'f', -1, 64),
		strconv.Itoa(j.failingAttemptCount),
		strconv.Itoa(j.failExitCode), j.processTreeShape}
	p := testrig.JSONFields{"argv": words, "env": map[string]string{"RIG": c.recordDir}, "cwd": c.recordDir,
		"on_lost":      j.onLost,
		"output_limit": 8 << 20,
		"labels":       map[string]string{"tag": j.tag, "group": j.group}, "backoff_strategy": "linear", "backoff_base": 0.2}
	if j.stdin != "" {
		p["stdin"] = j.stdin
	}
	for k, v := range j.extraRequestFields {
		p[k] = v
	}
	return p
}

// expectedOutput returns what an attempt of the job prints if it is not interrupted.
func (c *campaign) expectedOutput(j *campaignJob) string {
	return j.stdin + c.outputSourceText[j.outputOffsetBytes:j.outputOffsetBytes+j.outputBytes]
}

// String returns the note in a readable form, without the tag of its job.
func (d ledgerNote) String() string {
	if d.kind == 'E' {
		return fmt.Sprintf("%.2f attempt %d as %d ended with %d", d.uptimeSeconds, d.attemptNumber, d.pid, d.exitCode)
	}
	return fmt.Sprintf("%.2f attempt %d as %d (%s) %c", d.uptimeSeconds, d.attemptNumber, d.pid, d.processCookie, d.kind)
}

// ledgerNote is one line that a job has written to the ledger, the file of all starts and ends of jobs.
type ledgerNote struct {
	kind               byte // S for a start, E for an end, X for an overlap; see campaignJobScript
	jobTag             string
	attemptNumber, pid int
	uptimeSeconds      float64 // seconds since boot
	exitCode           int     // only in notes of kind E
	processCookie      string  // value of QUEUECTL_COOKIE, which marks the attempt's processes
}

// readLedgerNotes reads the notes in the ledger that start at or after a byte offset.
func (c *campaign) readLedgerNotes(startOffset int64) (notes []ledgerNote) {
	raw, err := os.ReadFile(filepath.Join(c.recordDir, "ledger"))
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(raw[startOffset:])) {
		var d ledgerNote
		var kind string
		if _, err := fmt.Sscanf(line, "%s %s %d %d %f %d %s\n", &kind, &d.jobTag, &d.attemptNumber, &d.pid, &d.uptimeSeconds,
			&d.exitCode,
			&d.processCookie); err != nil {
			c.Fatalf("ledger line %q: %v", line, err)
		}
		d.kind = kind[0]
		notes = append(notes, d)
	}
	return notes
}

// uptimeSeconds returns the time since boot in seconds. The jobs use the same clock in their notes.
func uptimeSeconds() (seconds float64) {
	raw, _ := os.ReadFile("/proc/uptime")
	fmt.Sscan(string(raw), &seconds)
	return seconds
}
