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

// Client is a service's connection to one living runner. It sends and receives frames, the messages of
// package wire. A goroutine must call Run to receive frames. All methods except Run and Close may be called
// from any goroutine.
type Client struct {
	Dir string // the runner's directory
	// HelloReply is the runner's answer to Hello, the first request of each connection.
	HelloReply wire.HelloReply

	conn   net.Conn
	reader *bufio.Reader // reads from conn
	outbox *wire.Outbox

	mu     sync.Mutex
	lastID wire.RequestID // id of the last request; guarded by mu
	// pendingReplies holds the channel that receives each answer, by the id of the request. It is nil once the
	// connection has ended. It is guarded by mu.
	pendingReplies map[wire.RequestID]chan<- wire.Frame
}

// ErrNewerDatabase means that a service with the same or a later epoch has already connected to the runner.
// The epoch is the number of a service start and is stored in the database, so this service has an older
// database.
var ErrNewerDatabase = errors.New("a running runner has already worked with a newer database")

// ErrNoReply means that the runner will not answer: the connection or the attempt has ended.
var ErrNoReply = errors.New("no reply from the runner: the connection to it was lost, or the job's attempt has ended")

// ErrAttemptEnding means that an attempt has ended, or is being ended.
var ErrAttemptEnding = errors.New("the job's attempt has ended, or is ending")

// helloTimeout bounds the wait for the answer to Hello.
const helloTimeout = 10 * time.Second

// IsAlive reports whether the runner in a directory is alive, that is, whether its lock is held.
func IsAlive(dir string) (bool, error) {
	return rundir.IsLockHeld(filepath.Join(dir, rundir.LockFileName))
}

// Connect connects to the living runner in a directory. epoch is the number of this service start. After this
// connection, the runner rejects frames of earlier service starts. Connect waits for the runner's answer, at most
// for helloTimeout.
func Connect(dir string, epoch int64, version string) (*Client, error) {
	conn, err := rundir.Dial(filepath.Join(dir, rundir.SocketFileName))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the runner: %w", err)
	}
	c := &Client{Dir: dir, conn: conn, reader: wire.NewReader(conn), outbox: wire.NewOutbox(conn),
		pendingReplies: map[wire.RequestID]chan<- wire.Frame{}}
	hello := wire.Append(nil, &wire.Hello{ProtocolVersion: wire.ProtocolVersion, Epoch: epoch, Version: version})
	if _, err := c.conn.Write(hello); err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("cannot connect to the runner: it read no request: %w", err)
	}
	if err := c.readHelloReply(epoch); err != nil {
		c.conn.Close()
		return nil, err
	}
	// Take the PID from the kernel: a runner that switched to a user's account could send any PID, and
	// messages advise people to end the process with this PID.
	if HasSwitchedAccount(dir) {
		c.HelloReply.PID = rundir.PeerPID(conn)
	}
	return c, nil
}

// listAttempts lists the running and ended attempts that a living runner knows. The runner stays connected
// to its service.
func listAttempts(dir string) (leases []wire.Lease, err error) {
	c, err := Connect(dir, wire.NoEpoch, "")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, a := range c.HelloReply.Attempts {
		leases = append(leases, a.Lease)
	}
	return append(leases, c.HelloReply.EndedLeases...), nil
}

// NewestJobSeq returns the highest job number among the runner's attempts at the time of Connect, or 0 if
// it had none.
func (c *Client) NewestJobSeq() (seq int64) {
	for _, a := range c.HelloReply.Attempts {
		seq = max(seq, a.Seq)
	}
	for _, l := range c.HelloReply.EndedLeases {
		seq = max(seq, l.Seq)
	}
	return seq
}

// Close closes a connection for which Run is not called.
func (c *Client) Close() { c.conn.Close() }

// readHelloReply reads the runner's answer to a Hello that contained this epoch, and stores it in HelloReply.
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
		if f.Epoch < epoch {
			return errors.New("cannot connect to the runner: the runner is shutting down")
		}
		return ErrNewerDatabase
	}
	return errors.New("cannot connect to the runner: it sent an unexpected reply; check which program uses the socket " +
		"in the runner's directory")
}

// Run reads frames until the connection or ctx ends. It passes each answer to the goroutine that waits for
// it, and all other frames to the function deliver. One call of deliver gets all frames that arrived
// together.
func (c *Client) Run(ctx context.Context, deliver func([]wire.Frame)) error {
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	var writerGroup sync.WaitGroup
	defer writerGroup.Wait()
	writerGroup.Go(c.outbox.Run)
	var arrivedFrames []wire.Frame
	f, err := wire.ReadFrame(c.reader)
	for ; err == nil; f, err = wire.ReadFrame(c.reader) {
		if reply, ok := f.(wire.Exchange); ok {
			c.deliverReply(reply)
		} else {
			arrivedFrames = append(arrivedFrames, f)
		}
		if len(arrivedFrames) > 0 && !wire.IsBuffered(c.reader) {
			failpoint.Hit("result-received")
			deliver(arrivedFrames)
			arrivedFrames = nil
		}
	}
	if len(arrivedFrames) > 0 {
		deliver(arrivedFrames)
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

// maxUnsentBytes bounds the bytes that are queued for a runner that does not read. If more bytes are queued, Send
// closes the connection.
const maxUnsentBytes = 64 << 20

// Send sends frames together and in order. It never blocks. If the runner is gone or does not read, Run
// returns.
func (c *Client) Send(frames ...wire.Frame) {
	if c.outbox.SendFrames(frames...) > maxUnsentBytes {
		c.conn.Close()
	}
}

// deliverReply passes an answer to the goroutine that waits for it, if any.
func (c *Client) deliverReply(answer wire.Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.pendingReplies[*answer.ID()]; to != nil {
		to <- answer // does not block: the channel has room for the only answer
		delete(c.pendingReplies, *answer.ID())
	}
}

// request sends a message with a new request id, and waits for the answer. It returns ErrNoReply if the
// connection ends, or the stop channel is closed, before the answer arrives.
func request[T wire.Exchange](
	ctx context.Context, c *Client, stop <-chan struct{}, message wire.Exchange,
) (answer T, err error) {
	answers := make(chan wire.Frame, 1)
	c.mu.Lock()
	if c.pendingReplies == nil {
		c.mu.Unlock()
		return answer, ErrNoReply
	}
	c.lastID++
	id := c.lastID
	*message.ID() = id
	c.pendingReplies[id] = answers
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pendingReplies, id)
	}()
	c.Send(message)
	select {
	case f := <-answers: // nil if the connection has ended
		if answer, ok := f.(T); ok {
			return answer, nil
		}
		return answer, ErrNoReply
	case <-stop:
		return answer, ErrNoReply
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// ReadOutput reads output of an attempt, starting at the position cursor (see output.Cursor). If there is no output
// after this position yet and the stop channel is not nil, ReadOutput waits for output. AttemptGone in the reply
// means that the runner does not have this attempt. ReadOutput returns ErrNoReply if the connection ends or the stop
// channel is closed.
func (c *Client) ReadOutput(ctx context.Context, l wire.Lease, cursor [2]int64,
	stop <-chan struct{}) (*wire.ReadOutputReply, error) {
	return request[*wire.ReadOutputReply](ctx, c, stop, &wire.ReadOutput{Lease: l, Cursor: cursor, Wait: stop != nil})
}

// TypeInput writes to the terminal of a running attempt, and returns how many bytes the terminal took. The
// caller can send the rest again once the attempt's program has read some input. TypeInput returns
// ErrNoReply if this runner does not run the attempt, if the attempt has no terminal, or if the connection
// ends.
func (c *Client) TypeInput(ctx context.Context, l wire.Lease, data []byte) (reply wire.TypeInputReply, err error) {
	t, err := request[*wire.TypeInputReply](ctx, c, nil, &wire.TypeInput{Lease: l, Data: data})
	switch {
	case err != nil:
		return reply, err
	case t.NoTerminal:
		return reply, ErrNoReply
	}
	t.WrittenBytes = min(max(t.WrittenBytes, 0), int64(len(data)))
	return *t, nil
}

// Pause freezes a running attempt, or resumes it if freeze is false. It returns how many of the attempt's
// processes are not yet frozen or resumed. It returns ErrAttemptEnding if the runner does not run the attempt
// or is ending it, and ErrNoReply if the connection ends.
func (c *Client) Pause(ctx context.Context, l wire.Lease, freeze bool) (unchangedCount int, err error) {
	paused, err := request[*wire.PauseReply](ctx, c, nil, &wire.Pause{Lease: l, Paused: freeze})
	switch {
	case err != nil:
		return 0, err
	case paused.NotRunning:
		return 0, ErrAttemptEnding
	}
	return int(max(paused.UnchangedProcesses, 0)), nil
}

// PurgeOutputs makes the runner delete the output files named in refs, and waits for its answer. A file that the
// runner cannot delete is not an error.
func (c *Client) PurgeOutputs(ctx context.Context, refs []string) error {
	if _, err := request[*wire.PurgeOutputsReply](ctx, c, nil, &wire.PurgeOutputs{Refs: refs}); err != nil {
		return fmt.Errorf("cannot delete output files: %w", err)
	}
	return nil
}
