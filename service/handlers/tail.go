package handlers

import (
	"bytes"
	"context"
	"errors"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// firstTail is how many bytes at the end of each stream the first search for the last lines reads. Each
// further search reads tailGrowth times as many bytes as the one before.
const (
	firstTail  = 64 << 10
	tailGrowth = 8
	// liveTail is how many bytes of each stream of a running attempt the first search reads, in one request.
	liveTail = output.InMemory / 2
)

// seekTail moves the cursor to the beginning of the last lines of the attempt's current output. If the
// runner does not answer and may not have started the attempt, a follower gets the whole output, because
// another runner may then execute the attempt.
func (f *follower) seekTail(ctx context.Context, j *queue.Job, lines int) error {
	if f.h.outputReader.isRunning(ctx, j, f.n) {
		err := f.seekLiveTail(ctx, j, lines)
		if f.p.Follow && j.State != queue.Processing && errors.Is(err, queue.ErrUnavailable) {
			f.cursor, err = output.Cursor{}, nil
		}
		return err
	}
	for f.tail = firstTail; ; f.tail *= tailGrowth {
		read := func(each func(output.Chunk) error) error {
			return f.h.outputReader.readStored(ctx, j.Seq, f.n, f.tail, output.Cursor{}, each)
		}
		var bytes [2]int
		err := read(func(c output.Chunk) error {
			bytes[c.Stream] += len(c.Data)
			return nil
		})
		found := false
		if err == nil {
			earlier := [2]bool{bytes[0] >= f.tail, bytes[1] >= f.tail}
			found, err = f.seek(ctx, lines, output.Cursor{}, earlier, read)
		}
		if errors.Is(err, queue.ErrNotFound) && f.n > j.Runs {
			return nil // no lines: the attempt has ended, and its end is about to be recorded
		}
		if err != nil || found {
			return err
		}
	}
}

// seekLiveTail is like seekTail, for a running attempt. The first search reads all its bytes in one
// request. If the attempt prints fast, the runner may have dropped these bytes before a second request.
func (f *follower) seekLiveTail(ctx context.Context, j *queue.Job, lines int) error {
	end := output.Cursor{-liveTail, -liveTail}
	var last []output.Chunk
	var length output.Cursor
	if _, err := f.h.outputReader.readLive(ctx, j.Seq, &end, false, func(c output.Chunk) error {
		c.Data = bytes.Clone(c.Data) // the buffer may be reused for the next chunk
		last = append(last, c)
		length[c.Stream] += c.Length()
		return nil
	}); err != nil {
		return err
	}
	begin := output.Cursor{max(0, end[0]-length[0]), max(0, end[1]-length[1])}
	earlier := [2]bool{begin[0] > 0, begin[1] > 0}
	found, err := f.seek(ctx, lines, output.Cursor{}, earlier, func(each func(output.Chunk) error) error {
		for _, c := range last {
			if err := each(c); err != nil {
				return err
			}
		}
		return nil
	})
	if found && f.p.Follow {
		f.cursor = output.Cursor{f.cursor[0] + begin[0], f.cursor[1] + begin[1]}
	} else if found {
		f.last = last
	}
	if err != nil || found {
		return err
	}
	if f.end, err = f.h.outputReader.liveEnd(ctx, j.Seq); err != nil {
		return err
	}
	for tail := firstTail; ; tail *= tailGrowth {
		begin := output.Cursor{max(0, f.end[0]-int64(tail)), max(0, f.end[1]-int64(tail))}
		if int64(tail) >= j.OutputLimit { // no more output than this is kept, so read all of it
			begin = output.Cursor{}
		}
		earlier := [2]bool{begin[0] > 0, begin[1] > 0}
		found, err := f.seek(ctx, lines, begin, earlier, func(each func(output.Chunk) error) error {
			return f.h.outputReader.readNow(ctx, j.Seq, begin, f.end, each)
		})
		if err != nil || found {
			return err
		}
	}
}

// seek moves f.cursor to the beginning of the last lines of an output. The function read passes the output
// to seek, beginning at the cursor at. earlier says for each stream whether earlier output may exist. If so, it
// is unknown where the first line of that stream began. seek reports whether it found enough lines, or all
// lines there are. It keeps only the positions of at most lines line beginnings.
func (f *follower) seek(ctx context.Context, lines int, at output.Cursor, earlier [2]bool,
	read func(each func(output.Chunk) error) error) (found bool, err error) {
	cut := [2]bool{earlier[0] && f.wants(output.Stdout), earlier[1] && f.wants(output.Stderr)}
	// One more than the lines, because the last beginning of a line may be the end of the output.
	begins := &ring{ctx: ctx, most: lines + 1}
	last := at // position after the last byte that the request selects
	if cut == [2]bool{} {
		begins.add(at)
	}
	unseen := cut
	err = read(func(c output.Chunk) error {
		if unseen[c.Stream] {
			unseen[c.Stream] = false
			begins.forget()
		}
		wanted, from := f.wanted(c), at[c.Stream]
		at[c.Stream] += c.Length()
		if !wanted {
			return nil
		}
		for k, b := range c.Data {
			if b == '\n' {
				line := at
				line[c.Stream] = from + int64(k) + 1
				begins.add(line)
			}
		}
		last = at
		return nil
	})
	if err != nil {
		return false, err
	}
	n := lines
	if len(begins.list) > 0 && begins.last() == last {
		n++
	}
	switch f.cursor = at; {
	case lines == 0:
	case len(begins.list) < n && cut != [2]bool{}:
		return false, nil
	default:
		f.cursor = begins.back(n)
	}
	return true, nil
}

// ring keeps the most recent cursors that were added.
type ring struct {
	ctx  context.Context // context of the request to which the memory is charged
	most int
	list []output.Cursor
	next int // index of the oldest cursor, which is overwritten next once the ring is full
}

// cursorBytes is the size of a cursor in bytes.
const cursorBytes = 16

func (r *ring) add(c output.Cursor) {
	if len(r.list) == r.most {
		r.list[r.next] = c
		r.next = (r.next + 1) % r.most
		return
	}
	room := cap(r.list)
	r.list = append(r.list, c)
	control.ChargeBytes(r.ctx, (cap(r.list)-room)*cursorBytes)
}

// forget removes all cursors.
func (r *ring) forget() { r.list, r.next = r.list[:0], 0 }

func (r *ring) last() output.Cursor { return r.back(1) }

// back returns the n-th cursor from the end, or the oldest one that is kept.
func (r *ring) back(n int) output.Cursor {
	n = min(n, len(r.list))
	return r.list[(r.next+len(r.list)-n)%len(r.list)]
}
