package access

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The attacking process is this test binary, started with the rights of the attacking user. These environment
// variables contain the path of the socket, a directory for files and the duration of the attack.
const (
	abuserSocketEnvVar   = "QUEUECTL_TEST_ABUSER" // path of the socket
	abuserDirEnvVar      = "QUEUECTL_TEST_ABUSER_FOLDER"
	attackDurationEnvVar = "QUEUECTL_TEST_ABUSER_TIME"
	attackNamesEnvVar    = "QUEUECTL_ABUSE_ONLY" // comma-separated names of attacks; empty means all
)

// These limits keep an attacking process from slowing down the machine, so that the test measures the service.
// The process has the lowest priority, runs on one processor, and uses at most the share abuserCPUShare of that
// processor. The jobs of the attackers also have the lowest priority.
const (
	abuserNiceness = 19
	abuserCPUShare = 0.2
)

// abuser is the state of an attacking process.
type abuser struct {
	socketPath, filesDir string
	startedAt            time.Time

	mu              sync.Mutex
	talliesByAttack map[string]*requestTally // guarded by mu

	// describes an access that the service granted but must refuse; nil if none
	wronglyGrantedAccess atomic.Pointer[string]
}

// requestTally counts the requests and replies of one attack.
type requestTally struct {
	requests, replies, refusals, sentBytes atomic.Int64

	firstRefusal atomic.Pointer[refusedError] // the first refusal, nil if none
}

// attackMethod is one way to attack the service. The function run returns when its context ends.
type attackMethod struct {
	name string
	run  func(*abuser, context.Context, *requestTally)
}

var attackMethods = []attackMethod{
	{"leased-input", (*abuser).enqueueLeasedInput},
	{"leased-program", (*abuser).enqueueLeasedProgram},
	{"stopped-starts", (*abuser).stopJobsWhileStarting},
	{"lists", (*abuser).requestJobLists},
	{"connects", (*abuser).openAndCloseConnections},
	{"abandoned", (*abuser).abandonRequests},
	{"selectors", (*abuser).requestEmptySelections},
	{"events", (*abuser).requestEvents},
	{"large-jobs", (*abuser).storeLargeJobs},
	{"long-globs", (*abuser).sendLongGlobs},
	{"many-ids", (*abuser).sendManyJobIDs},
	{"padded", (*abuser).sendPaddedRequests},
	{"unfinished", (*abuser).sendUnfinishedRequests},
	{"waits", (*abuser).sendEndlessWaits},
	{"outputs", (*abuser).requestJobOutputs},
	{"single-bytes", (*abuser).enqueueSingleByteWriters},
	{"members", (*abuser).sendLargeJSONObjects},
	{"faults", (*abuser).sendInvalidBatches},
	{"numbers", (*abuser).useFutureSeqsAsIDs},
	{"batches", (*abuser).leaveBatchesOpen},
	{"trees", (*abuser).leaveBackgroundProcesses},
	{"flood", (*abuser).floodWithJobs},
	{"storms", (*abuser).changeJobStates},
	{"priority", (*abuser).enqueueHighestPriorityJobs},
	{"fill-quota", (*abuser).fillByteQuota},
}

// runAttacks executes the attacks one at a time for the first half of the duration, and all at the same time
// for the second half. It returns the exit code of the process.
func runAttacks() (exitCode int) {
	runtime.GOMAXPROCS(1)
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, abuserNiceness); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	all, err := time.ParseDuration(os.Getenv(attackDurationEnvVar))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a := &abuser{socketPath: os.Getenv(abuserSocketEnvVar), filesDir: os.Getenv(abuserDirEnvVar), startedAt: time.Now(),
		talliesByAttack: map[string]*requestTally{}}
	list := attackMethods
	if only := os.Getenv(attackNamesEnvVar); only != "" {
		list = nil
		for _, next := range attackMethods {
			if strings.Contains(","+only+",", ","+next.name+",") {
				list = append(list, next)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), all)
	defer cancel()
	first := os.Getuid() * 7 % len(list) // each user starts with a different attack
	for i := range list {
		next := list[(first+i)%len(list)]
		attackCtx, cancelAttack := context.WithTimeout(ctx, all/time.Duration(2*len(list)))
		next.run(a, attackCtx, a.tallyOf(next.name))
		cancelAttack()
	}
	var together sync.WaitGroup
	for _, next := range list {
		together.Go(func() { next.run(a, ctx, a.tallyOf(next.name)) })
	}
	together.Wait()
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	fmt.Printf("%-15s %9s %9s %9s %9s\n", "attack", "sent", "answered", "refused", "MB")
	for _, next := range list {
		n := a.tallyOf(next.name)
		refusal := ""
		if e := n.firstRefusal.Load(); e != nil {
			refusal = e.Error()
		}
		fmt.Printf("%-15s %9d %9d %9d %9d  %.120s\n", next.name, n.requests.Load(), n.replies.Load(), n.refusals.Load(),
			n.sentBytes.Load()>>20, refusal)
	}
	if gained := a.wronglyGrantedAccess.Load(); gained != nil {
		fmt.Printf("gained: %s\n", *gained)
		exitCode = 1
	}
	fmt.Printf("%.0f%% of a processor\n", 100*cpuTime(&usage).Seconds()/time.Since(a.startedAt).Seconds())
	return exitCode
}

func cpuTime(r *syscall.Rusage) time.Duration {
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func (a *abuser) tallyOf(attackName string) *requestTally {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.talliesByAttack[attackName] == nil {
		a.talliesByAttack[attackName] = &requestTally{}
	}
	return a.talliesByAttack[attackName]
}

// waitForCPUShare waits until the process may use the processor again; see abuserCPUShare. It returns false
// if the attack has ended.
func (a *abuser) waitForCPUShare(ctx context.Context) bool {
	for ctx.Err() == nil {
		var usage syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
		excess := cpuTime(&usage) - time.Duration(abuserCPUShare*float64(time.Since(a.startedAt)))
		if excess <= 0 {
			return true
		}
		a.waitBriefly(ctx, excess)
	}
	return false
}

// pause waits for d, at most 100 ms, or until the attack ends.
func (a *abuser) waitBriefly(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(min(d, 100*time.Millisecond)):
	case <-ctx.Done():
	}
}

// openAndCloseConnections opens connections and closes them without sending a request.
func (a *abuser) openAndCloseConnections(ctx context.Context, tally *requestTally) {
	a.keepConnections(ctx, tally, 64, func(*rawClient) { tally.requests.Add(1) })
}

// abandonRequests repeatedly sends requests and closes the connection without reading the replies.
func (a *abuser) abandonRequests(ctx context.Context, tally *requestTally) {
	lines := strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"list","params":{}}`+"\n", 64)
	a.keepConnections(ctx, tally, 100, func(c *rawClient) {
		if _, err := io.WriteString(c, lines); err == nil {
			tally.requests.Add(64)
			tally.sentBytes.Add(int64(len(lines)))
		}
	})
}

const (
	noRetrySpecFields = `"max_retries":0,"cwd":"/"`
	delayedSpecFields = `"delay":"24h","cwd":"/"`
)

// lowPrioritySpec returns the spec of a job that runs a shell command with the lowest priority (nice 19).
func lowPrioritySpec(command, extraFields string) string {
	text, err := json.Marshal(command)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"argv":["nice","-n","19","sh","-c",%s],%s%s}`, text, noRetrySpecFields, extraFields)
}

// createLeasedFile creates a file and takes a write lease on it (fcntl F_SETLEASE). Another process that opens the
// file waits until the returned function is called, or gets EWOULDBLOCK if its open does not block.
func (a *abuser) createLeasedFile(name string, content []byte) (path string, release func(), err error) {
	path = filepath.Join(a.filesDir, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	if err := os.WriteFile(path, content, 0o700); err != nil {
		return "", nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		f.Close()
		return "", nil, fmt.Errorf("lease %s: %w", path, err)
	}
	return path, func() { f.Close(); os.Remove(path) }, nil
}

func (a *abuser) enqueueLeasedInput(ctx context.Context, tally *requestTally) {
	path, end, err := a.createLeasedFile("input", []byte("x"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	a.repeatRequest(ctx, tally, 4, "enqueue", fmt.Sprintf(`{"argv":["cat"],"stdin_file":%q,%s}`, path, noRetrySpecFields))
}

// enqueueLeasedProgram enqueues jobs that cannot start, because their program is a file with a write lease. It also
// enqueues jobs that leave processes behind. A runner must watch such processes until they end.
func (a *abuser) enqueueLeasedProgram(ctx context.Context, tally *requestTally) {
	path, end, err := a.createLeasedFile("program", []byte("#!/bin/true\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			a.sendRequest(c, tally, "enqueue", lowPrioritySpec("setsid sleep 3 & exit 0", ""))
			if _, ok := a.sendRequest(c, tally, "enqueue", fmt.Sprintf(`{"argv":[%q],%s}`, path, noRetrySpecFields)); !ok {
				return
			}
			a.waitBriefly(ctx, 100*time.Millisecond)
		}
	})
}

// stopJobsWhileStarting enqueues jobs that stop other jobs of the same user with SIGSTOP before those jobs execute
// their programs.
func (a *abuser) stopJobsWhileStarting(ctx context.Context, tally *requestTally) {
	const stopCommand = `perl -e '$end = time + 3; while (time < $end) { for (glob "/proc/[0-9]*") { ` +
		`next unless -o $_; open F, "$_/comm" or next; my $c = <F>; close F; ` +
		`next unless $c =~ /^(queuectl|exe)/; kill STOP, substr $_, 6 } select undef, undef, undef, 0.002 }'`
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			if _, ok := a.sendRequest(c, tally, "enqueue", lowPrioritySpec(stopCommand, "")); !ok {
				return
			}
			for range 10 {
				a.sendRequest(c, tally, "enqueue", fmt.Sprintf(`{"argv":["true"],%s}`, noRetrySpecFields))
			}
			a.waitBriefly(ctx, 100*time.Millisecond)
		}
	})
}

func (a *abuser) requestJobLists(ctx context.Context, tally *requestTally) {
	a.pipelineRequests(ctx, tally, 100, 64, "list", `{}`)
}

func (a *abuser) requestEmptySelections(ctx context.Context, tally *requestTally) {
	a.pipelineRequests(ctx, tally, 20, 64, "hold", `{"label":{"no":"such"},"dry_run":true}`)
}

func (a *abuser) requestEvents(ctx context.Context, tally *requestTally) {
	var wg sync.WaitGroup
	wg.Go(func() { a.pipelineRequests(ctx, tally, 20, 16, "events", `{"since":0}`) })
	wg.Go(func() { a.repeatRequest(ctx, tally, 20, "events", `{"since":0,"follow":true}`) })
	wg.Wait()
}

// largeSpec returns the spec of a job of 740 KB.
func largeSpec(extraFields string) string {
	var env []string
	for i := range 12 {
		env = append(env, fmt.Sprintf(`"V%d":"%s"`, i, strings.Repeat("x", 40_000)))
	}
	return fmt.Sprintf(`{"argv":["true"],"env":{%s},"stdin":"%s",%s}`, strings.Join(env, ","),
		strings.Repeat("x", 260_000), extraFields)
}

// storeLargeJobs stores 300 large jobs, and then retries some of them repeatedly.
func (a *abuser) storeLargeJobs(ctx context.Context, tally *requestTally) {
	spec := largeSpec(delayedSpecFields)
	var storedCount atomic.Int64
	var mu sync.Mutex
	var ids []string
	a.keepConnections(ctx, tally, 4, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			if storedCount.Load() < 300 {
				result, ok := a.sendRequest(c, tally, "enqueue", spec)
				if !ok {
					return
				}
				storedCount.Add(1)
				var got struct{ ID string }
				json.Unmarshal(result, &got)
				mu.Lock()
				ids = append(ids, fmt.Sprintf("%q", got.ID))
				mu.Unlock()
				continue
			}
			mu.Lock()
			some := fmt.Sprintf(`{"ids":[%s]}`, strings.Join(ids[:min(100, len(ids))], ","))
			mu.Unlock()
			a.sendRequest(c, tally, "cancel", some)
			if _, ok := a.sendRequest(c, tally, "retry", some); !ok {
				return
			}
			a.sendRequest(c, tally, "hold", some)
		}
	})
}

func (a *abuser) sendLongGlobs(ctx context.Context, tally *requestTally) {
	a.repeatRequest(ctx, tally, 8, "cancel", fmt.Sprintf(`{"id_glob":"%s"}`, strings.Repeat("*a?", 350_000)))
}

func (a *abuser) sendManyJobIDs(ctx context.Context, tally *requestTally) {
	a.repeatRequest(ctx, tally, 8, "cancel", `{"ids":["`+strings.Repeat(`a","`, 1_500_000)+`a"]}`)
}

// sendPaddedRequests sends requests with nearly 8 MiB of white space on two connections, without waiting for replies.
func (a *abuser) sendPaddedRequests(ctx context.Context, tally *requestTally) {
	a.pipelineRequests(ctx, tally, 2, 128, "status", "{"+strings.Repeat(" ", 8<<20-200)+"}")
}

// sendUnfinishedRequests sends the first 8 MiB of a request line on each of many connections, but never the end of the
// line.
func (a *abuser) sendUnfinishedRequests(ctx context.Context, tally *requestTally) {
	part := []byte(`{"jsonrpc":"2.0","id":1,"method":"status","params":{` + strings.Repeat(" ", 79_000))
	a.keepConnections(ctx, tally, 200, func(c *rawClient) {
		for range 100 {
			if !a.waitForCPUShare(ctx) {
				return
			}
			k, err := c.Write(part)
			tally.sentBytes.Add(int64(k))
			if err != nil {
				return
			}
		}
		tally.requests.Add(1)
		<-ctx.Done()
	})
}

// sendEndlessWaits repeatedly sends requests that wait for the maximum number of jobs, which never end.
func (a *abuser) sendEndlessWaits(ctx context.Context, tally *requestTally) {
	var jobs []string
	for range 1000 {
		jobs = append(jobs, fmt.Sprintf(`{"argv":["true"],%s}`, delayedSpecFields))
	}
	batch := fmt.Sprintf(`{"commit":true,"jobs":[%s]}`, strings.Join(jobs, ","))
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		result, ok := a.sendRequest(c, tally, "enqueue.batch", batch)
		var got struct{ IDs json.RawMessage }
		json.Unmarshal(result, &got)
		if !ok {
			return
		}
		a.repeatRequest(ctx, tally, 60, "wait", fmt.Sprintf(`{"ids":%s,"timeout":"2s"}`, got.IDs))
	})
}

// requestJobOutputs repeatedly requests large outputs.
func (a *abuser) requestJobOutputs(ctx context.Context, tally *requestTally) {
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		result, ok := a.sendRequest(c, tally, "enqueue", lowPrioritySpec("yes | head -c 16000000; yes | head -c 16000000 >&2",
			`,"output_limit":16777216`))
		var got struct{ ID string }
		json.Unmarshal(result, &got)
		if !ok {
			return
		}
		a.sendRequest(c, tally, "wait", fmt.Sprintf(`{"id":%q,"timeout":"10s"}`, got.ID))
		var wg sync.WaitGroup
		wg.Go(func() { a.pipelineRequests(ctx, tally, 10, 16, "logs", fmt.Sprintf(`{"id":%q,"n":100000}`, got.ID)) })
		wg.Go(func() { a.pipelineRequests(ctx, tally, 10, 64, "show", fmt.Sprintf(`{"id":%q}`, got.ID)) })
		wg.Wait()
	})
}

// enqueueSingleByteWriters enqueues jobs that print single bytes alternately to stdout and stderr, while other
// connections follow the output.
func (a *abuser) enqueueSingleByteWriters(ctx context.Context, tally *requestTally) {
	const printCommand = `exec perl -e '$end = time + 20; while (time < $end) { ` +
		`for (1..200) { syswrite STDOUT, "a"; syswrite STDERR, "b" } select undef, undef, undef, 0.01 }'`
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		result, ok := a.sendRequest(c, tally, "enqueue", lowPrioritySpec(printCommand, ""))
		var got struct{ ID string }
		json.Unmarshal(result, &got)
		if !ok {
			return
		}
		roundCtx, cancelRound := context.WithTimeout(ctx, 20*time.Second)
		defer cancelRound()
		a.repeatRequest(roundCtx, tally, 4, "logs", fmt.Sprintf(`{"id":%q,"follow":true}`, got.ID))
	})
}

// jsonMembersText returns the text of 100,000 members of a JSON object.
var jsonMembersText = sync.OnceValue(func() string {
	var b strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&b, `"member-%d":%d,`, i, i)
	}
	return strings.TrimSuffix(b.String(), ",")
})

func (a *abuser) sendLargeJSONObjects(ctx context.Context, tally *requestTally) {
	var wg sync.WaitGroup
	wg.Go(func() { a.repeatRequest(ctx, tally, 2, "enqueue", `{"argv":["true"],"env":{`+jsonMembersText()+`}}`) })
	wg.Go(func() { a.repeatRequest(ctx, tally, 2, "list", `{`+jsonMembersText()+`}`) })
	wg.Wait()
}

func (a *abuser) sendInvalidBatches(ctx context.Context, tally *requestTally) {
	a.repeatRequest(ctx, tally, 2, "enqueue.batch", `{"commit":true,"jobs":[`+
		strings.TrimSuffix(strings.Repeat(`{"priority":"x","timeout":-1,"comand":"y","labels":{"":""}},`, 1000), ",")+`,{`+
		jsonMembersText()+`}]}`)
}

// useFutureSeqsAsIDs enqueues jobs whose ids are the sequence numbers that the next 100,000 jobs would get.
func (a *abuser) useFutureSeqsAsIDs(ctx context.Context, tally *requestTally) {
	a.keepConnections(ctx, tally, 1, func(c *rawClient) {
		for range 100 {
			result, ok := a.sendRequest(c, tally, "enqueue", fmt.Sprintf(`{"argv":["true"],%s}`, delayedSpecFields))
			var got struct{ Seq int64 }
			json.Unmarshal(result, &got)
			if !ok || !a.waitForCPUShare(ctx) {
				return
			}
			var jobs []string
			for i := range 1000 {
				jobs = append(jobs, fmt.Sprintf(`{"id":"%d","argv":["true"],%s}`, got.Seq+2000+int64(i), delayedSpecFields))
			}
			a.sendRequest(c, tally, "enqueue.batch", fmt.Sprintf(`{"commit":true,"jobs":[%s]}`, strings.Join(jobs, ",")))
		}
		<-ctx.Done()
	})
}

// leaveBatchesOpen sends jobs of batches and never commits the batches.
func (a *abuser) leaveBatchesOpen(ctx context.Context, tally *requestTally) {
	a.keepConnections(ctx, tally, 2, func(c *rawClient) {
		name := fmt.Sprint("left-", time.Now().UnixNano())
		var jobs []string
		for i := range 1000 {
			jobs = append(jobs, fmt.Sprintf(`{"id":"%s-%d","argv":["true"]}`, name, i))
		}
		a.sendRequest(c, tally, "enqueue.batch", fmt.Sprintf(`{"batch":%q,"jobs":[%s]}`, name, strings.Join(jobs, ",")))
		a.waitBriefly(ctx, 100*time.Millisecond)
	})
}

// leaveBackgroundProcesses enqueues jobs that leave processes in the background.
func (a *abuser) leaveBackgroundProcesses(ctx context.Context, tally *requestTally) {
	a.repeatRequest(ctx, tally, 2, "enqueue", lowPrioritySpec("sleep 30 & exit 0", `,"allow_background":true`))
}

// floodWithJobs enqueues "true" jobs over many connections.
func (a *abuser) floodWithJobs(ctx context.Context, tally *requestTally) {
	a.repeatRequest(ctx, tally, 60, "enqueue", fmt.Sprintf(`{"argv":["true"],%s}`, noRetrySpecFields))
}

// enqueueHighestPriorityJobs enqueues jobs with the highest priority that a user may set, so that they start before the
// jobs of other users. It also requests a higher priority than permitted, which the service must refuse.
func (a *abuser) enqueueHighestPriorityJobs(ctx context.Context, tally *requestTally) {
	const highestPriority, excessPriority = `"priority":15`, `"priority":1000000`
	a.keepConnections(ctx, tally, 4, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			result, ok := a.sendRequest(c, tally, "enqueue", lowPrioritySpec("sleep 0.1", ","+highestPriority))
			var got struct{ ID string }
			json.Unmarshal(result, &got)
			if !ok {
				return
			}
			for method, params := range map[string]string{
				"enqueue":       lowPrioritySpec("sleep 0.1", ","+excessPriority),
				"enqueue.batch": fmt.Sprintf(`{"commit":true,"jobs":[%s]}`, lowPrioritySpec("sleep 0.1", ","+excessPriority)),
				"edit":          fmt.Sprintf(`{"id":%q,"set":{%s}}`, got.ID, excessPriority),
			} {
				result, accepted := a.sendRequest(c, tally, method, params)
				var edited struct{ Done []string }
				json.Unmarshal(result, &edited)
				if accepted && (method != "edit" || len(edited.Done) > 0) {
					a.wronglyGrantedAccess.CompareAndSwap(nil, new(method+" took priority 1000000"))
				}
			}
		}
	})
}

// changeJobStates repeatedly changes the state of many jobs, selected by id or by selector, and changes it back.
func (a *abuser) changeJobStates(ctx context.Context, tally *requestTally) {
	a.keepConnections(ctx, tally, 8, func(c *rawClient) {
		var ids []string
		for range 100 {
			result, ok := a.sendRequest(c, tally, "enqueue",
				fmt.Sprintf(`{"argv":["true"],"labels":{"storm":"1"},%s}`, delayedSpecFields))
			var got struct{ ID string }
			json.Unmarshal(result, &got)
			if !ok || !a.waitForCPUShare(ctx) {
				return
			}
			ids = append(ids, fmt.Sprintf("%q", got.ID))
		}
		named := fmt.Sprintf(`{"ids":[%s]}`, strings.Join(ids, ","))
		for a.waitForCPUShare(ctx) {
			for _, verb := range []string{"hold", "release", "cancel", "retry"} {
				a.sendRequest(c, tally, verb, named)
			}
			a.sendRequest(c, tally, "hold", `{"label":{"storm":"1"}}`)
			if _, ok := a.sendRequest(c, tally, "release", `{"label":{"storm":"1"}}`); !ok {
				return
			}
		}
	})
}
