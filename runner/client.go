package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// Client is a service's connection to one living runner. Send and Read may be
// called from any goroutine; Run reads.
type Client struct {
	Dir string // the runner's folder
	// Known is what the runner said when it was met.
	Known wire.Known

	net    net.Conn
	outbox *outbox

	mu   sync.Mutex
	next int64                        // guarded by mu
	read map[int64]chan<- *wire.Chunk // by id of the READ, nil once the connection has ended; guarded by mu
}

// ErrRefused means that a newer service has met the runner.
var ErrRefused = errors.New("the runner obeys a newer service")

// Find lists the folders of runners below root, and which of them live.
func Find(root string) (live, dead []string, err error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for runners: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == outputsName {
			continue
		}
		dir := filepath.Join(root, e.Name())
		lives, err := Lives(dir)
		if err != nil {
			return nil, nil, err
		}
		if lives {
			live = append(live, dir)
		} else {
			dead = append(dead, dir)
		}
	}
	return live, dead, nil
}

// Lives reports whether the runner of a folder lives: whether its lock is held.
func Lives(dir string) (bool, error) {
	f, ok, err := lockFile(filepath.Join(dir, lockName))
	if ok {
		f.Close()
	}
	return !ok && err == nil, err
}

// Meet connects to the living runner of a folder and makes the epoch its newest:
// frames of earlier services are refused from then on.
func Meet(dir string, epoch int64, version string) (*Client, error) {
	conn, err := dial(filepath.Join(dir, sockName))
	if err != nil {
		return nil, fmt.Errorf("meet the runner: %w", err)
	}
	c := &Client{Dir: dir, net: conn, outbox: newOutbox(conn), read: map[int64]chan<- *wire.Chunk{}}
	hello := wire.Append(nil, &wire.Hello{Protocol: wire.Protocol, Epoch: epoch, Version: version})
	if _, err := c.net.Write(hello); err != nil {
		c.net.Close()
		return nil, fmt.Errorf("meet the runner: %w", err)
	}
	if err := c.readKnown(); err != nil {
		c.net.Close()
		return nil, err
	}
	return c, nil
}

// readKnown reads the answer to Hello and not a byte more.
func (c *Client) readKnown() error {
	c.net.SetReadDeadline(time.Now().Add(10 * time.Second))
	defer c.net.SetReadDeadline(time.Time{})
	head := make([]byte, 4)
	if _, err := io.ReadFull(c.net, head); err != nil {
		return fmt.Errorf("meet the runner: %w", err)
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16 | int(head[3])<<24
	if n < 1 || n > wire.MaxFrame {
		return fmt.Errorf("meet the runner: a frame of %d bytes", n)
	}
	frame := append(head, make([]byte, n)...)
	if _, err := io.ReadFull(c.net, frame[4:]); err != nil {
		return fmt.Errorf("meet the runner: %w", err)
	}
	f, _, err := wire.Parse(frame)
	if err != nil {
		return fmt.Errorf("meet the runner: %w", err)
	}
	switch f := f.(type) {
	case *wire.Known:
		c.Known = *f
		return nil
	case *wire.Refused:
		return ErrRefused
	}
	return fmt.Errorf("meet the runner: it said %T", f)
}

// Run hands over the frames that the runner sends, all that came together at
// once, until the connection ends or ctx does. CHUNKs go to those who read.
func (c *Client) Run(ctx context.Context, deliver func([]wire.Frame)) error {
	stop := context.AfterFunc(ctx, func() { c.net.Close() })
	defer stop()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(c.outbox.run)
	var batch []wire.Frame
	in := &batching{r: c.net, before: func() {
		if len(batch) > 0 {
			failpoint.Hit("result-received")
			deliver(batch)
			batch = nil
		}
	}}
	err := readFrames(in, func(f wire.Frame) bool {
		if chunk, ok := f.(*wire.Chunk); ok {
			c.answered(chunk)
		} else {
			batch = append(batch, f)
		}
		return true
	})
	if len(batch) > 0 {
		deliver(batch)
	}
	c.outbox.close()
	c.mu.Lock()
	for _, to := range c.read {
		close(to)
	}
	c.read = nil
	c.mu.Unlock()
	return err
}

// batching calls before ahead of every Read.
type batching struct {
	r      io.Reader
	before func()
}

// Read implements io.Reader.
func (b *batching) Read(p []byte) (int, error) {
	b.before()
	return b.r.Read(p)
}

// maxBacklog bounds what waits for a runner that does not read, in bytes.
const maxBacklog = 64 << 20

// Send sends frames, in one go and in order. It never waits: a runner that is
// gone, or does not read, is told by the end of Run.
func (c *Client) Send(frames ...wire.Frame) {
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range frames {
		o.out = wire.Append(o.out, f)
	}
	o.flush(writeNow)
	if len(o.out) > maxBacklog {
		c.net.Close()
	}
}

func (c *Client) answered(chunk *wire.Chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.read[chunk.ID]; to != nil {
		to <- chunk // buffered: one answer a READ
		delete(c.read, chunk.ID)
	}
}

// Read reads output of an attempt after a cursor; wait waits for some. A Chunk
// that is Gone means that the runner does not hold the attempt (any more).
func (c *Client) Read(ctx context.Context, l wire.Lease, cursor [2]int64, wait bool) (*wire.Chunk, error) {
	answer := make(chan *wire.Chunk, 1)
	c.mu.Lock()
	if c.read == nil {
		c.mu.Unlock()
		return &wire.Chunk{Cursor: cursor, Gone: true}, nil
	}
	c.next++
	id := c.next
	c.read[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.read, id)
	}()
	c.Send(&wire.Read{Lease: l, ID: id, Cursor: cursor, Wait: wait})
	select {
	case chunk, ok := <-answer:
		if !ok {
			return &wire.Chunk{Cursor: cursor, Gone: true}, nil
		}
		return chunk, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Remains is what a dead runner has left: the results in its journal and the
// attempts it was running, of which nothing lives any more.
type Remains struct {
	Results []*wire.Result
	Running []wire.Attempt
	// SameBoot tells whether the machine has been up ever since.
	SameBoot bool
	// Stuck are the processes that outlive SIGKILL, and Unkilled the attempts of
	// Running that they belong to.
	Stuck    []process.Left
	Unkilled map[wire.Lease]bool
}

// Recover ends what a dead runner's attempts have left alive, but for what outlives
// SIGKILL, and says what is known of them.
func Recover(dir string) (Remains, error) {
	var r Remains
	boot, err := process.BootID()
	if err != nil {
		return r, err
	}
	noted, err := os.ReadFile(filepath.Join(dir, bootName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("read the runner's boot: %w", err)
	}
	r.SameBoot = string(noted) == boot
	if r.Results, err = readJournal(dir); err != nil {
		return r, err
	}
	pid, ticks, running, err := readTable(dir)
	if err != nil {
		return r, err
	}
	ended := map[wire.Lease]bool{}
	for _, result := range r.Results {
		ended[result.Lease] = true
	}
	cookies := map[string]wire.Lease{}
	for _, a := range running {
		if !ended[a.Lease] {
			r.Running = append(r.Running, a)
			cookies[fmt.Sprintf("%s.%d.%d", filepath.Base(dir), a.Seq, a.Fence)] = a.Lease
		}
	}
	if !r.SameBoot || pid == 0 {
		return r, nil
	}
	spared, err := readSpared(dir)
	if err != nil {
		return r, err
	}
	r.Stuck = process.EndTrees(pid, ticks,
		func(cookie string) bool { return cookies[cookie] != wire.Lease{} },
		func(pgid int) bool { return spared[pgid] },
		patience())
	r.Unkilled = map[wire.Lease]bool{}
	for _, p := range r.Stuck {
		for _, a := range r.Running {
			if p.PGID == int(a.PID) || cookies[p.Cookie] == a.Lease {
				r.Unkilled[a.Lease] = true
			}
		}
	}
	return r, nil
}

// Forget removes a dead runner's folder, after all it left is stored.
func Forget(dir string) error { return os.RemoveAll(dir) }

// Purge deletes output files below root.
func Purge(root string, refs []string) { purge(root, refs) }
