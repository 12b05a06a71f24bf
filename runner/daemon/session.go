package daemon

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// closingReadTime is how long a runner that is ending still reads from its connections after it has
// sent the remaining frames.
const closingReadTime = 100 * time.Millisecond

// acceptPause is the pause before the runner tries again after it could not accept a connection.
const acceptPause = 100 * time.Millisecond

// maxReads bounds how many READ requests of one connection can wait for output at the same time.
const maxReads = 1024

// conn is the connection of one service.
type conn struct {
	*wire.Outbox
	net    net.Conn
	epoch  int64         // epoch of the service; 0 before its Hello; guarded by the server's mu
	reads  atomic.Int64  // READ requests in progress
	closed chan struct{} // closed when the connection ends

	flushDue    bool      // a timer will flush the outbox; guarded by the server's mu, like the next two fields
	gathered    int       // number of frames gathered since the flush timer was set
	gatherStart time.Time // when the flush timer was set
}

func (s *server) accept() {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := s.socket.accept()
		if errors.Is(err, net.ErrClosed) {
			return // the runner is ending
		}
		if err != nil { // out of descriptors or memory; retry, so that the next service can connect later
			time.Sleep(acceptPause)
			continue
		}
		if uid, err := rundir.PeerUID(c); err != nil || uid != 0 && uid != s.Service {
			s.Log.Warn("rejected a connection from an account other than the service's", "uid", uid, "error", err)
			c.Close()
			continue
		}
		conns.Go(func() { s.serve(&conn{Outbox: wire.NewOutbox(c), net: c, closed: make(chan struct{})}) })
	}
}

// serve handles one service's connection until it ends or a newer service connects.
func (s *server) serve(c *conn) {
	var loops sync.WaitGroup
	loops.Go(c.Run)
	// When the runner ends, send the remaining frames, then end the connection after closingReadTime.
	loops.Go(func() {
		select {
		case <-s.done:
			c.FlushNow()
			c.net.SetReadDeadline(time.Now().Add(closingReadTime))
		case <-c.closed:
		}
	})
	err := wire.ReadFrames(c.net, func(f wire.Frame) bool {
		switch f := f.(type) {
		case *wire.Read:
			loops.Go(func() { s.answerRead(c, f) })
			return true
		case *wire.Recover:
			loops.Go(func() { s.recover(c, f) })
			return true
		case *wire.Start:
			failpoint.Hit("runner-start")
		}
		return s.handleFrame(c, f)
	})
	if err != nil && err != io.EOF {
		s.Log.Debug("service connection ended", "error", err)
	}
	s.mu.Lock()
	if s.conn == c {
		s.conn, s.idleAt = nil, time.Now()
		s.updateDisconnected()
		time.AfterFunc(disconnectSync, func() {
			if s.isDisconnected() {
				s.diskQueue.add(s.sync)
			}
		})
	}
	s.mu.Unlock()
	c.close()
	loops.Wait()
}

// handleFrame executes one frame. It rejects frames from connections other than that of the newest
// epoch. It checks the epoch under the mutex that also guards starts. So after a new service has read
// the runner's state, no frame of its predecessor can take effect.
func (s *server) handleFrame(c *conn, f wire.Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello, ok := f.(*wire.Hello); ok {
		return s.hello(c, hello)
	}
	if c.epoch == 0 || c.epoch != s.epoch && !failpoint.On("nofence") {
		return false
	}
	switch f := f.(type) {
	case *wire.Setup:
		s.targetWorkers = int(min(max(f.Workers, 0), rundir.MaxSlots))
		var err error
		if s.reservedSlots, err = s.table.Reserve(min(s.targetWorkers+spareSlots, rundir.MaxSlots)); err != nil && s.reservedSlots < s.targetWorkers {
			s.targetWorkers = s.reservedSlots
			s.Log.Error("running fewer workers than configured", "workers", s.targetWorkers, "error", err)
		}
		s.settleDelay, s.stopTimeout = f.SettleDelay, min(max(f.StopTimeout, 0), maxStopTimeout)
		// Give each worker a processor (P) of the Go scheduler, since its thread may keep the P during
		// a system call.
		procs := min(s.targetWorkers+1, 256)
		runtime.GOMAXPROCS(procs)
		// Go may need this many threads while the threads of all workers are in system calls.
		if threads := max(8, min(2*procs, 256)) + min(s.targetWorkers, 256); threads > s.threadCount {
			s.threadCount = threads
			s.workers.Go(func() { createThreads(threads) })
		}
		s.setUpWorkers()
		s.boundMemory(s.targetWorkers)
	case *wire.Start:
		s.startAttempt(f)
	case *wire.Type:
		t, ok := s.typeInput(f)
		c.Send(wire.Append(nil, &wire.Typed{ID: f.ID, Taken: int64(t.Taken), Controls: t.Controls, Gone: !ok}))
	case *wire.Resize:
		if a := s.attempts[f.Lease]; a != nil && a.worker != nil {
			a.worker.Resize(a.pid, int(f.Rows), int(f.Cols))
		}
	case *wire.Forget:
		s.diskQueue.add(func() { s.forget(f.Name) })
	case *wire.Drop:
		s.drop(f)
	case *wire.Kill:
		s.kill(f)
	case *wire.Prolong:
		s.prolong(f)
	case *wire.Signal:
		s.signal(f)
	case *wire.Pause:
		s.pause(c, f)
	case *wire.Watch:
		s.watch(f)
	case *wire.Ack:
		s.acknowledge(f)
	case *wire.Purge:
		s.diskQueue.add(func() {
			runner.Purge(s.Root, f.Refs)
			c.Send(wire.Append(nil, &wire.Purged{ID: f.ID}))
		})
	case *wire.Shutdown:
		s.dismissed = true
		s.close()
	default:
		return false
	}
	return true
}

// createThreads makes the Go runtime create n threads, which the runtime keeps. Without them, the
// runtime might need a new thread when the system has none to give. It would end the runner, and with
// it all jobs.
func createThreads(n int) {
	var created sync.WaitGroup
	created.Add(n)
	release := make(chan struct{})
	for range n {
		go func() { // this goroutine ends when release is closed
			runtime.LockOSThread() // this forces a dedicated thread for the goroutine
			defer runtime.UnlockOSThread()
			created.Done()
			<-release
		}()
	}
	created.Wait()
	close(release)
}

// hello makes c the runner's connection if its epoch is the newest. The caller holds mu.
func (s *server) hello(c *conn, h *wire.Hello) bool {
	if h.Epoch == wire.NoEpoch {
		k, _ := s.helloReply()
		c.Send(wire.Append(nil, k))
		return false
	}
	if h.Epoch <= s.epoch || s.isDone() {
		c.Send(wire.Append(nil, &wire.Refused{Epoch: s.epoch}))
		return false
	}
	if s.conn != nil {
		s.conn.close()
	}
	s.epoch, c.epoch, s.conn = h.Epoch, h.Epoch, c
	s.updateDisconnected()
	k, results := s.helloReply()
	frames := wire.Append(nil, k)
	if len(s.stuckAttempts) > 0 {
		frames = wire.Append(frames, &wire.Stuck{Attempts: s.stuckAttempts})
	}
	c.Send(append(frames, results...))
	return true
}

// helloReply returns the answer to a Hello, and the encoded results that no service has acknowledged.
// The caller holds mu.
func (s *server) helloReply() (k *wire.HelloReply, results []byte) {
	k = &wire.HelloReply{Protocol: wire.Protocol, Version: s.Version, PID: int64(os.Getpid()), Limits: s.enforcedLimits()}
	if s.closing { // the service sends no new jobs to a runner whose version differs from its own
		k.Version += endingSuffix
	}
	for _, a := range s.attempts {
		if a.result == nil {
			k.Attempts = append(k.Attempts, wireAttempt(a))
			if a.progress.At != 0 {
				results = wire.Append(results, &wire.Telling{Lease: lease(a), Progress: a.progress})
			}
		} else {
			k.Ended = append(k.Ended, lease(a))
			results = append(results, a.result...)
		}
	}
	return k, results
}

// enforcedLimits returns how this runner enforces each limit.
func (s *server) enforcedLimits() (list []wire.Limit) {
	for _, e := range process.Enforced(s.Cgroups) {
		list = append(list, wire.Limit{Name: e.Limit, Extent: int64(e.Extent), By: e.By})
	}
	return list
}

// endingSuffix is appended to the reported version of a runner that is about to end.
const endingSuffix = " (ending)"

// maxStopTimeout bounds StopTimeout: how long running attempts may continue when the operating system
// ends the runner.
const maxStopTimeout = 24 * time.Hour

func (s *server) startAttempt(f *wire.Start) {
	if s.attempts[f.Lease] != nil || s.closing || s.leasesExpired() || len(f.Argv) == 0 || (s.accounts != nil) != (f.UID >= 0) {
		// Each lease is started at most once. A root runner rejects a frame that names no account, and
		// every other runner rejects a frame that names one.
		return
	}
	a := &attempt{start: f}
	a.log = output.New(f.OutputLimit, func() (*os.File, error) {
		return os.CreateTemp(s.dir, "log-*")
	})
	s.attempts[f.Lease] = a
	s.enqueue(a)
	s.workerCond.Signal()
}

// enqueue adds an attempt to the waiting ones. Attempts of one queue are sorted by Place. The sequence
// of queues stays as the service sent it, so enqueue moves attempts only among the positions of their
// queue. The new attempt takes the position of the first attempt of its queue that ranks after it. That
// attempt takes the position of the next one, and so on. The caller holds mu.
//
// For example, a3 b1 a5 and the new attempt a2 result in a2 b1 a3 a5.
func (s *server) enqueue(a *attempt) {
	s.waiting = append(s.waiting, a)
	at := len(s.waiting) - 1
	for i := at - 1; i >= 0; i-- {
		other := s.waiting[i]
		if other.start.Queue != a.start.Queue {
			continue
		}
		if !a.ranksBefore(other) {
			return
		}
		s.waiting[i], s.waiting[at] = a, other
		at = i
	}
}

// ranksBefore reports whether this attempt must start before other. Both are in the same queue, and
// other was enqueued earlier.
func (a *attempt) ranksBefore(other *attempt) bool {
	return a.start.Place.Compare(other.start.Place) < 0
}

// typeInput writes to the terminal of a running attempt, as many bytes as the terminal has room for. ok
// is false if the attempt does not run or has no terminal. The caller holds mu.
func (s *server) typeInput(f *wire.Type) (t process.Typed, ok bool) {
	a := s.attempts[f.Lease]
	if a == nil || a.worker == nil || a.pid == 0 {
		return t, false
	}
	return a.worker.Type(a.pid, f.Data)
}

func (s *server) drop(f *wire.Drop) {
	dropped := s.attempts[f.Lease] == nil
	if i := slices.IndexFunc(s.waiting, func(a *attempt) bool { return lease(a) == f.Lease }); i >= 0 {
		s.discard(s.waiting[i])
		s.waiting = slices.Delete(s.waiting, i, i+1)
		dropped = true
	}
	s.send(&wire.Dropped{Lease: f.Lease, Dropped: dropped}, true)
}

// discard removes an attempt that was never started, and wakes the readers of its output. The caller
// holds mu.
func (s *server) discard(a *attempt) {
	delete(s.attempts, lease(a))
	a.log.Discard()
}

func (s *server) kill(f *wire.Kill) {
	a := s.attempts[f.Lease]
	if a == nil || a.worker == nil {
		return // an ended attempt needs no kill; a waiting attempt is cancelled by DROP instead
	}
	a.watched = true
	a.kill(int(f.Cause), f.Grace)
}

// kill ends a running attempt. If the attempt is not forked yet, it is killed right after the fork. The
// caller holds the server's mu.
func (a *attempt) kill(cause int, grace time.Duration) {
	if !a.worker.Kill(cause, grace) {
		a.pendingKill = func() { a.worker.Kill(cause, grace) }
	}
}

// pause freezes an attempt or lets it continue. An attempt that has not started yet is frozen when it
// starts. The caller holds mu.
func (s *server) pause(c *conn, f *wire.Pause) {
	answer := func(unchanged int, ok bool) {
		c.Send(wire.Append(nil, &wire.Paused{ID: f.ID, Left: int64(unchanged), Gone: !ok}))
	}
	a := s.attempts[f.Lease]
	if a == nil || a.result != nil {
		answer(0, false)
		return
	}
	a.paused = f.On
	if a.pid == 0 {
		answer(0, true)
		return
	}
	a.worker.Pause(f.On, answer)
}

// signal sends a signal to all processes of an attempt. One goroutine per attempt sends the signals,
// because each signal may scan every process of the machine. A signal that is already queued is not
// queued again.
func (s *server) signal(f *wire.Signal) {
	a := s.attempts[f.Lease]
	if a == nil || a.worker == nil || a.pid == 0 || slices.Contains(a.signals, f.Number) {
		return
	}
	a.signals = append(a.signals, f.Number)
	if !a.signalling {
		a.signalling = true
		w, pid, cookie := a.worker, a.pid, s.cookie(a)
		s.workers.Go(func() {
			for n, more := s.nextSignal(a); more; n, more = s.nextSignal(a) {
				w.Signal(pid, cookie, int(n))
			}
		})
	}
}

// nextSignal removes and returns the attempt's next queued signal.
func (s *server) nextSignal(a *attempt) (number int64, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(a.signals) == 0 {
		a.signalling = false
		return 0, false
	}
	number, a.signals = a.signals[0], a.signals[1:]
	return number, true
}

func (s *server) watch(f *wire.Watch) {
	a := s.attempts[f.Lease]
	if a == nil {
		return
	}
	a.watched = true
	if (a.result != nil || a.pid != 0) && s.conn != nil { // the outbox may still hold its start or result
		s.conn.FlushNow()
	}
}

func (s *server) acknowledge(f *wire.Ack) {
	for _, l := range f.Leases {
		a := s.attempts[l]
		if a == nil || a.result == nil {
			continue
		}
		delete(s.attempts, l)
		if a.unjournaled {
			s.unjournaled--
			s.freeSlot(a)
		}
		s.diskQueue.add(func() {
			a.log.Discard()
			s.journal.Ack(a.segment)
		})
	}
	s.endIfDone()
}

// answerRead answers a READ request. If the request asks to wait, it waits until there is output after
// the cursor or the log is complete.
func (s *server) answerRead(c *conn, f *wire.Read) {
	tooMany := c.reads.Add(1) > maxReads
	defer c.reads.Add(-1)
	answer := &wire.Chunk{ID: f.ID, Cursor: f.Cursor}
	s.mu.Lock()
	a := s.attempts[f.Lease]
	s.mu.Unlock()
	if a == nil || tooMany {
		answer.Gone = true
		c.Send(wire.Append(nil, answer))
		return
	}
	for {
		changed := a.log.Changed()
		chunks, next, done, err := a.log.Read(output.Cursor(f.Cursor), output.InMemory)
		if len(chunks) > 0 || done || err != nil || !f.Wait {
			answer.Data, _ = output.AppendChunks(nil, 0, chunks)
			answer.Cursor, answer.Done, answer.Gone = next, done, err != nil
			c.Send(wire.Append(nil, answer))
			return
		}
		select {
		case <-changed:
		case <-c.closed:
			return
		}
	}
}

// send queues a frame for the connected service. The frame is sent immediately if now is true, and
// otherwise after at most maxDelays times settleDelay. The caller holds mu.
func (s *server) send(f wire.Frame, now bool) { s.sendRaw(wire.Append(nil, f), now) }

func (s *server) sendRaw(frame []byte, now bool) {
	c := s.conn
	switch {
	case c == nil: // discard the frame, because the next HelloReply describes the current state
	case now || s.settleDelay == 0:
		c.Send(frame)
	default:
		c.Gather(frame)
		c.gathered++
		if !c.flushDue {
			c.flushDue, c.gathered, c.gatherStart = true, 1, time.Now()
			time.AfterFunc(s.settleDelay, func() { s.flushGathered(c, true) })
		}
	}
}

// maxDelays bounds how long the runner gathers results, as a multiple of settleDelay. The service sends
// enough short jobs in advance to keep the runner busy for this time.
// See docs/decisions/0046.
const maxDelays = 4

// flushGathered sends the gathered frames. If mayExtend is true, it may first gather for a few more
// delays: it does so if the waiting attempts will keep the workers busy for long enough. The rate at
// which results came in predicts that time. Gathering saves work, because a commit in the service costs
// as much as several short jobs, however many results it contains.
func (s *server) flushGathered(c *conn, mayExtend bool) {
	s.mu.Lock()
	if mayExtend {
		busyFor := time.Since(c.gatherStart) * time.Duration(len(s.waiting)) / time.Duration(c.gathered)
		if extension := min(busyFor-s.settleDelay, (maxDelays-1)*s.settleDelay); extension >= s.settleDelay/2 {
			time.AfterFunc(extension, func() { s.flushGathered(c, false) })
			s.mu.Unlock()
			return
		}
	}
	c.flushDue = false
	s.mu.Unlock()
	c.FlushNow()
}

func (c *conn) close() {
	if c.Outbox.Close() {
		close(c.closed)
	}
}
