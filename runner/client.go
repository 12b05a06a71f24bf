package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// Client is the connection of a service to one living runner. Service and runner exchange frames, the messages of
// package wire. To receive frames, a goroutine must call ReceiveFrames. All methods except ReceiveFrames and Close may
// be called from any goroutine.
type Client struct {
	RunnerDir string // the runner's directory
	// HelloReply is the runner's answer to Hello, the first request of each connection.
	HelloReply wire.HelloReply

	conn   net.Conn
	reader *bufio.Reader // reads from conn
	outbox *wire.Outbox

	mu            sync.Mutex
	lastRequestID wire.RequestID // id of the last request; guarded by mu
	// pendingReplies maps the id of each unanswered request to the channel that receives the answer. It is nil
	// after the connection has ended. It is guarded by mu.
	pendingReplies map[wire.RequestID]chan<- wire.Frame
}

// ErrRunnerSawNewerDatabase means that this service has an older copy of the database than a service that was connected
// to the runner before. Each start of a service gets a number from the database. The runner has already accepted a
// connection with the number of this start, or with a later one.
var ErrRunnerSawNewerDatabase = errors.New("a running runner has already worked with a newer database")

// ErrNoReply means that the runner will not send a reply, because the connection or the attempt has ended.
var ErrNoReply = errors.New("no reply from the runner: the connection to it was lost, or the job's attempt has ended")

// ErrAttemptEnding means that an action on an attempt is no longer possible, because the attempt has ended or is
// ending.
var ErrAttemptEnding = errors.New("the job's attempt has ended, or is ending")

// helloTimeout bounds the wait for the answer to Hello.
const helloTimeout = 10 * time.Second

// IsAlive reports whether the runner in a directory is alive, that is, whether its lock is held.
func IsAlive(runnerDir string) (bool, error) {
	return rundir.IsLockHeld(filepath.Join(runnerDir, rundir.LockFileName))
}

// Connect connects to the living runner in a directory. epoch is the number of this start of the service. From now on,
// the runner rejects frames of earlier starts. Connect waits for the runner's answer to Hello, at most for
// helloTimeout.
func Connect(runnerDir string, epoch int64, serviceVersion string) (*Client, error) {
	conn, err := rundir.Dial(filepath.Join(runnerDir, rundir.SocketFileName))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the runner: %w", err)
	}
	c := &Client{RunnerDir: runnerDir, conn: conn, reader: wire.NewFrameReader(conn), outbox: wire.NewOutbox(conn),
		pendingReplies: map[wire.RequestID]chan<- wire.Frame{}}
	hello := wire.AppendFrame(nil, &wire.Hello{ProtocolVersion: wire.ProtocolVersion, Epoch: epoch,
		ServiceVersion: serviceVersion})
	if _, err := c.conn.Write(hello); err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("cannot connect to the runner: it read no request: %w", err)
	}
	if err := c.readHelloReply(epoch); err != nil {
		c.conn.Close()
		return nil, err
	}
	// Take the pid from the kernel if the runner has switched to a user's account. Such a runner could send the pid of any
	// process, and messages advise people to end the process with this pid.
	if RunnerHasSwitchedAccount(runnerDir) {
		c.HelloReply.RunnerPID = rundir.PeerPID(conn)
	}
	return c, nil
}

// attemptLeases lists the attempts, running or ended, that the runner reported to Connect.
func (c *Client) attemptLeases() (leases []wire.Lease) {
	for _, a := range c.HelloReply.UnendedAttempts {
		leases = append(leases, a.Lease)
	}
	return append(leases, c.HelloReply.UnacknowledgedLeases...)
}

// NewestJobSeq returns the highest job number among the attempts that the runner reported to Connect, or 0 if
// it reported none.
func (c *Client) NewestJobSeq() (seq int64) {
	for _, l := range c.attemptLeases() {
		seq = max(seq, l.Seq)
	}
	return seq
}

// Close closes the connection. Call it only if no goroutine calls ReceiveFrames.
func (c *Client) Close() { c.conn.Close() }

// readHelloReply reads the runner's answer to a Hello with this epoch, and stores the answer in HelloReply.
func (c *Client) readHelloReply(epoch int64) error {
	c.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	defer c.conn.SetReadDeadline(time.Time{})
	f, err := wire.ReadFrame(c.reader)
	if err != nil {
		return fmt.Errorf("cannot connect to the runner: it sent no valid reply; if this repeats, check which program uses "+
			"the socket in the runner's directory: %w", err)
	}
	switch f := f.(type) {
	case *wire.HelloReply:
		c.HelloReply = *f
		return nil
	case *wire.HelloRefusal:
		if f.NewestEpoch < epoch {
			return errors.New("cannot connect to the runner: the runner is shutting down")
		}
		return ErrRunnerSawNewerDatabase
	}
	return errors.New("cannot connect to the runner: it sent an unexpected reply; check which program uses the socket " +
		"in the runner's directory")
}

// ReceiveFrames reads frames until the connection or ctx ends. It passes each reply to the goroutine that waits for the
// reply, and all other frames to deliverFrames. One call of deliverFrames gets all frames that arrived together.
func (c *Client) ReceiveFrames(ctx context.Context, deliverFrames func([]wire.Frame)) error {
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	var writerGroup sync.WaitGroup
	defer writerGroup.Wait()
	writerGroup.Go(c.outbox.Run)
	var arrivedFrames []wire.Frame
	f, err := wire.ReadFrame(c.reader)
	for ; err == nil; f, err = wire.ReadFrame(c.reader) {
		if reply, ok := f.(wire.FrameWithID); ok {
			c.deliverReply(reply)
		} else {
			arrivedFrames = append(arrivedFrames, f)
		}
		if len(arrivedFrames) > 0 && !wire.IsFrameBuffered(c.reader) {
			failpoint.Hit("result-received")
			deliverFrames(arrivedFrames)
			arrivedFrames = nil
		}
	}
	if len(arrivedFrames) > 0 {
		deliverFrames(arrivedFrames)
	}
	c.outbox.Close()
	c.mu.Lock()
	for _, to := range c.pendingReplies {
		close(to)
	}
	c.pendingReplies = nil
	c.mu.Unlock()
	return err
}

// maxUnsentBytes limits how many bytes are queued for a runner that does not read. Above this limit, Send
// closes the connection.
const maxUnsentBytes = 64 << 20

// Send sends frames to the runner together and in order. It never blocks. If the runner is gone or does not read the
// frames, the connection is closed, and ReceiveFrames returns.
func (c *Client) Send(frames ...wire.Frame) {
	if c.outbox.SendFrames(frames...) > maxUnsentBytes {
		c.conn.Close()
	}
}

// deliverReply passes a reply to the goroutine that waits for it. If no goroutine waits, the reply is dropped.
func (c *Client) deliverReply(reply wire.FrameWithID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.pendingReplies[*reply.ID()]; to != nil {
		to <- reply // does not block, because the channel has room for one reply
		delete(c.pendingReplies, *reply.ID())
	}
}

// sendRequest sends requestFrame with a new request id and waits for the reply. It returns ErrNoReply if the connection
// ends or the channel stopWaiting is closed before the reply arrives.
func sendRequest[T wire.FrameWithID](
	ctx context.Context, c *Client, stopWaiting <-chan struct{}, requestFrame wire.FrameWithID,
) (reply T, err error) {
	answers := make(chan wire.Frame, 1)
	c.mu.Lock()
	if c.pendingReplies == nil {
		c.mu.Unlock()
		return reply, ErrNoReply
	}
	c.lastRequestID++
	id := c.lastRequestID
	*requestFrame.ID() = id
	c.pendingReplies[id] = answers
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pendingReplies, id)
	}()
	c.Send(requestFrame)
	select {
	case f := <-answers: // nil if the connection has ended
		if answer, ok := f.(T); ok {
			return answer, nil
		}
		return reply, ErrNoReply
	case <-stopWaiting:
		return reply, ErrNoReply
	case <-ctx.Done():
		return reply, ctx.Err()
	}
}

// ReadOutput reads the output of an attempt after streamCursors, the positions in the two streams (see
// output.StreamCursor). If stopWaiting is not nil, ReadOutput waits until such output exists. AttemptUnknown in the
// reply means that the runner does not know the attempt. ReadOutput returns ErrNoReply if the connection ends or
// stopWaiting is closed.
func (c *Client) ReadOutput(ctx context.Context, l wire.Lease, streamCursors [2]int64,
	stopWaiting <-chan struct{}) (*wire.ReadOutputReply, error) {
	return sendRequest[*wire.ReadOutputReply](ctx, c, stopWaiting,
		&wire.ReadOutput{Lease: l, StreamCursors: streamCursors, WaitForOutput: stopWaiting != nil})
}

// TypeInput writes data to the terminal of a running attempt, and returns how many bytes the terminal accepted.
// The caller can send the rest after the attempt's program has read some input. TypeInput returns ErrNoReply if
// the runner does not run the attempt, if the attempt has no terminal, or if the connection ends.
func (c *Client) TypeInput(ctx context.Context, l wire.Lease, data []byte) (reply wire.TypeInputReply, err error) {
	t, err := sendRequest[*wire.TypeInputReply](ctx, c, nil, &wire.TypeInput{Lease: l, Data: data})
	switch {
	case err != nil:
		return reply, err
	case t.NoTerminal:
		return reply, ErrNoReply
	}
	t.WrittenBytes = min(max(t.WrittenBytes, 0), int64(len(data)))
	return *t, nil
}

// SetAttemptPaused freezes the processes of a running attempt or, if wantsPaused is false, resumes them. It returns the
// number of processes that are not frozen or resumed yet. It returns ErrAttemptEnding if the runner does not run the
// attempt or is ending it, and ErrNoReply if the connection ends.
func (c *Client) SetAttemptPaused(ctx context.Context, l wire.Lease, wantsPaused bool) (unchangedProcesses int,
	err error) {
	paused, err := sendRequest[*wire.PauseReply](ctx, c, nil, &wire.PauseAttempt{Lease: l, Paused: wantsPaused})
	switch {
	case err != nil:
		return 0, err
	case paused.AttemptNotRunning:
		return 0, ErrAttemptEnding
	}
	return int(max(paused.UnchangedProcessCount, 0)), nil
}

// PurgeOutputs makes the runner delete the output files with the names outputRefs, and waits until it has done so. If a
// file cannot be deleted, PurgeOutputs returns no error.
func (c *Client) PurgeOutputs(ctx context.Context, outputRefs []string) error {
	if _, err := sendRequest[*wire.PurgeOutputsReply](ctx, c, nil,
		&wire.PurgeOutputs{OutputRefs: outputRefs}); err != nil {
		return fmt.Errorf("cannot delete output files: %w", err)
	}
	return nil
}
