package handlers

import (
	"bytes"
	"context"
	"errors"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// The search for the last lines first reads initialTailBytes bytes at the end of each stream. If these bytes contain
// too few lines, the search reads tailGrowthFactor times as many bytes, and so on.
const (
	initialTailBytes = 64 << 10
	tailGrowthFactor = 8
	// initialLiveTailBytes is how many bytes of each stream of a running attempt the first search reads, in one request.
	initialLiveTailBytes = output.MaxMemoryBytes / 2
)

// seekToLastLines moves the cursor to the beginning of the last lineCount lines of the attempt's output. If the runner
// does not respond, and the client follows the job, seekToLastLines leaves the cursor at the beginning of the output.
// The client then gets the whole output once it is available.
func (l *outputSender) seekToLastLines(ctx context.Context, j *queue.Job, lineCount int) error {
	if l.isAttemptRunning(ctx, j, l.attemptNumber) {
		err := l.seekToLiveLastLines(ctx, j, lineCount)
		if l.params.Follow && j.State != queue.Processing && errors.Is(err, queue.ErrUnavailable) {
			l.readCursor, err = output.StreamCursor{}, nil
		}
		return err
	}
	for l.tailBytesPerStream = initialTailBytes; ; l.tailBytesPerStream *= tailGrowthFactor {
		read := func(handleChunk chunkHandler) error {
			return l.readStoredOutput(ctx, j.Seq, l.attemptNumber, l.tailBytesPerStream, output.StreamCursor{}, handleChunk)
		}
		var streamBytes [2]int
		err := read(func(c output.Chunk) error {
			streamBytes[c.Stream] += len(c.Data)
			return nil
		})
		found := false
		if err == nil {
			earlier := [2]bool{streamBytes[0] >= l.tailBytesPerStream, streamBytes[1] >= l.tailBytesPerStream}
			found, err = l.searchLastLines(ctx, lineCount, output.StreamCursor{}, earlier, read)
		}
		if errors.Is(err, queue.ErrNotFound) && l.attemptNumber > j.StartedAttempts {
			return nil // the attempt has ended, but the store has no output yet
		}
		if err != nil || found {
			return err
		}
	}
}

// seekToLiveLastLines does the work of seekToLastLines for a running attempt. Its first search reads all bytes that it
// needs in one request, because the runner may discard them before a second request.
func (l *outputSender) seekToLiveLastLines(ctx context.Context, j *queue.Job, lineCount int) error {
	end := output.StreamCursor{-initialLiveTailBytes, -initialLiveTailBytes}
	var lastChunks []output.Chunk
	var readLengths output.StreamCursor
	if _, err := l.readLiveOutput(ctx, j.Seq, l.attemptNumber, &end, false, func(c output.Chunk) error {
		c.Data = bytes.Clone(c.Data) // the buffer may be reused for the next chunk
		lastChunks = append(lastChunks, c)
		readLengths[c.Stream] += c.ByteLength()
		return nil
	}); err != nil {
		return err
	}
	begin := output.StreamCursor{max(0, end[0]-readLengths[0]), max(0, end[1]-readLengths[1])}
	earlier := [2]bool{begin[0] > 0, begin[1] > 0}
	found, err := l.searchLastLines(ctx, lineCount, output.StreamCursor{}, earlier,
		func(handleChunk chunkHandler) error {
			for _, c := range lastChunks {
				if err := handleChunk(c); err != nil {
					return err
				}
			}
			return nil
		})
	if found && l.params.Follow {
		l.readCursor = output.StreamCursor{l.readCursor[0] + begin[0], l.readCursor[1] + begin[1]}
	} else if found {
		l.keptTailChunks = lastChunks
	}
	if err != nil || found {
		return err
	}
	if l.tailSearchEndCursor, err = l.liveOutputEnd(ctx, j.Seq, l.attemptNumber); err != nil {
		return err
	}
	for tail := initialTailBytes; ; tail *= tailGrowthFactor {
		begin := output.StreamCursor{max(0, l.tailSearchEndCursor[0]-int64(tail)),
			max(0, l.tailSearchEndCursor[1]-int64(tail))}
		if int64(tail) >= j.OutputLimitBytes { // at most j.OutputLimitBytes bytes are kept, so read everything
			begin = output.StreamCursor{}
		}
		earlier := [2]bool{begin[0] > 0, begin[1] > 0}
		found, err := l.searchLastLines(ctx, lineCount, begin, earlier, func(handleChunk chunkHandler) error {
			return l.readLiveOutputUpTo(ctx, j.Seq, l.attemptNumber, begin, l.tailSearchEndCursor, handleChunk)
		})
		if err != nil || found {
			return err
		}
	}
}

// searchLastLines moves l.readCursor to the beginning of the last lineCount lines of an output. It calls readOutput to
// read the output after searchStart. hasEarlierOutput says for each stream whether there may be output before
// searchStart. If there is, the first line that is read may be incomplete. searchLastLines returns false if it did not
// find enough lines.
func (l *outputSender) searchLastLines(ctx context.Context, lineCount int, searchStart output.StreamCursor,
	hasEarlierOutput [2]bool,
	readOutput func(chunkHandler) error) (found bool, err error) {
	cut := [2]bool{hasEarlierOutput[0] && l.selectsStream(output.Stdout),
		hasEarlierOutput[1] && l.selectsStream(output.Stderr)}
	// The capacity is lineCount+1, because the newest cursor may be the end of the output, where no line begins.
	begins := &cursorRing{ctx: ctx, capacity: lineCount + 1}
	last := searchStart // position after the last byte that the request selects
	if cut == [2]bool{} {
		begins.add(searchStart)
	}
	unseen := cut
	atLineStart := cut == [2]bool{}
	err = readOutput(func(c output.Chunk) error {
		if unseen[c.Stream] {
			unseen[c.Stream] = false
			begins.clear()
			atLineStart = false
		}
		wanted, from, chunkStart := l.selectsChunk(c), searchStart[c.Stream], searchStart
		searchStart[c.Stream] += c.ByteLength()
		if !wanted || c.ByteLength() == 0 {
			return nil
		}
		isGap := len(c.Data) == 0
		if isGap { // clients print a line about a gap
			if !atLineStart {
				begins.add(chunkStart)
			}
			begins.add(searchStart)
		}
		for k, b := range c.Data {
			if b == '\n' {
				line := searchStart
				line[c.Stream] = from + int64(k) + 1
				begins.add(line)
			}
		}
		atLineStart = isGap || bytes.HasSuffix(c.Data, []byte("\n"))
		last = searchStart
		return nil
	})
	if err != nil {
		return false, err
	}
	n := lineCount
	if len(begins.cursors) > 0 && begins.newest() == last {
		n++
	}
	switch l.readCursor = searchStart; {
	case lineCount == 0:
	case len(begins.cursors) < n && cut != [2]bool{}:
		return false, nil
	default:
		l.readCursor = begins.nthFromEnd(n)
	}
	return true, nil
}

// cursorRing is a ring buffer of the last cursors that were added, up to its capacity.
type cursorRing struct {
	ctx         context.Context // context of the request; the memory counts for the user of the request
	capacity    int
	cursors     []output.StreamCursor
	oldestIndex int // index of the oldest cursor, which is overwritten next once the ring is full
}

// bytesPerCursor is the size of a cursor in bytes.
const bytesPerCursor = 16

// add adds a cursor. If the ring is full, this cursor replaces the oldest one.
func (r *cursorRing) add(c output.StreamCursor) {
	if len(r.cursors) == r.capacity {
		r.cursors[r.oldestIndex] = c
		r.oldestIndex = (r.oldestIndex + 1) % r.capacity
		return
	}
	room := cap(r.cursors)
	r.cursors = append(r.cursors, c)
	control.ChargeBytesToUser(r.ctx, (cap(r.cursors)-room)*bytesPerCursor)
}

// clear removes all cursors.
func (r *cursorRing) clear() { r.cursors, r.oldestIndex = r.cursors[:0], 0 }

func (r *cursorRing) newest() output.StreamCursor { return r.nthFromEnd(1) }

// nthFromEnd returns the n-th cursor from the end. If the ring contains fewer than n cursors, it returns the oldest
// one.
func (r *cursorRing) nthFromEnd(n int) output.StreamCursor {
	n = min(n, len(r.cursors))
	return r.cursors[(r.oldestIndex+len(r.cursors)-n)%len(r.cursors)]
}
