package handlers

import (
	"bytes"
	"context"
	"errors"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// The search for the last lines first reads firstTailBytes bytes at the end of each stream. If these contain
// too few lines, it reads tailGrowthFactor times as many bytes, and so on.
const (
	firstTailBytes   = 64 << 10
	tailGrowthFactor = 8
	// liveTailBytes is how many bytes of each stream of a running attempt the first search reads, in one request.
	liveTailBytes = output.MaxMemoryBytes / 2
)

// seekTail moves the cursor to the beginning of the last lines of the attempt's output. If the runner does
// not respond, and the client follows the job, seekTail leaves the cursor at the beginning, so that the
// client gets the whole output once it is available.
func (l *logSender) seekTail(ctx context.Context, j *queue.Job, lines int) error {
	if l.api.isRunning(ctx, j, l.attemptNumber) {
		err := l.seekLiveTail(ctx, j, lines)
		if l.params.Follow && j.State != queue.Processing && errors.Is(err, queue.ErrUnavailable) {
			l.cursor, err = output.Cursor{}, nil
		}
		return err
	}
	for l.tailBytes = firstTailBytes; ; l.tailBytes *= tailGrowthFactor {
		read := func(handleChunk func(output.Chunk) error) error {
			return l.api.readStored(ctx, j.Seq, l.attemptNumber, l.tailBytes, output.Cursor{}, handleChunk)
		}
		var streamBytes [2]int
		err := read(func(c output.Chunk) error {
			streamBytes[c.Stream] += len(c.Data)
			return nil
		})
		found := false
		if err == nil {
			earlier := [2]bool{streamBytes[0] >= l.tailBytes, streamBytes[1] >= l.tailBytes}
			found, err = l.seekLines(ctx, lines, output.Cursor{}, earlier, read)
		}
		if errors.Is(err, queue.ErrNotFound) && l.attemptNumber > j.StartedAttempts {
			return nil // the attempt has ended, but the store has no output yet
		}
		if err != nil || found {
			return err
		}
	}
}

// seekLiveTail does the work of seekTail for a running attempt. Its first search reads all bytes that it
// needs in one request, because the runner may discard them before a second request.
func (l *logSender) seekLiveTail(ctx context.Context, j *queue.Job, lines int) error {
	end := output.Cursor{-liveTailBytes, -liveTailBytes}
	var lastChunks []output.Chunk
	var readLengths output.Cursor
	if _, err := l.api.readLive(ctx, j.Seq, l.attemptNumber, &end, false, func(c output.Chunk) error {
		c.Data = bytes.Clone(c.Data) // the buffer may be reused for the next chunk
		lastChunks = append(lastChunks, c)
		readLengths[c.Stream] += c.Length()
		return nil
	}); err != nil {
		return err
	}
	begin := output.Cursor{max(0, end[0]-readLengths[0]), max(0, end[1]-readLengths[1])}
	earlier := [2]bool{begin[0] > 0, begin[1] > 0}
	found, err := l.seekLines(ctx, lines, output.Cursor{}, earlier, func(handleChunk func(output.Chunk) error) error {
		for _, c := range lastChunks {
			if err := handleChunk(c); err != nil {
				return err
			}
		}
		return nil
	})
	if found && l.params.Follow {
		l.cursor = output.Cursor{l.cursor[0] + begin[0], l.cursor[1] + begin[1]}
	} else if found {
		l.lastChunks = lastChunks
	}
	if err != nil || found {
		return err
	}
	if l.searchedEnd, err = l.api.liveOutputEnd(ctx, j.Seq, l.attemptNumber); err != nil {
		return err
	}
	for tail := firstTailBytes; ; tail *= tailGrowthFactor {
		begin := output.Cursor{max(0, l.searchedEnd[0]-int64(tail)), max(0, l.searchedEnd[1]-int64(tail))}
		if int64(tail) >= j.OutputLimit { // at most j.OutputLimit bytes are kept, so read everything
			begin = output.Cursor{}
		}
		earlier := [2]bool{begin[0] > 0, begin[1] > 0}
		found, err := l.seekLines(ctx, lines, begin, earlier, func(handleChunk func(output.Chunk) error) error {
			return l.api.readUpTo(ctx, j.Seq, l.attemptNumber, begin, l.searchedEnd, handleChunk)
		})
		if err != nil || found {
			return err
		}
	}
}

// seekLines moves l.cursor to the beginning of the last lines of an output. It calls read to read the output
// after position. hasEarlierOutput says for each stream whether there may be output before position; the
// first line that is read may then be incomplete. seekLines returns false if it did not find enough lines.
func (l *logSender) seekLines(ctx context.Context, lines int, position output.Cursor, hasEarlierOutput [2]bool,
	read func(handleChunk func(output.Chunk) error) error) (found bool, err error) {
	cut := [2]bool{hasEarlierOutput[0] && l.selectsStream(output.Stdout),
		hasEarlierOutput[1] && l.selectsStream(output.Stderr)}
	// One more than lines, because the newest cursor may be the end of the output, where no line begins.
	begins := &cursorRing{ctx: ctx, capacity: lines + 1}
	last := position // position after the last byte that the request selects
	if cut == [2]bool{} {
		begins.add(position)
	}
	unseen := cut
	err = read(func(c output.Chunk) error {
		if unseen[c.Stream] {
			unseen[c.Stream] = false
			begins.clear()
		}
		wanted, from := l.selectsChunk(c), position[c.Stream]
		position[c.Stream] += c.Length()
		if !wanted {
			return nil
		}
		for k, b := range c.Data {
			if b == '\n' {
				line := position
				line[c.Stream] = from + int64(k) + 1
				begins.add(line)
			}
		}
		last = position
		return nil
	})
	if err != nil {
		return false, err
	}
	n := lines
	if len(begins.cursors) > 0 && begins.newest() == last {
		n++
	}
	switch l.cursor = position; {
	case lines == 0:
	case len(begins.cursors) < n && cut != [2]bool{}:
		return false, nil
	default:
		l.cursor = begins.fromEnd(n)
	}
	return true, nil
}

// cursorRing is a ring buffer of the last cursors that were added, up to its capacity.
type cursorRing struct {
	ctx      context.Context // context of the request; the memory counts for the user of the request
	capacity int
	cursors  []output.Cursor
	oldest   int // index of the oldest cursor, which is overwritten next once the ring is full
}

// cursorBytes is the size of a cursor in bytes.
const cursorBytes = 16

// add adds a cursor. If the ring is full, this cursor replaces the oldest one.
func (r *cursorRing) add(c output.Cursor) {
	if len(r.cursors) == r.capacity {
		r.cursors[r.oldest] = c
		r.oldest = (r.oldest + 1) % r.capacity
		return
	}
	room := cap(r.cursors)
	r.cursors = append(r.cursors, c)
	control.ChargeBytes(r.ctx, (cap(r.cursors)-room)*cursorBytes)
}

// clear removes all cursors.
func (r *cursorRing) clear() { r.cursors, r.oldest = r.cursors[:0], 0 }

func (r *cursorRing) newest() output.Cursor { return r.fromEnd(1) }

// fromEnd returns the n-th cursor from the end. If fewer are kept, it returns the oldest one.
func (r *cursorRing) fromEnd(n int) output.Cursor {
	n = min(n, len(r.cursors))
	return r.cursors[(r.oldest+len(r.cursors)-n)%len(r.cursors)]
}
