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

// closingReadTime is how long an ending runner continues to read from its connections after it has sent its
// last frames. The service can acknowledge results in this time.
const closingReadTime = 100 * time.Millisecond

// acceptPause is the pause before the runner tries again after it could not accept a connection.
const acceptPause = 100 * time.Millisecond

// disconnectSyncDelay is the time from the end of the service's connection until the runner flushes its journal
// to the disk. Without a service, only the journal has the results, and it must survive a power failure.
const disconnectSyncDelay = time.Second

// maxConcurrentReads limits how many ReadOutput requests of one connection are in progress at the same time.
const maxConcurrentReads = 1024

// conn is the connection to one service.
type conn struct {
	*wire.Outbox
	netConn     net.Conn
	closed      chan struct{} // closed when the connection ends
	activeReads atomic.Int64  // number of ReadOutput requests in progress

	epoch    int64       // number of the service's start; 0 before its Hello; guarded by the server's mu
	gathered gatherState // guarded by the server's mu
}

func newConn(c net.Conn) *conn {
	return &conn{Outbox: wire.NewOutbox(c), netConn: c, closed: make(chan struct{})}
}

func (c *conn) close() {
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
		if err != nil { // no descriptors or memory; retry, because the next service must be able to connect
			time.Sleep(acceptPause)
			continue
		}
		uid, err := rundir.CheckPeer(c, s.ServiceUID)
		if err != nil {
			s.Log.Warn("the runner rejected a connection", "uid", uid, "error", err)
			c.Close()
			continue
		}
		conns.Go(func() { s.serveConn(newConn(c)) })
	}
}

// serveConn executes the frames of one connection until the connection ends or a newer service connects.
func (s *server) serveConn(c *conn) {
	var loops sync.WaitGroup
	loops.Go(c.Run)
	// When the runner ends, send the remaining frames. Stop reading after closingReadTime.
	loops.Go(func() {
		select {
		case <-s.life.done:
			c.FlushNow()
			c.netConn.SetReadDeadline(time.Now().Add(closingReadTime))
		case <-c.closed:
		}
	})
	reader := wire.NewReader(c.netConn)
	f, err := wire.ReadFrame(reader)
	for ; err == nil; f, err = wire.ReadFrame(reader) {
		switch f := f.(type) {
		case *wire.ReadOutput:
			loops.Go(func() { s.answerReadOutput(c, f) })
			continue
		case *wire.Recover:
			loops.Go(func() { s.handleRecover(c, f) })
			continue
		case *wire.Start:
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
	if s.link.disconnectLocked(c) {
		time.AfterFunc(disconnectSyncDelay, func() {
			if s.isDisconnected() {
				s.diskQueue.add(s.syncJournal)
			}
		})
	}
	s.mu.Unlock()
	c.close()
	loops.Wait()
}

// handleFrame executes one frame of a service. It returns false if the connection must end, for example because
// a later start of the service (with a higher epoch) has connected.
//
// mu is held during the check and the execution. So after a new service has read the runner's state, no frame
// of an earlier service can change it.
func (s *server) handleFrame(c *conn, f wire.Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello, ok := f.(*wire.Hello); ok {
		return s.helloLocked(c, hello)
	}
	if c.epoch == 0 || c.epoch != s.link.epoch && !failpoint.IsEnabled("nofence") {
		return false
	}
	switch f := f.(type) {
	case *wire.Setup:
		s.setupLocked(f)
	case *wire.Start:
		s.addAttemptLocked(f)
	case *wire.TypeInput:
		t, ok := s.typeInputLocked(f)
		c.SendFrames(&wire.TypeInputReply{RequestID: f.RequestID, WrittenBytes: int64(t.WrittenBytes),
			ModeControls: t.ModeControls, NoTerminal: !ok})
	case *wire.Resize:
		if a := s.attempts[f.Lease]; a != nil && a.isOnWorker() {
			a.worker.Resize(a.pid, int(f.Rows), int(f.Cols))
		}
	case *wire.RemoveDeadRunner:
		s.diskQueue.add(func() { s.removeDeadRunner(f.RunnerName) })
	case *wire.Drop:
		s.dropAttemptLocked(f)
	case *wire.EndAttempt:
		if a := s.attempts[f.Lease]; a != nil && a.isOnWorker() { // the frame Drop cancels a waiting attempt
			a.sendsImmediately = true
			a.endLocked(int(f.Cause), f.Grace)
		}
	case *wire.ExtendLeases:
		s.extendLeasesLocked(f)
	case *wire.Signal:
		s.signalLocked(f)
	case *wire.Pause:
		s.pauseLocked(c, f)
	case *wire.ReportImmediately:
		s.reportImmediatelyLocked(f)
	case *wire.Ack:
		s.acknowledgeLocked(f)
	case *wire.PurgeOutputs:
		s.diskQueue.add(func() { s.purgeOutputs(c, f) })
	case *wire.Shutdown:
		s.life.shutdownRequested = true
		s.startClosingLocked()
	default:
		return false
	}
	return true
}

// maxStopTimeout is the upper limit of Setup.StopTimeout. Setup.StopTimeout is how long running attempts may
// continue when the operating system ends the runner.
const maxStopTimeout = 24 * time.Hour

// setupLocked applies the settings in a Setup frame: the number of workers, settleDelay and stopTimeout.
func (s *server) setupLocked(f *wire.Setup) {
	target := int(min(max(f.Workers, 0), rundir.MaxSlots))
	reserved, err := s.runningTable.ReserveSlots(min(target+spareSlotCount, rundir.MaxSlots))
	if err != nil && reserved < target {
		target = reserved
		s.Log.Error("the runner runs fewer jobs at the same time than configured, because it cannot reserve disk "+
			"space for more",
			"max_running_jobs", target, "error", err)
	}
	s.slots.reservedCount = reserved
	s.link.settleDelay, s.link.stopTimeout = f.SettleDelay, min(max(f.StopTimeout, 0), maxStopTimeout)
	s.setWorkerCountLocked(target)
	s.limitOwnMemory(target)
}

// answerReadOutput answers a ReadOutput request. If f.Wait is set, it first waits for output after the cursor,
// or until the output is complete.
func (s *server) answerReadOutput(c *conn, f *wire.ReadOutput) {
	tooMany := c.activeReads.Add(1) > maxConcurrentReads
	defer c.activeReads.Add(-1)
	answer := &wire.ReadOutputReply{RequestID: f.RequestID, Cursor: f.Cursor}
	s.mu.Lock()
	a := s.attempts[f.Lease]
	s.mu.Unlock()
	if a == nil || tooMany {
		answer.AttemptGone = true
		c.SendFrames(answer)
		return
	}
	for {
		changed := a.outputLog.ChangeSignal()
		chunks, next, done, err := a.outputLog.Read(output.Cursor(f.Cursor), output.MaxMemoryBytes)
		if len(chunks) > 0 || done || err != nil || !f.Wait {
			answer.Data, _ = output.AppendChunks(nil, 0, chunks)
			answer.Cursor, answer.LogComplete, answer.AttemptGone = next, done, err != nil
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

// purgeOutputs answers a PurgeOutputs request: it deletes output files.
func (s *server) purgeOutputs(c *conn, f *wire.PurgeOutputs) {
	runner.RemoveOutputs(s.RunnersDir, f.Refs)
	c.SendFrames(&wire.PurgeOutputsReply{RequestID: f.RequestID})
}
