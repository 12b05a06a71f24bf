package daemon

import (
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// The runner gathers frames for gatherDelay and then sends them together. Then it gathers the next frames. A frame that
// must not wait is sent immediately, together with the frames that were gathered before it.
func TestGatheredFramesAreSentAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, runnerEnd := net.Pipe()
		c := newServiceConn(runnerEnd)
		go c.Run() // ends when c is closed
		defer c.close()
		const delay = 7 * time.Millisecond
		s := &server{serviceLink: serviceLink{conn: c, gatherDelay: delay}}
		send := func(seq int64, now bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sendFrameLocked(&wire.StartReport{Attempt: wire.Attempt{Lease: wire.Lease{Seq: seq}}}, now)
		}
		frame := make([]byte, len(wire.AppendFrame(nil, &wire.StartReport{})))
		checkSent := func(what string, after time.Duration, frames int) {
			t.Helper()
			begun := time.Now()
			service.SetReadDeadline(begun.Add(time.Second))
			for range frames {
				if _, err := io.ReadFull(service, frame); err != nil || time.Since(begun) != after {
					t.Errorf("%s: %v after %v, want a frame after %v", what, err, time.Since(begun), after)
				}
			}
			synctest.Wait() // the goroutine that writes frames is idle now
		}
		send(1, false)
		send(2, false)
		checkSent("two gathered frames", delay, 2)
		send(3, false)
		checkSent("a frame gathered later", delay, 1)
		send(4, false)
		send(5, true)
		checkSent("frames that must not wait", 0, 2)
	})
}

// While attempts are waiting, results are gathered for up to four times gatherDelay. But they are sent early enough:
// the service then has at least gatherDelay to send more attempts before the workers have no work.
func TestFrameGatheringExtendsWhileAttemptsWait(t *testing.T) {
	const delay = 5 * time.Millisecond
	// The key is the number of waiting attempts. The value is the shortest and the longest time until the frames are sent.
	for waiting, want := range map[int][2]time.Duration{
		0: {delay, delay}, 12: {delay, delay}, 18: {2 * delay, 3 * delay}, 24: {3 * delay, 4 * delay},
		60: {4 * delay, 4 * delay},
	} {
		synctest.Test(t, func(t *testing.T) {
			service, runnerEnd := net.Pipe()
			c := newServiceConn(runnerEnd)
			go c.Run() // ends when c is closed
			defer c.close()
			s := &server{serviceLink: serviceLink{conn: c, gatherDelay: delay}, waitingAttempts: make([]*attempt, waiting)}
			var jobs sync.WaitGroup
			defer jobs.Wait()
			read := make(chan struct{})
			defer close(read)
			jobs.Go(func() {
				for seq := int64(1); ; seq++ { // an attempt ends every millisecond
					s.mu.Lock()
					s.sendFrameLocked(&wire.StartReport{Attempt: wire.Attempt{Lease: wire.Lease{Seq: seq}}}, false)
					s.waitingAttempts = s.waitingAttempts[min(1, len(s.waitingAttempts)):]
					s.mu.Unlock()
					select {
					case <-time.After(time.Millisecond):
					case <-read:
						return
					}
				}
			})
			begun := time.Now()
			service.Read(make([]byte, 1))
			if took := time.Since(begun); took < want[0] || took > want[1] {
				t.Errorf("%d waited: sent after %v, want %v to %v", waiting, took, want[0], want[1])
			}
		})
	}
}

// A client may wait for the output of an attempt that has not started. If the service cancels the start of the attempt,
// the client gets a reply with AttemptUnknown set.
func TestDroppedAttemptReleasesOutputReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, runnerEnd := net.Pipe()
		c := newServiceConn(runnerEnd)
		go c.Run() // ends when c is closed
		defer c.close()
		l := wire.Lease{Seq: 1, Fence: 7}
		a := &attempt{startFrame: &wire.StartAttempt{Lease: l}, outputLog: output.NewLog(1<<20, nil)}
		s := &server{attempts: map[wire.Lease]*attempt{l: a}, waitingAttempts: []*attempt{a}}
		go s.answerReadOutput(c, &wire.ReadOutput{Lease: l, RequestID: 3, WaitForOutput: true})
		synctest.Wait() // the client waits for output now
		s.mu.Lock()
		s.dropAttemptLocked(&wire.DropStart{Lease: l})
		s.mu.Unlock()
		service.SetReadDeadline(time.Now().Add(time.Second))
		raw := make([]byte, 1000)
		n, err := service.Read(raw)
		if err != nil {
			t.Fatalf("the client got no answer: %v", err)
		}
		if f, _, err := wire.ParseFrame(raw[:n]); err != nil || f.(*wire.ReadOutputReply).RequestID != 3 ||
			!f.(*wire.ReadOutputReply).AttemptUnknown {
			t.Errorf("the answer is %+v, error %v; want a ReadOutputReply with AttemptGone", f, err)
		}
	})
}

// One goroutine sends all signals of an attempt, one after the other. A signal that is already queued is not
// queued again.
func TestSignalsAreSentOneByOne(t *testing.T) {
	l := wire.Lease{Seq: 1, Fence: 7}
	a := &attempt{startFrame: &wire.StartAttempt{Lease: l}, phase: attemptRunning, worker: new(process.Worker), pid: 1}
	s := &server{attempts: map[wire.Lease]*attempt{l: a}}
	s.mu.Lock()
	before := runtime.NumGoroutine()
	for range 1000 {
		s.queueSignalLocked(&wire.SignalAttempt{Lease: l, SignalNumber: 10})
		s.queueSignalLocked(&wire.SignalAttempt{Lease: l, SignalNumber: 12})
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines send signals", n)
	}
	if !slices.Equal(a.pendingSignals.signalNumbers, []int64{10, 12}) {
		t.Errorf("signals that wait: %d", a.pendingSignals.signalNumbers)
	}
	s.mu.Unlock()
	s.goroutines.Wait()
	if len(a.pendingSignals.signalNumbers) != 0 || a.pendingSignals.isSending {
		t.Errorf("signals that are left: %d", a.pendingSignals.signalNumbers)
	}
}
