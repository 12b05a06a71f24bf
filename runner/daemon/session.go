package daemon

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// closingReadTimeout is how long an ending runner continues to read from its connections after it has sent its
// last frames. The service can acknowledge results in this time.
const closingReadTimeout = 100 * time.Millisecond

// acceptRetryDelay is the pause before the runner tries again after it could not accept a connection.
const acceptRetryDelay = 100 * time.Millisecond

// disconnectJournalSyncDelay is the time from the end of the service's connection until the runner syncs its journal to
// the disk. Without a service, the results are only in the journal, so the journal must survive a power failure.
const disconnectJournalSyncDelay = time.Second

// maxConcurrentOutputReads limits how many ReadOutput requests of one connection are in progress at the same time.
const maxConcurrentOutputReads = 1024

// serviceConn is the connection to one service.
type serviceConn struct {
	*wire.Outbox
	netConn           net.Conn
	closed            chan struct{}  // closed when the connection ends
	goroutines        sync.WaitGroup // goroutines that serve the connection
	activeOutputReads atomic.Int64   // number of ReadOutput requests in progress

	epoch          int64          // number of the service's start; 0 before its Hello; guarded by the server's mu
	gatheredFrames gatheredFrames // guarded by the server's mu
}

func newServiceConn(c net.Conn) *serviceConn {
	return &serviceConn{Outbox: wire.NewOutbox(c), netConn: c, closed: make(chan struct{})}
}

func (c *serviceConn) close() {
	if c.Outbox.Close() {
		close(c.closed)
	}
}

// acceptConns accepts and serves connections until the runner ends.
func (s *server) acceptConns() {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := s.socket.accept()
		if errors.Is(err, net.ErrClosed) {
			return // the runner is ending
		}
		if err != nil { // descriptors or memory are short; retry, because the next service must be able to connect
			time.Sleep(acceptRetryDelay)
			continue
		}
		uid, err := rundir.CheckPeerAccount(c, s.ServiceUID)
		if err != nil {
			s.Log.Warn("the runner rejected a connection", "uid", uid, "error", err)
			c.Close()
			continue
		}
		conns.Go(func() { s.serveConn(newServiceConn(c)) })
	}
}

// serveConn executes the frames of one connection until the connection ends or a newer service connects.
func (s *server) serveConn(c *serviceConn) {
	c.goroutines.Go(c.Run)
	// When the runner ends, send the remaining frames. Stop reading after closingReadTimeout.
	c.goroutines.Go(func() {
		select {
		case <-s.lifetime.ended:
			c.FlushNonBlocking()
			c.netConn.SetReadDeadline(time.Now().Add(closingReadTimeout))
		case <-c.closed:
		}
	})
	reader := wire.NewFrameReader(c.netConn)
	f, err := wire.ReadFrame(reader)
	for ; err == nil; f, err = wire.ReadFrame(reader) {
		if _, ok := f.(*wire.StartAttempt); ok {
			failpoint.Hit("runner-start")
		}
		if !s.handleFrame(c, f) {
			break
		}
	}
	if err != nil && err != io.EOF {
		s.Log.Debug("service connection ended", "error", err)
	}
	s.mu.Lock()
	if s.serviceLink.disconnectLocked(c) {
		time.AfterFunc(disconnectJournalSyncDelay, func() {
			if s.isServiceDisconnected() {
				s.diskQueue.addOperation(s.syncJournal)
			}
		})
	}
	s.mu.Unlock()
	c.close()
	c.goroutines.Wait()
}

// handleFrame executes one frame of a service. It returns false if the connection must end, for example because a later
// start of the service (with a higher epoch) has connected.
//
// handleFrame holds mu while it checks the epoch and executes the frame. So once a new service has read the runner's
// state, frames of earlier services cannot change that state.
func (s *server) handleFrame(c *serviceConn, f wire.Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello, ok := f.(*wire.Hello); ok {
		return s.handleHelloLocked(c, hello)
	}
	if c.epoch == 0 || c.epoch != s.serviceLink.newestEpoch && !failpoint.IsEnabled("nofence") {
		return false
	}
	switch f := f.(type) {
	case *wire.RunnerSettings:
		s.applySetupLocked(f)
	case *wire.StartAttempt:
		s.addWaitingAttemptLocked(f)
	case *wire.ReadOutput:
		c.goroutines.Go(func() { s.answerReadOutput(c, f) })
	case *wire.EndProcessTrees:
		c.goroutines.Go(func() { s.handleRecover(c, f) })
	case *wire.TypeInput:
		t, ok := s.typeInputLocked(f)
		c.SendFrames(&wire.TypeInputReply{RequestID: f.RequestID, WrittenBytes: int64(t.WrittenBytes),
			TerminalModeControls: t.TerminalModeControls, NoTerminal: !ok})
	case *wire.ResizeTerminal:
		if a := s.attempts[f.Lease]; a != nil && a.isExecuting() {
			a.worker.Resize(a.pid, int(f.Rows), int(f.Cols))
		}
	case *wire.RemoveDeadRunnerDir:
		s.diskQueue.addOperation(func() { s.removeDeadRunner(f.RunnerName) })
	case *wire.DropStart:
		s.dropAttemptLocked(f)
	case *wire.EndAttempt:
		if a := s.attempts[f.Lease]; a != nil && a.isExecuting() { // DropStart cancels a waiting attempt
			a.reportsImmediately = true
			a.killLocked(int(f.EndCause), f.GracePeriod)
		}
	case *wire.ExtendLeases:
		s.extendLeasesLocked(f)
	case *wire.SignalAttempt:
		s.queueSignalLocked(f)
	case *wire.PauseAttempt:
		s.handlePauseLocked(c, f)
	case *wire.ReportAttemptImmediately:
		s.reportImmediatelyLocked(f)
	case *wire.AckResults:
		s.forgetAcknowledgedResultsLocked(f)
	case *wire.PurgeOutputs:
		s.diskQueue.addOperation(func() {
			runner.RemoveOutputs(s.RunnersDir, f.OutputRefs)
			c.SendFrames(&wire.PurgeOutputsReply{RequestID: f.RequestID})
		})
	case *wire.Shutdown:
		s.lifetime.shutdownRequested = true
		s.startClosingLocked()
	default:
		return false
	}
	return true
}

// maxStopTimeout is the upper limit of Setup.StopTimeout: how long running attempts may continue when the operating
// system ends the runner.
const maxStopTimeout = 24 * time.Hour

// applySetupLocked applies the settings in a Setup frame: the number of workers, gatherDelay and
// disconnectedStopTimeout.
func (s *server) applySetupLocked(f *wire.RunnerSettings) {
	target := int(min(max(f.WorkerCount, 0), rundir.MaxTableSlots))
	reserved, err := s.runningTable.ReserveSlots(min(target+spareTableSlotCount, rundir.MaxTableSlots))
	if err != nil && reserved < target {
		target = reserved
		s.Log.Error("the runner runs fewer jobs at the same time than configured, because it cannot reserve disk "+
			"space for more",
			"max_running_jobs", target, "error", err)
	}
	s.tableSlots.reservedSlotCount = reserved
	s.serviceLink.gatherDelay, s.serviceLink.disconnectedStopTimeout = f.SettleDelay,
		min(max(f.StopTimeout, 0), maxStopTimeout)
	s.setWorkerCountLocked(target)
	s.limitRunnerMemory(target)
}

// answerReadOutput answers a ReadOutput request. If f.Wait is set, it first waits until output after the cursor exists,
// or until the output is complete.
func (s *server) answerReadOutput(c *serviceConn, f *wire.ReadOutput) {
	tooMany := c.activeOutputReads.Add(1) > maxConcurrentOutputReads
	defer c.activeOutputReads.Add(-1)
	answer := &wire.ReadOutputReply{RequestID: f.RequestID, StreamCursors: f.StreamCursors}
	s.mu.Lock()
	a := s.attempts[f.Lease]
	s.mu.Unlock()
	if a == nil || tooMany {
		answer.AttemptUnknown = true
		c.SendFrames(answer)
		return
	}
	for {
		changed := a.outputLog.ChangeSignal()
		chunks, next, done, err := a.outputLog.Read(output.StreamCursor(f.StreamCursors), output.MaxMemoryBytes)
		if len(chunks) > 0 || done || err != nil || !f.WaitForOutput {
			answer.OutputChunks, _ = output.AppendEncodedChunks(nil, 0, chunks)
			answer.StreamCursors, answer.OutputComplete, answer.AttemptUnknown = next, done, err != nil
			c.SendFrames(answer)
			return
		}
		select {
		case <-changed:
		case <-c.closed:
			return
		}
	}
}
