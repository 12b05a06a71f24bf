package worker_test

import (
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// These files in a runner's directory are defined by package rundir.
const (
	lockFileName   = "lock"
	bootIDFileName = "boot-id"
)

// testVersion is the version of the service and of the fake runners.
const testVersion = "of the tests"

// eventTimeout is how long a test waits for an expected event before it fails. Tests run in real
// time, because they use real sockets.
const eventTimeout = 20 * time.Second

// waitUntil waits until a condition holds.
func waitUntil(t *testing.T, event string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(eventTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out while waiting until %s", event)
		}
	}
}

// receiveEvent receives a value from a channel. It returns the zero value if the channel is closed.
// After eventTimeout it fails the test.
func receiveEvent[T any](t *testing.T, event string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(eventTimeout):
		t.Fatalf("timed out while waiting for %s", event)
	}
	return v
}

// fakeRunner is the runner's end of a connection. It runs no commands. It records the frames (messages) that it
// receives, and sends the frames that a test requests.
type fakeRunner struct {
	t               *testing.T
	dir             string
	lockFile        *os.File
	listener        net.Listener
	acceptLoopGroup sync.WaitGroup

	mu               sync.Mutex
	helloReply       wire.HelloReply             // the answer to a Hello frame, with which a service connects
	framesAfterHello []wire.Frame                // frames that are sent after this answer
	onRecover        func(*wire.EndProcessTrees) // called with each Recover frame; may be nil
	onPause          func(*wire.PauseAttempt)    // called with each PauseAttempt frame; may be nil
	// number of running processes that the answer to PauseAttempt reports
	unchangedProcessCount int64
	refusesPauses         bool // PauseAttempt is answered as for an attempt that is ending
	ignoresStarts         bool // Start is not answered with StartReport
	ignoresHello          bool // Hello is not answered
	refusesHello          bool // Hello is answered with HelloRefusal
	// ReadOutput, TypeInput, PauseAttempt and PurgeOutputs are not answered
	isUnresponsive    bool
	conn              net.Conn            // connection of the newest service
	acceptedConns     []net.Conn          // all connections, also those on which no Hello arrived
	hasDied           bool                // simulateExit was called
	helloEpochs       []int64             // epochs of all Hello frames
	receivedFrames    []wire.Frame        // all frames except Hello, in the order of their arrival
	frameArrivalTimes []time.Time         // arrival times of receivedFrames
	openLeases        map[wire.Lease]bool // leases of attempts that run: not ended and not dropped
	maxOpenLeaseCount int                 // highest number of leases that were open at the same time
	syncResultCount   int64               // number of results that calls of waitUntilFramesHandled have sent
}

// uniqueRunnerName returns the name of a runner below rootDir. The name is unique among all tests, because named pipes
// on Windows share one namespace.
func uniqueRunnerName(rootDir, name string) string {
	return fmt.Sprintf("%08x.%s", crc32.ChecksumIEEE([]byte(rootDir)), name)
}

// newFakeRunner creates the directory of a living runner below rootDir.
func newFakeRunner(t *testing.T, rootDir, name string) *fakeRunner {
	t.Helper()
	f := &fakeRunner{
		t: t, dir: filepath.Join(rootDir, uniqueRunnerName(rootDir, name)), openLeases: map[wire.Lease]bool{},
		helloReply: wire.HelloReply{ProtocolVersion: wire.ProtocolVersion, RunnerVersion: testVersion, RunnerPID: 1},
	}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, bootIDFileName), []byte(rundir.AppendChecksum(boot)), 0o600); err != nil {
		t.Fatal(err)
	}
	if f.lockFile, err = createLockFile(filepath.Join(f.dir, lockFileName)); err != nil {
		t.Fatal(err)
	}
	if f.listener, err = listenAsRunner(f.dir); err != nil {
		t.Fatal(err)
	}
	f.acceptLoopGroup.Go(f.acceptConnections)
	t.Cleanup(func() {
		f.simulateExit()
		f.acceptLoopGroup.Wait()
	})
	return f
}

// simulateExit imitates the end of the runner's process: it frees the lock before it closes the connection.
func (f *fakeRunner) simulateExit() {
	f.lockFile.Close()
	f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hasDied = true
	for _, conn := range f.acceptedConns {
		conn.Close()
	}
}

// reconnect closes the connection and waits until the service has connected again. The runner reports the
// given attempts to the service.
func (f *fakeRunner) reconnect(attempts ...wire.Attempt) {
	f.t.Helper()
	f.mu.Lock()
	f.helloReply.UnendedAttempts = attempts
	before := len(f.helloEpochs)
	f.mu.Unlock()
	f.disconnect()
	waitUntil(f.t, "the service has connected again", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.helloEpochs) > before
	})
}

// disconnect closes the connection. The runner stays alive and keeps its lock.
func (f *fakeRunner) disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
}

// acceptConnections accepts connections until the listener is closed.
func (f *fakeRunner) acceptConnections() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // the test or the runner has ended
		}
		f.mu.Lock()
		f.acceptedConns = append(f.acceptedConns, conn)
		if f.hasDied {
			conn.Close()
		}
		f.mu.Unlock()
		f.acceptLoopGroup.Go(func() { f.serveConnection(conn) })
	}
}

// serveConnection handles the frames (messages) that arrive on a connection.
func (f *fakeRunner) serveConnection(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 1<<16)
	var unparsed []byte
	for {
		n, err := conn.Read(buf)
		unparsed = append(unparsed, buf[:n]...)
		for {
			frame, size, parseErr := wire.ParseFrame(unparsed)
			if parseErr != nil {
				break // the frame is not complete yet
			}
			unparsed = unparsed[size:]
			f.handleFrame(conn, frame)
		}
		if err != nil {
			return
		}
	}
}

// handleFrame records a frame and sends the answer that a runner would send, unless the fields of f specify another
// behaviour.
func (f *fakeRunner) handleFrame(conn net.Conn, frame wire.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if hello, ok := frame.(*wire.Hello); ok {
		if f.ignoresHello {
			return
		}
		f.conn = conn
		f.helloEpochs = append(f.helloEpochs, hello.Epoch)
		if f.refusesHello {
			f.writeFramesLocked(&wire.HelloRefusal{NewestEpoch: hello.Epoch + 1})
			return
		}
		f.writeFramesLocked(append([]wire.Frame{&f.helloReply}, f.framesAfterHello...)...)
		return
	}
	f.receivedFrames, f.frameArrivalTimes = append(f.receivedFrames, frame), append(f.frameArrivalTimes, time.Now())
	switch frame := frame.(type) {
	case *wire.StartAttempt:
		f.openLeases[frame.Lease] = true
		f.maxOpenLeaseCount = max(f.maxOpenLeaseCount, len(f.openLeases))
		if !f.ignoresStarts {
			f.writeFramesLocked(&wire.StartReport{Attempt: runningAttempt(frame.Lease)})
		}
	case *wire.ReadOutput:
		if !f.isUnresponsive {
			f.writeFramesLocked(&wire.ReadOutputReply{RequestID: frame.RequestID, AttemptUnknown: true})
		}
	case *wire.TypeInput: // the fake terminal accepts two bytes at a time
		if !f.isUnresponsive {
			f.writeFramesLocked(&wire.TypeInputReply{RequestID: frame.RequestID, WrittenBytes: int64(min(2, len(frame.Data)))})
		}
	case *wire.PauseAttempt:
		if f.onPause != nil {
			f.onPause(frame)
		}
		if !f.isUnresponsive {
			f.writeFramesLocked(&wire.PauseReply{RequestID: frame.RequestID, UnchangedProcessCount: f.unchangedProcessCount,
				AttemptNotRunning: f.refusesPauses})
		}
	case *wire.PurgeOutputs:
		if !f.isUnresponsive {
			f.writeFramesLocked(&wire.PurgeOutputsReply{RequestID: frame.RequestID})
		}
	case *wire.EndProcessTrees:
		if f.onRecover != nil {
			f.acceptLoopGroup.Go(func() { f.onRecover(frame) })
		}
	case *wire.Shutdown:
		f.lockFile.Close() // the runner ends, since no attempt runs
		f.listener.Close()
		conn.Close()
	}
}

// sendFrames sends frames in one write, so that they arrive together.
func (f *fakeRunner) sendFrames(frames ...wire.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writeFramesLocked(frames...)
}

// writeFramesLocked sends frames. The caller holds mu.
func (f *fakeRunner) writeFramesLocked(frames ...wire.Frame) {
	var encodedFrames []byte
	for _, frame := range frames {
		encodedFrames = wire.AppendFrame(encodedFrames, frame)
		switch frame := frame.(type) {
		case *wire.Result:
			delete(f.openLeases, frame.Lease)
		case *wire.DropStartReply:
			if frame.StartDropped {
				delete(f.openLeases, frame.Lease)
			}
		}
	}
	f.conn.Write(encodedFrames) // ignore errors: if the service is gone, the test notices the missing answer
}

// framesOfType returns the frames of one type that a runner has received, in order.
func framesOfType[F wire.Frame](f *fakeRunner) (matchingFrames []F) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, frame := range f.receivedFrames {
		if frame, ok := frame.(F); ok {
			matchingFrames = append(matchingFrames, frame)
		}
	}
	return matchingFrames
}

// awaitFrame waits until a runner has received frameCount frames of one type, and returns the last of these and its
// arrival time.
func awaitFrame[F wire.Frame](t *testing.T, f *fakeRunner, frameCount int) (frame F, arrivedAt time.Time) {
	t.Helper()
	event := fmt.Sprintf("%d frames of type %T have arrived", frameCount, frame)
	waitUntil(t, event, func() bool { return len(framesOfType[F](f)) >= frameCount })
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, candidate := range f.receivedFrames {
		if found, ok := candidate.(F); ok {
			if frameCount--; frameCount == 0 {
				return found, f.frameArrivalTimes[i]
			}
		}
	}
	panic("it was there")
}

// startedJobSeqs returns the job numbers of all Start frames, in order.
func (f *fakeRunner) startedJobSeqs() (seqs []int64) {
	for _, s := range framesOfType[*wire.StartAttempt](f) {
		seqs = append(seqs, s.Seq)
	}
	return seqs
}

// ackedLeases returns the leases in all AckResults frames, in order. It leaves out the leases of the results that
// waitUntilFramesHandled sends.
func (f *fakeRunner) ackedLeases() (leases []wire.Lease) {
	for _, a := range framesOfType[*wire.AckResults](f) {
		for _, l := range a.Leases {
			if l.Seq < firstSyncJobSeq {
				leases = append(leases, l)
			}
		}
	}
	return leases
}

// maxOpenLeases returns the highest number of leases that were open at the same time.
func (f *fakeRunner) maxOpenLeases() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.maxOpenLeaseCount
}

// ignoreStarts stops answering Start frames, like a runner whose workers are all busy.
func (f *fakeRunner) ignoreStarts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ignoresStarts = true
}

// setUnresponsive sets whether the runner ignores ReadOutput, TypeInput, PauseAttempt and PurgeOutputs frames or
// answers them.
func (f *fakeRunner) setUnresponsive(unresponsive bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isUnresponsive = unresponsive
}

// firstSyncJobSeq is the first of the job numbers in the results that waitUntilFramesHandled sends. No job has such
// a number.
const firstSyncJobSeq = 1 << 40

// waitUntilFramesHandled waits until the pool has handled all earlier frames and has made the claims that follow from
// them. It sends two results, one after the other, for leases that no pool has. The pool acknowledges the first result
// after it has handled all earlier frames, and the second result after it has made its claims.
func (f *fakeRunner) waitUntilFramesHandled() {
	f.t.Helper()
	for range 2 {
		f.mu.Lock()
		f.syncResultCount++
		l := wire.Lease{Seq: firstSyncJobSeq + f.syncResultCount, Fence: 1}
		f.writeFramesLocked(&wire.Result{Attempt: wire.Attempt{Lease: l}})
		f.mu.Unlock()
		waitUntil(f.t, "the pool had settled", func() bool {
			return slices.ContainsFunc(framesOfType[*wire.AckResults](f), func(a *wire.AckResults) bool {
				return slices.Contains(a.Leases, l)
			})
		})
	}
}

// runningAttempt returns the description of a lease's attempt that is running.
func runningAttempt(l wire.Lease) wire.Attempt {
	return wire.Attempt{Lease: l, TableSlot: 1, PID: fakeJobPID(l.Seq), StartedAtMillis: 1_800_000_000_000}
}

// fakeJobPID returns the pid that a fake runner reports for the process of a job.
func fakeJobPID(jobSeq int64) int64 { return 1000 + jobSeq }

// successResult returns the result of an attempt that succeeded after runTime.
func successResult(l wire.Lease, runTime time.Duration) *wire.Result {
	a := runningAttempt(l)
	return &wire.Result{Attempt: a, EndedAtMillis: a.StartedAtMillis + runTime.Milliseconds()}
}

// longRunTime is the run time of a job that is too long for the pool to prefetch further jobs.
const longRunTime = time.Minute
