package handlers

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"time"
	"unicode/utf8"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/cluster"
)

// Logs implements control.API.
func (h *API) Logs(ctx context.Context, p control.Logs, handlePiece func(control.OutputPiece) error) (control.LogsEnd,
	error) {
	j, err := h.findJobFor(ctx, "logs", p.ID)
	if err != nil {
		return control.LogsEnd{}, err
	}
	n := p.Attempt
	switch {
	case p.FromFirstAttempt:
		n = 1
	case n == 0:
		n = max(j.StartedAttempts, h.Router.LeasedAttemptNumber(ctx, &j), 1)
	}
	if p.Attempt > max(j.StartedAttempts, h.Router.LeasedAttemptNumber(ctx, &j)) {
		attempts := "attempts"
		if j.StartedAttempts == 1 {
			attempts = "attempt"
		}
		return control.LogsEnd{}, queue.Errorf(queue.CodeNotFound, "job %s has no attempt %d; it has %d %s so far",
			j.ID, p.Attempt, j.StartedAttempts, attempts)
	}
	f := &logSender{api: h, params: p, sendPiece: handlePiece, attemptNumber: n, hasTTY: j.TTY}
	if p.LastLines != nil {
		if err := f.seekTail(ctx, &j, *p.LastLines); err != nil {
			return control.LogsEnd{}, err
		}
	}
	return f.sendAll(ctx, j)
}

// logSender sends the output of one job to a client. It sends the output of one attempt after another.
type logSender struct {
	api           *API
	params        control.Logs
	sendPiece     func(control.OutputPiece) error
	attemptNumber int           // number of the current attempt
	hasTTY        bool          // the job has a terminal
	tailBytes     int           // bytes to read at the end of each stream; 0 means all
	cursor        output.Cursor // position up to which the attempt's output was read
	// searchedEnd is how far the output of a running attempt was searched for its last lines. Output after
	// this position is new. It is zero if there was no such search.
	searchedEnd output.Cursor
	lastChunks  []output.Chunk // the last lines, if the runner may discard them before they are sent
}

// sendAll sends the output of the current attempt from the cursor on. If the client follows the job, sendAll
// also sends the output of later attempts, until the job ends.
func (l *logSender) sendAll(ctx context.Context, j queue.Job) (control.LogsEnd, error) {
	watching := l.api.Store.Watch([]int64{j.Seq})
	defer watching.Stop()
	if l.params.Follow {
		defer l.api.Pool.WatchEnd(j.Seq)()
	}
	for {
		// Get this channel before the job's state is read. Otherwise a runner that connects in between is
		// missed.
		connected := l.api.Pool.RunnerConnected()
		var retry <-chan time.Time
		if now, err := l.api.rereadCompact(ctx, &j); err == nil {
			j = now
		} else if l.params.Follow && l.api.AllNodes.IsStoreUnavailable(err) {
			// A job on this node may continue to print while the store is unavailable.
			retry = time.After(cluster.PollInterval)
		} else {
			return control.LogsEnd{}, err
		}
		end := control.LogsEnd{State: j.State.String()}
		running := l.api.Router.LeasedAttemptNumber(ctx, &j)
		switch {
		case l.lastChunks != nil:
			return end, l.sendLastLines()
		case j.StartedAttempts >= l.attemptNumber:
			if err := l.api.readStored(ctx, j.Seq, l.attemptNumber, l.tailBytes, l.cursor, l.send); err != nil {
				return end, err
			}
			if !l.params.Follow || l.params.Attempt != 0 {
				return end, nil
			}
			if l.params.ReportAttemptEnds && (j.StartedAttempts > l.attemptNumber || !j.State.Ended()) {
				if err := l.sendPiece(control.OutputPiece{ID: string(l.params.ID), Attempt: l.attemptNumber,
					Time: control.Time(j.UpdatedAt), Ended: true}); err != nil {
					return end, err
				}
			}
			l.attemptNumber, l.tailBytes, l.cursor = l.attemptNumber+1, 0, output.Cursor{}
			continue
		case running == l.attemptNumber && l.params.Follow:
			more, err := l.api.readLive(ctx, j.Seq, l.attemptNumber, &l.cursor, true, l.send)
			if err != nil {
				return end, err
			}
			if more {
				continue
			}
		case running == l.attemptNumber:
			return end, l.sendLiveOutput(ctx, &j)
		case !l.params.Follow || j.State.Ended():
			return end, nil
		}
		select {
		case <-watching.C:
		case <-connected:
		case <-retry:
		case <-ctx.Done():
			return end, ctx.Err()
		}
	}
}

// sendLiveOutput sends the output that a running attempt has printed until now. If seekTail has searched this
// output for the last lines, sendLiveOutput sends only the output up to l.searchedEnd.
func (l *logSender) sendLiveOutput(ctx context.Context, j *queue.Job) (err error) {
	if l.searchedEnd == (output.Cursor{}) {
		if l.searchedEnd, err = l.api.liveOutputEnd(ctx, j.Seq, l.attemptNumber); err != nil {
			return err
		}
	}
	return l.api.readUpTo(ctx, j.Seq, l.attemptNumber, l.cursor, l.searchedEnd, l.send)
}

// sendLastLines sends the last lines that seekTail has found and kept in lastChunks.
func (l *logSender) sendLastLines() error {
	for _, c := range l.lastChunks {
		if rest, hasRest := chunkAfter(c, &l.cursor); hasRest {
			if err := l.send(rest); err != nil {
				return err
			}
		}
	}
	return nil
}

// selectsChunk reports whether the request selects a chunk of output. A chunk that represents lost bytes of
// an unknown stream is selected unless it is later than the requested period: the bytes may belong to any
// stream, and were printed at the chunk's time or later.
func (l *logSender) selectsChunk(c output.Chunk) bool {
	if c.StreamUnknown {
		return l.params.Until == 0 || c.Time < int64(l.params.Until)
	}
	if c.Time < int64(l.params.Since) || l.params.Until != 0 && c.Time >= int64(l.params.Until) {
		return false
	}
	return l.selectsStream(c.Stream)
}

// selectsStream reports whether the request selects a stream.
func (l *logSender) selectsStream(s output.Stream) bool {
	// If both fields are set, or neither is, the request selects both streams.
	only := l.params.Stdout != l.params.Stderr
	return !only || l.params.Stdout == (s == output.Stdout)
}

// maxPieceBytes is the maximum number of bytes of output in one notification. In JSON, a byte takes up to six
// bytes.
const maxPieceBytes = 32 << 10

// send sends a chunk to the client, in pieces, if the request selects the chunk.
func (l *logSender) send(c output.Chunk) error {
	if !l.selectsChunk(c) {
		return nil
	}
	p := newPiece(&c)
	p.ID, p.Attempt, p.TTY = string(l.params.ID), l.attemptNumber, l.hasTTY
	for rest := c.Data; ; {
		data := rest
		if len(data) > maxPieceBytes {
			data = data[:maxPieceBytes-output.TrailingPartial(data[:maxPieceBytes])]
		}
		rest = rest[len(data):]
		p.Text, p.Base64 = "", nil
		if utf8.Valid(data) {
			p.Text = string(data)
		} else {
			p.Base64 = data
		}
		if err := l.sendPiece(p); err != nil || len(rest) == 0 {
			return err
		}
	}
}

// newPiece converts a chunk to the form in which clients get it, without the data.
func newPiece(c *output.Chunk) control.OutputPiece {
	p := control.OutputPiece{Stream: "stdout", Time: control.Time(c.Time), DroppedBytes: c.DroppedBytes}
	if c.Stream == output.Stderr {
		p.Stream = "stderr"
	}
	if c.DamagedBytes > 0 {
		p.Damage = &control.DamagedRange{Offset: c.Offset, Bytes: c.DamagedBytes}
	}
	if c.StreamUnknown {
		p.Stream, p.Damage.Offset = "", 0
	}
	return p
}

// readTail reads at least tailBytes bytes at the end of each stream of an attempt's output. For a running
// attempt, it reads all in one request, because the runner keeps only the newest output.MaxMemoryBytes bytes
// in memory.
func (h *API) readTail(ctx context.Context, j *queue.Job, attempt, tailBytes int,
	handleChunk func(output.Chunk) error) error {
	if h.isRunning(ctx, j, attempt) {
		cursor := &output.Cursor{-int64(tailBytes), -int64(tailBytes)}
		_, err := h.readLive(ctx, j.Seq, attempt, cursor, false, handleChunk)
		return err
	}
	err := h.readStored(ctx, j.Seq, attempt, tailBytes, output.Cursor{}, handleChunk)
	if errors.Is(err, queue.ErrNotFound) {
		return nil // the attempt has ended, but the store has no output yet
	}
	return err
}

// isRunning reports whether an attempt of a job is running.
func (h *API) isRunning(ctx context.Context, j *queue.Job, attempt int) bool {
	return attempt > j.StartedAttempts && h.Router.LeasedAttemptNumber(ctx, j) == attempt
}

// liveOutputEnd returns the position after the last byte that a running attempt has printed.
func (h *API) liveOutputEnd(ctx context.Context, seq int64, attempt int) (end output.Cursor, err error) {
	chunk, ok, err := h.Router.ReadOutput(ctx, seq, attempt, output.Cursor{-1, -1}, false)
	if err != nil || !ok {
		return end, err
	}
	return chunk.Cursor, nil
}

// readUpTo reads the output of a running attempt between two positions, and passes it to the callback. It
// stops at the second position, because the attempt may print faster than the caller reads.
func (h *API) readUpTo(ctx context.Context, seq int64, attempt int, cursor, end output.Cursor,
	handleChunk func(output.Chunk) error) error {
	start := cursor
	within := func(chunk output.Chunk) error {
		length := chunk.Length()
		n := min(length, end[chunk.Stream]-start[chunk.Stream])
		start[chunk.Stream] += length
		switch {
		case n <= 0:
			return nil
		case chunk.DroppedBytes > 0:
			chunk.DroppedBytes = n
		case chunk.DamagedBytes > 0:
			chunk.DamagedBytes = n
		default:
			chunk.Data = chunk.Data[:n]
		}
		return handleChunk(chunk)
	}
	for more := true; more && (cursor[0] < end[0] || cursor[1] < end[1]); {
		var err error
		if more, err = h.readLive(ctx, seq, attempt, &cursor, false, within); err != nil {
			return err
		}
	}
	return nil
}

// readLive reads a piece of a running attempt's output after the cursor, passes it to the callback, and moves the
// cursor. attempt is the attempt's number; 0 means the attempt that runs now. If follow is true, it waits for new
// output. more is false if the attempt no longer runs or all output was read.
func (h *API) readLive(ctx context.Context, seq int64, attempt int, cursor *output.Cursor, follow bool,
	handleChunk func(output.Chunk) error) (more bool, err error) {
	chunk, ok, err := h.Router.ReadOutput(ctx, seq, attempt, *cursor, follow)
	if err != nil || !ok {
		return false, err
	}
	if err := h.forEachChunk(ctx, control.ClassManyJobs, decodedChunks(chunk.Data), handleChunk); err != nil {
		return false, err
	}
	before := *cursor
	*cursor = chunk.Cursor
	return !chunk.IsComplete && (follow || before != *cursor), nil
}

// readStored reads the stored output of an attempt after a cursor and passes it to the callback. If tailBytes
// is positive, it reads only the end of each stream: at least this number of bytes. Damaged or missing output
// is passed as a chunk that says so.
func (h *API) readStored(ctx context.Context, seq int64, attempt, tailBytes int, cursor output.Cursor,
	each func(output.Chunk) error) error {
	a, err := readInSlot(ctx, h.UserLimits, control.ClassOneJob,
		func() (queue.Attempt, error) { return h.Store.Attempt(ctx, seq, attempt) })
	if err != nil {
		return err
	}
	if a.OutputBytes < 0 {
		setting := "retention_output"
		if a.OutputBytes == queue.OutputOverQuota {
			setting = "max_bytes_per_user"
		}
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d was removed to make room (setting %s)", a.Number,
			setting)
	}
	sendRest := func(chunk output.Chunk) error {
		if chunk, hasRest := chunkAfter(chunk, &cursor); hasRest {
			return each(chunk)
		}
		return nil
	}
	if a.OutputRef == "" {
		// A small output is stored in the attempt's row instead of a file.
		return h.forEachChunk(ctx, control.ClassOneJob, decodedChunks(a.Output), sendRest)
	}
	f, err := h.Router.OpenAttemptOutput(ctx, &a)
	if errors.Is(err, os.ErrNotExist) {
		if a.Node != "" && a.Node != h.Node {
			return queue.Errorf(queue.CodeNotFound, "attempt %d has lost its output, which was on node %s", a.Number, a.Node)
		}
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d no longer exists", a.Number)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// Read only up to the recorded size, since the account that the job ran as may have appended to the file.
	size := a.OutputBytes
	if tailBytes > 0 && size > 0 {
		class := control.ClassManyJobs
		if tailBytes <= maxShowTailBytes {
			class = control.ClassOneJob
		}
		last := chunkSeq(func(each func(output.Chunk) error) error { return output.DecodeTail(f, size, tailBytes, each) })
		err = h.forEachChunk(ctx, class, last, sendRest)
		if !errors.Is(err, output.ErrDamaged) {
			return err
		}
	}
	all := chunkSeq(func(each func(output.Chunk) error) error { return output.DecodeFile(f, size, each) })
	return h.forEachChunk(ctx, control.ClassManyJobs, all, sendRest)
}

// chunkAfter returns the part of a chunk after a cursor. hasRest is false if the whole chunk is before the
// cursor. chunkAfter subtracts the skipped bytes from the cursor, so that the cursor is valid for the next
// chunk.
func chunkAfter(chunk output.Chunk, c *output.Cursor) (rest output.Chunk, hasRest bool) {
	length := chunk.Length()
	skip := min(c[chunk.Stream], length)
	c[chunk.Stream] -= skip
	return chunk.WithoutFirst(skip), skip < length
}

// decodedChunks returns the chunks of an output that is encoded in memory.
func decodedChunks(encoded []byte) iter.Seq2[output.Chunk, error] {
	return chunkSeq(func(handleChunk func(output.Chunk) error) error {
		return output.Decode(bytes.NewReader(encoded), handleChunk)
	})
}

// chunkSeq converts a decoder to a sequence of chunks. The decoder calls a function for each chunk.
func chunkSeq(decode func(handleChunk func(output.Chunk) error) error) iter.Seq2[output.Chunk, error] {
	return func(yield func(output.Chunk, error) bool) {
		enough := errors.New("enough")
		err := decode(func(c output.Chunk) error {
			if !yield(c, nil) {
				return enough
			}
			return nil
		})
		if err != nil && !errors.Is(err, enough) {
			yield(output.Chunk{}, err)
		}
	}
}

// chunkOverheadBytes is the memory that a chunk needs in addition to its data, in bytes.
const chunkOverheadBytes = 64

// forEachChunk passes every chunk to the callback. It gives back its read slot after a bounded number of
// chunks and waits for a new one, so that other requests can read in between.
func (h *API) forEachChunk(ctx context.Context, slotClass control.SlotClass, chunks iter.Seq2[output.Chunk, error],
	handleChunk func(output.Chunk) error) error {
	next, stop := iter.Pull2(chunks)
	defer stop()
	for more := true; more; {
		// Stop when the client has disconnected.
		if err := ctx.Err(); err != nil {
			return err
		}
		err := h.UserLimits.RunStreamStep(ctx, slotClass, func() error {
			for cost := 0; cost < bytesPerReadSlot; {
				c, err, ok := next()
				if more = ok; !ok || err != nil {
					return err
				}
				if err := handleChunk(c); err != nil {
					return err
				}
				cost += len(c.Data) + chunkOverheadBytes
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
