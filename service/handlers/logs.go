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

// StreamOutput implements control.API.
func (h *API) StreamOutput(ctx context.Context, p control.JobOutputParams,
	handlePiece func(control.OutputPiece) error) (result control.OutputStreamEnd, err error) {
	j, err := h.findJobForMethod(ctx, "logs", p.ID)
	if err != nil {
		return result, err
	}
	n := p.Attempt
	switch {
	case p.FollowFromFirstAttempt:
		n = 1
	case n == 0:
		n = max(j.StartedAttempts, h.JobRouter.LeasedAttemptNumber(ctx, &j), 1)
	}
	if p.Attempt > max(j.StartedAttempts, h.JobRouter.LeasedAttemptNumber(ctx, &j)) {
		attempts := "attempts"
		if j.StartedAttempts == 1 {
			attempts = "attempt"
		}
		return result, queue.Errorf(queue.CodeNotFound, "job %s has no attempt %d; it has %d %s",
			j.ID, p.Attempt, j.StartedAttempts, attempts)
	}
	f := &outputSender{API: h, params: p, sendPiece: handlePiece, attemptNumber: n, hasTTY: j.TTY}
	if p.LastLineCount != nil {
		if err := f.seekToLastLines(ctx, &j, *p.LastLineCount); err != nil {
			return result, err
		}
	}
	return f.sendAllOutput(ctx, j)
}

// outputSender sends the output of one job to a client. It sends the output of one attempt after another.
type outputSender struct {
	*API
	params             control.JobOutputParams
	sendPiece          func(control.OutputPiece) error
	attemptNumber      int                 // number of the current attempt
	hasTTY             bool                // the job has a terminal
	tailBytesPerStream int                 // bytes to read at the end of each stream; 0 means all
	readCursor         output.StreamCursor // position up to which the attempt's output was read
	// tailSearchEndCursor is the position in the output of a running attempt up to which seekToLastLines has searched for
	// the last lines. Output after this position is new. It is zero if seekToLastLines has not searched this output.
	tailSearchEndCursor output.StreamCursor
	// the last lines, kept here because the runner may discard them before they are sent
	keptTailChunks []output.Chunk
}

// sendAllOutput sends the output of the current attempt from readCursor on. If the client follows the job,
// sendAllOutput also sends the output of later attempts, until the job ends.
func (l *outputSender) sendAllOutput(ctx context.Context, j queue.Job) (control.OutputStreamEnd, error) {
	watching := l.Store.WatchJobs([]int64{j.Seq})
	defer watching.Stop()
	if l.params.Follow {
		defer l.Pool.WatchJobEnd(j.Seq)()
	}
	for {
		// Get this channel before the job's state is read. Otherwise the loop would miss a runner that connects between the
		// two.
		connected := l.Pool.RunnerConnectedSignal()
		var retry <-chan time.Time
		if now, err := l.rereadCompactJob(ctx, &j); err == nil {
			j = now
		} else if l.params.Follow && l.NodeRegistry.IsStoreUnavailable(err) {
			// A job on this node may continue to print while the store is unavailable.
			retry = time.After(cluster.ChangePollInterval)
		} else {
			return control.OutputStreamEnd{}, err
		}
		end := control.OutputStreamEnd{FinalJobState: j.State.String()}
		running := l.JobRouter.LeasedAttemptNumber(ctx, &j)
		switch {
		case l.keptTailChunks != nil:
			return end, l.sendLastLines()
		case j.StartedAttempts >= l.attemptNumber:
			if err := l.readStoredOutput(ctx, j.Seq, l.attemptNumber, l.tailBytesPerStream, l.readCursor,
				l.sendChunk); err != nil {
				return end, err
			}
			if !l.params.Follow || l.params.Attempt != 0 {
				return end, nil
			}
			if l.params.ReportAttemptEnds && (j.StartedAttempts > l.attemptNumber || !j.State.HasEnded()) {
				if err := l.sendPiece(control.OutputPiece{JobID: string(l.params.ID), Attempt: l.attemptNumber,
					PrintedAt: control.Time(j.UpdatedAt), AttemptEnded: true}); err != nil {
					return end, err
				}
			}
			l.attemptNumber, l.tailBytesPerStream, l.readCursor = l.attemptNumber+1, 0, output.StreamCursor{}
			continue
		case running == l.attemptNumber && l.params.Follow:
			more, err := l.readLiveOutput(ctx, j.Seq, l.attemptNumber, &l.readCursor, true, l.sendChunk)
			if err != nil {
				return end, err
			}
			if more {
				continue
			}
		case running == l.attemptNumber:
			return end, l.sendLiveOutput(ctx, &j)
		case !l.params.Follow || j.State.HasEnded():
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

// sendLiveOutput sends the output that a running attempt has printed until now. If seekToLastLines has searched this
// output for the last lines, sendLiveOutput sends only the output up to l.tailSearchEndCursor.
func (l *outputSender) sendLiveOutput(ctx context.Context, j *queue.Job) (err error) {
	if l.tailSearchEndCursor == (output.StreamCursor{}) {
		if l.tailSearchEndCursor, err = l.liveOutputEnd(ctx, j.Seq, l.attemptNumber); err != nil {
			return err
		}
	}
	return l.readLiveOutputUpTo(ctx, j.Seq, l.attemptNumber, l.readCursor, l.tailSearchEndCursor, l.sendChunk)
}

// sendLastLines sends the last lines that seekToLastLines has found and kept in keptTailChunks.
func (l *outputSender) sendLastLines() error {
	for _, c := range l.keptTailChunks {
		if rest, hasRest := chunkAfterCursor(c, &l.readCursor); hasRest {
			if err := l.sendChunk(rest); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunkHandler is a function that gets each chunk of an output.
type chunkHandler = func(output.Chunk) error

// selectsChunk reports whether the request selects a chunk of output. A chunk may represent lost bytes of an unknown
// stream. The bytes may belong to any stream, and were printed at the chunk's time or later. So such a chunk is
// selected unless it is later than the requested period.
func (l *outputSender) selectsChunk(c output.Chunk) bool {
	if c.StreamUnknown {
		return l.params.PrintedBefore == 0 || c.ReadTimeMillis < int64(l.params.PrintedBefore)
	}
	if c.ReadTimeMillis < int64(l.params.PrintedSince) || l.params.PrintedBefore != 0 &&
		c.ReadTimeMillis >= int64(l.params.PrintedBefore) {
		return false
	}
	return l.selectsStream(c.Stream)
}

// selectsStream reports whether the request selects a stream.
func (l *outputSender) selectsStream(s output.Stream) bool {
	// If both fields are set, or neither is, the request selects both streams.
	only := l.params.StdoutOnly != l.params.StderrOnly
	return !only || l.params.StdoutOnly == (s == output.Stdout)
}

// maxOutputPieceBytes is the maximum number of bytes of output in one notification. It is small because a byte of
// output takes up to six bytes in JSON.
const maxOutputPieceBytes = 32 << 10

// sendChunk sends a chunk to the client, in pieces, if the request selects the chunk.
func (l *outputSender) sendChunk(c output.Chunk) error {
	if !l.selectsChunk(c) {
		return nil
	}
	p := newOutputPiece(&c)
	p.JobID, p.Attempt, p.FromTerminal = string(l.params.ID), l.attemptNumber, l.hasTTY
	for rest := c.Data; ; {
		data := rest
		if len(data) > maxOutputPieceBytes {
			data = data[:maxOutputPieceBytes-output.TrailingPartialCharacterBytes(data[:maxOutputPieceBytes])]
		}
		rest = rest[len(data):]
		p.Text, p.NonUTF8Bytes = "", nil
		if utf8.Valid(data) {
			p.Text = string(data)
		} else {
			p.NonUTF8Bytes = data
		}
		if err := l.sendPiece(p); err != nil || len(rest) == 0 {
			return err
		}
	}
}

// newOutputPiece converts a chunk to the form in which clients get it, without the data.
func newOutputPiece(c *output.Chunk) control.OutputPiece {
	p := control.OutputPiece{Stream: "stdout", PrintedAt: control.Time(c.ReadTimeMillis), DroppedBytes: c.DroppedBytes}
	if c.Stream == output.Stderr {
		p.Stream = "stderr"
	}
	if c.DamagedBytes > 0 {
		p.Damage = &control.DamagedRange{StreamOffset: c.StreamOffset, ByteCount: c.DamagedBytes}
	}
	if c.StreamUnknown {
		p.Stream, p.Damage.StreamOffset = "", 0
	}
	return p
}

// readOutputTail reads at least tailBytes bytes at the end of each stream of an attempt's output. For a running
// attempt, it reads all of them in one request. Otherwise the runner, which keeps only the newest output.MaxMemoryBytes
// bytes in memory, could discard some of them between two requests.
func (h *API) readOutputTail(ctx context.Context, j *queue.Job, attemptNumber, tailBytes int,
	handleChunk chunkHandler) error {
	if h.isAttemptRunning(ctx, j, attemptNumber) {
		cursor := &output.StreamCursor{-int64(tailBytes), -int64(tailBytes)}
		_, err := h.readLiveOutput(ctx, j.Seq, attemptNumber, cursor, false, handleChunk)
		return err
	}
	err := h.readStoredOutput(ctx, j.Seq, attemptNumber, tailBytes, output.StreamCursor{}, handleChunk)
	if errors.Is(err, queue.ErrNotFound) {
		return nil // the attempt has ended, but the store has no output yet
	}
	return err
}

// isAttemptRunning reports whether an attempt of a job is running.
func (h *API) isAttemptRunning(ctx context.Context, j *queue.Job, attemptNumber int) bool {
	return attemptNumber > j.StartedAttempts && h.JobRouter.LeasedAttemptNumber(ctx, j) == attemptNumber
}

// liveOutputEnd returns the position after the last byte that a running attempt has printed.
func (h *API) liveOutputEnd(ctx context.Context, jobSeq int64, attemptNumber int) (endCursor output.StreamCursor,
	err error) {
	chunk, ok, err := h.JobRouter.ReadOutput(ctx, jobSeq, attemptNumber, output.StreamCursor{-1, -1}, false)
	if err != nil || !ok {
		return endCursor, err
	}
	return chunk.NextCursor, nil
}

// readLiveOutputUpTo reads the output of a running attempt between the positions cursor and end, and passes it to
// handleChunk. It stops at end, because the attempt may print faster than the caller reads.
func (h *API) readLiveOutputUpTo(ctx context.Context, jobSeq int64, attemptNumber int, startCursor,
	endCursor output.StreamCursor,
	handleChunk chunkHandler) error {
	start := startCursor
	within := func(chunk output.Chunk) error {
		length := chunk.ByteLength()
		n := min(length, endCursor[chunk.Stream]-start[chunk.Stream])
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
	for more := true; more && (startCursor[0] < endCursor[0] || startCursor[1] < endCursor[1]); {
		var err error
		if more, err = h.readLiveOutput(ctx, jobSeq, attemptNumber, &startCursor, false, within); err != nil {
			return err
		}
	}
	return nil
}

// readLiveOutput reads a piece of a running attempt's output after the cursor, passes it to handleChunk, and moves the
// cursor. attempt is the attempt's number; 0 means the attempt that runs now. If follow is true, readLiveOutput waits
// for new output. more is false if the attempt no longer runs or all output was read.
func (h *API) readLiveOutput(ctx context.Context, jobSeq int64, attemptNumber int, cursor *output.StreamCursor,
	waitForOutput bool,
	handleChunk chunkHandler) (more bool, err error) {
	chunk, ok, err := h.JobRouter.ReadOutput(ctx, jobSeq, attemptNumber, *cursor, waitForOutput)
	if err != nil || !ok {
		return false, err
	}
	if err := h.forEachChunkSharingSlots(ctx, control.ClassManyJobsRead, decodedChunks(chunk.Data),
		handleChunk); err != nil {
		return false, err
	}
	before := *cursor
	*cursor = chunk.NextCursor
	return !chunk.IsOutputComplete && (waitForOutput || before != *cursor), nil
}

// readStoredOutput reads the stored output of an attempt after a cursor and passes it to handleChunk. If tailBytes is
// positive, it reads only the end of each stream: at least this number of bytes. For damaged or missing output, it
// passes a chunk that says so.
func (h *API) readStoredOutput(ctx context.Context, jobSeq int64, attemptNumber, tailBytes int,
	cursor output.StreamCursor,
	handleChunk chunkHandler) error {
	a, err := withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() (queue.Attempt, error) { return h.Store.Attempt(ctx, jobSeq, attemptNumber) })
	if err != nil {
		return err
	}
	if a.OutputBytes < 0 {
		setting := "retention_output"
		if a.OutputBytes == queue.OutputRemovedByQuota {
			setting = "max_bytes_per_user"
		}
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d was removed to make room (setting %s)", a.Number,
			setting)
	}
	sendRest := func(chunk output.Chunk) error {
		if chunk, hasRest := chunkAfterCursor(chunk, &cursor); hasRest {
			return handleChunk(chunk)
		}
		return nil
	}
	if a.OutputFileRef == "" {
		// A small output is stored in the attempt's row instead of a file.
		return h.forEachChunkSharingSlots(ctx, control.ClassOneJobRead, decodedChunks(a.Output), sendRest)
	}
	f, err := h.JobRouter.OpenAttemptOutput(ctx, &a)
	if errors.Is(err, os.ErrNotExist) {
		if a.Node != "" && a.Node != h.NodeName {
			return queue.Errorf(queue.CodeNotFound, "attempt %d has lost its output, which was on node %s", a.Number, a.Node)
		}
		return queue.Errorf(queue.CodeNotFound, "the output of attempt %d no longer exists", a.Number)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// Read only up to the recorded size, because the account that the job ran as may have appended to the file.
	size := a.OutputBytes
	if tailBytes > 0 && size > 0 {
		class := control.ClassManyJobsRead
		if tailBytes <= maxShownTailBytes {
			class = control.ClassOneJobRead
		}
		last := chunksFromDecoder(func(each chunkHandler) error {
			return output.DecodeTail(f, size, tailBytes, each)
		})
		err = h.forEachChunkSharingSlots(ctx, class, last, sendRest)
		if !errors.Is(err, output.ErrOutputDamaged) {
			return err
		}
	}
	all := chunksFromDecoder(func(each chunkHandler) error { return output.DecodeFile(f, size, each) })
	return h.forEachChunkSharingSlots(ctx, control.ClassManyJobsRead, all, sendRest)
}

// chunkAfterCursor returns the part of a chunk after a cursor. hasRest is false if the whole chunk is before the
// cursor. chunkAfterCursor subtracts the skipped bytes from the cursor. So the caller can use the same cursor for the
// next chunk.
func chunkAfterCursor(chunk output.Chunk, cursor *output.StreamCursor) (rest output.Chunk, hasRest bool) {
	length := chunk.ByteLength()
	skip := min(cursor[chunk.Stream], length)
	cursor[chunk.Stream] -= skip
	return chunk.WithoutFirstBytes(skip), skip < length
}

// decodedChunks returns the chunks of an output that is encoded in memory.
func decodedChunks(encoded []byte) iter.Seq2[output.Chunk, error] {
	return chunksFromDecoder(func(handleChunk chunkHandler) error {
		return output.Decode(bytes.NewReader(encoded), handleChunk)
	})
}

// chunksFromDecoder converts a decoder to a sequence of chunks. The decoder passes each chunk to the function that it
// gets.
func chunksFromDecoder(decode func(chunkHandler) error) iter.Seq2[output.Chunk, error] {
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

// chunkMemoryOverheadBytes is the memory that a chunk needs in addition to its data, in bytes.
const chunkMemoryOverheadBytes = 64

// forEachChunkSharingSlots passes every chunk to handleChunk. After a bounded number of chunks, it releases its read
// slot and waits for a new one, so that other requests can read in between.
func (h *API) forEachChunkSharingSlots(ctx context.Context, slotClass control.HeavyWorkClass,
	chunks iter.Seq2[output.Chunk, error],
	handleChunk chunkHandler) error {
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
				cost += len(c.Data) + chunkMemoryOverheadBytes
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
