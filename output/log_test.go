package output_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/output"
)

// fileCreatorIn returns a function that creates the file of a large log in a directory.
func fileCreatorIn(dir string) func() (*os.File, error) {
	return func() (*os.File, error) { return os.CreateTemp(dir, "out") }
}

// readRemainingChunks reads the chunks after a cursor, at most maxBytes with each call of Read.
func readRemainingChunks(t interface{ Fatal(...any) }, l *output.Log, cursor *output.StreamCursor,
	maxBytes int) (chunks []output.Chunk) {
	for {
		some, next, _, err := l.Read(*cursor, maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, some...)
		if next == *cursor {
			return chunks
		}
		*cursor = next
	}
}

// streamTexts returns the text of each stream. A gap is written as its size in brackets.
func streamTexts(chunks []output.Chunk) (s [2]string) {
	for _, c := range chunks {
		if c.DroppedBytes > 0 {
			s[c.Stream] += fmt.Sprintf("[%d]", c.DroppedBytes)
		}
		s[c.Stream] += string(c.Data)
	}
	return s
}

// A log keeps the first bytes of each stream, up to half of the limit, and the last bytes, up to the other half of the
// limit. For all sizes of writes, the gap between these parts has the size of the missing bytes.
func TestLogKeepsHeadAndTail(t *testing.T) {
	for _, c := range []struct {
		limit int64
		in    string
		want  string
	}{
		{10, "", ""}, {10, "0123456789", "0123456789"}, {10, "0123456789a", "01234[1]6789a"},
		{10, "0123456789abcdefghij", "01234[10]fghij"},
		{11, "0123456789a", "0123456789a"}, {11, "0123456789ab", "012345[1]789ab"}, {1, "abc", "a[2]"}, {0, "abc", "[3]"},
		{2, "abc", "a[1]c"},
	} {
		for _, step := range []int{1, 3, len(c.in) + 1} {
			l := output.NewLog(c.limit, fileCreatorIn(t.TempDir()))
			for part := range slices.Chunk([]byte(c.in), step) {
				l.Append(output.Stderr, 1, part)
			}
			l.Close()
			var cursor output.StreamCursor
			got := streamTexts(readRemainingChunks(t, l, &cursor, 1<<20))
			if got != [2]string{"", c.want} {
				t.Errorf("limit %d, %q by %d: got %q, want %q", c.limit, c.in, step, got, c.want)
			}
			if kept := int64(len(c.in)) - l.DroppedBytes(); kept != l.KeptBytes() || kept > c.limit {
				t.Errorf("limit %d, %q: %d kept, %d dropped", c.limit, c.in, l.KeptBytes(), l.DroppedBytes())
			}
			l.Discard()
		}
	}
}

// Reading returns the output of both streams in the order in which it arrived.
func TestReadReturnsStreamsInArrivalOrder(t *testing.T) {
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	var want []string
	for i := range 50 {
		s := output.Stream(i % 2)
		l.Append(s, int64(i), fmt.Appendf(nil, "%d;", i))
		want = append(want, fmt.Sprintf("%d/%d %d;", s, i, i))
	}
	var c output.StreamCursor
	var got []string
	for _, chunk := range readRemainingChunks(t, l, &c, 1<<20) {
		got = append(got, fmt.Sprintf("%d/%d %s", chunk.Stream, chunk.ReadTimeMillis, chunk.Data))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got the pieces %q\nwant %q", got, want)
	}
}

// Reading allocates memory only for the chunks and for their bytes, because each job's output is read at least once.
func TestReadAllocatesOnlyChunks(t *testing.T) {
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	l.Append(output.Stdout, 0, []byte("done\n"))
	l.Close()
	if n := testing.AllocsPerRun(100, func() { l.Read(output.StreamCursor{}, 1<<20) }); n > 2 {
		t.Errorf("a call of Read allocates %v times, want 2 times", n)
	}
}

// A log that exceeds MaxMemoryBytes is stored in one file. Discard removes that file.
func TestLargeLogIsStoredInFile(t *testing.T) {
	dir := t.TempDir()
	l := output.NewLog(1<<20, fileCreatorIn(dir))
	files := func() int {
		list, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	l.Append(output.Stdout, 1, bytes.Repeat([]byte("a"), output.MaxMemoryBytes))
	if files() != 0 {
		t.Error("a log that fits in memory has a file")
	}
	l.Append(output.Stdout, 1, []byte("b"))
	if files() != 1 {
		t.Errorf("got %d files, want 1", files())
	}
	for range 100 {
		l.Append(output.Stderr, 1, bytes.Repeat([]byte("c"), 100_000))
	}
	if files() != 1 || l.KeptBytes() != output.MaxMemoryBytes+1+1<<20 {
		t.Errorf("got %d files, %d bytes kept", files(), l.KeptBytes())
	}
	l.Close()
	var c output.StreamCursor
	want := [2]string{strings.Repeat("a", output.MaxMemoryBytes) + "b",
		strings.Repeat("c", 1<<19) + fmt.Sprintf("[%d]", 10_000_000-1<<20) + strings.Repeat("c", 1<<19)}
	if got := streamTexts(readRemainingChunks(t, l, &c, 100_000)); got != want {
		t.Errorf("the streams have %d and %d bytes, or differ from the %d and %d bytes that were written",
			len(got[0]), len(got[1]), len(want[0]), len(want[1]))
	}
	if l.Discard(); files() != 0 {
		t.Error("the file of a discarded log still exists")
	}
}

// After Discard, Read returns ErrDiscarded instead of a gap. A gap would mean that output is lost. But before Discard,
// the output was stored elsewhere.
func TestReadOfDiscardedLogFails(t *testing.T) {
	l := output.NewLog(1<<20, nil)
	l.Append(output.Stdout, 1, []byte("kept"))
	l.Close()
	l.Discard()
	if chunks, _, _, err := l.Read(output.StreamCursor{}, 100); !errors.Is(err, output.ErrDiscarded) {
		t.Errorf("got %+v, %v, want %v", chunks, err, output.ErrDiscarded)
	}
}

// Discard wakes the readers that wait for a change. Later readers do not wait.
func TestDiscardWakesReaders(t *testing.T) {
	l := output.NewLog(1<<20, nil)
	changed := l.ChangeSignal()
	l.Discard()
	select {
	case <-changed:
	default:
		t.Error("a waiting reader was not woken")
	}
	select {
	case <-l.ChangeSignal():
	default:
		t.Error("a later reader waits")
	}
}

// Bytes that cannot be stored leave a gap of the exact size. Earlier bytes are kept.
func TestUnstorableBytesLeaveGap(t *testing.T) {
	l := output.NewLog(1<<20, func() (*os.File, error) { return nil, errors.New("no space") })
	l.Append(output.Stdout, 1, []byte("kept"))
	l.Append(output.Stdout, 2, bytes.Repeat([]byte("x"), 100_000))
	l.Append(output.Stdout, 3, []byte("and on"))
	l.Close()
	var c output.StreamCursor
	if got, want := streamTexts(readRemainingChunks(t, l, &c, 1<<20)), "kept[100000]and on"; got[0] != want {
		t.Errorf("got %q, want %q", got[0], want)
	}
}

// logModel is a simple log that keeps all bytes in memory. It computes which bytes a Log must keep.
type logModel struct {
	limitBytes   int       // limit of the Log for each stream
	writtenBytes [2][]byte // all bytes of each stream
}

// mustKeepByte reports whether a Log with the same bytes must keep the byte at a position of a stream.
func (m *logModel) mustKeepByte(stream, streamOffset int) bool {
	n := len(m.writtenBytes[stream])
	return streamOffset < (m.limitBytes+1)/2 || streamOffset >= n-m.limitBytes/2 && streamOffset < n
}

// A reader that follows a growing log gets each byte at most once and in order. It gets every byte that the log still
// keeps at the end, and gaps for exactly the other bytes. A reader that starts later gets the same bytes and gaps.
func TestFollowingReaderGetsEachByteOnce(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		m := logModel{limitBytes: rapid.SampledFrom([]int{0, 1, 7, 100, 5000, 200_000}).Draw(t, "limit")}
		l := output.NewLog(int64(m.limitBytes), fileCreatorIn(dir))
		defer l.Discard()
		var c output.StreamCursor
		var got []output.Chunk
		next := byte(0)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "read") == 0 {
				chunks, to, done, err := l.Read(c, rapid.SampledFrom([]int{1, 10, 100_000}).Draw(t, "max"))
				if err != nil || done {
					t.Fatalf("Read of an open log returned done %v, %v", done, err)
				}
				got, c = append(got, chunks...), to
				continue
			}
			s := rapid.IntRange(0, 1).Draw(t, "stream")
			p := make([]byte, rapid.SampledFrom([]int{1, 5, 60, 3000, 70_000}).Draw(t, "bytes"))
			for i := range p {
				next++
				p[i] = next & 0x7f // a character of one byte; the log cuts only between characters, which logModel ignores
			}
			l.Append(output.Stream(s), 1, p)
			m.writtenBytes[s] = append(m.writtenBytes[s], p...)
		}
		l.Close()
		got = append(got, readRemainingChunks(t, l, &c, rapid.SampledFrom([]int{1000, 1 << 20}).Draw(t, "last max"))...)
		m.checkChunks(t, got)
		var afresh output.StreamCursor
		m.checkChunks(t, readRemainingChunks(t, l, &afresh, 1<<20))
	})
}

// checkChunks checks that the chunks contain every byte that a Log keeps, and gaps for exactly the other bytes.
func (m *logModel) checkChunks(t interface{ Fatalf(string, ...any) }, chunks []output.Chunk) {
	var pos [2]int
	for _, c := range chunks {
		s := int(c.Stream)
		for range c.DroppedBytes {
			if m.mustKeepByte(s, pos[s]) {
				t.Fatalf("stream %d: byte %d of %d is kept but was left out", s, pos[s], len(m.writtenBytes[s]))
			}
			pos[s]++
		}
		if pos[s]+len(c.Data) > len(m.writtenBytes[s]) || !bytes.Equal(c.Data, m.writtenBytes[s][pos[s]:pos[s]+len(c.Data)]) {
			t.Fatalf("stream %d: %d bytes at %d differ from the written bytes", s, len(c.Data), pos[s])
		}
		pos[s] += len(c.Data)
	}
	for s := range pos {
		if pos[s] != len(m.writtenBytes[s]) {
			t.Fatalf("stream %d: got %d bytes, want %d", s, pos[s], len(m.writtenBytes[s]))
		}
	}
}

// Append and Close wake a waiting reader. After Close, readers do not wait, and further bytes are
// ignored.
func TestAppendAndCloseWakeReaders(t *testing.T) {
	l := output.NewLog(100, fileCreatorIn(t.TempDir()))
	for _, change := range []func(){func() { l.Append(output.Stdout, 1, []byte("x")) }, l.Close, func() {}} {
		changed := l.ChangeSignal()
		change()
		<-changed
	}
	l.Append(output.Stdout, 1, []byte("late"))
	l.Close()
	if l.KeptBytes() != 1 {
		t.Errorf("the log keeps %d bytes after Close, want 1", l.KeptBytes())
	}
}

// Decoding an encoded log gives the same chunks, gaps and times.
func TestEncodedLogsAreDecoded(t *testing.T) {
	dir := t.TempDir()
	for _, limit := range []int64{10, 300_000} {
		l := output.NewLog(limit, fileCreatorIn(dir))
		l.Append(output.Stdout, 1_700_000_000_000, bytes.Repeat([]byte("ab"), 200_000))
		l.Append(output.Stderr, 1_700_000_000_100, []byte("\x00\xff"))
		l.Append(output.Stdout, 1_600_000_000_000, []byte("the clock went back"))
		l.Close()
		var c output.StreamCursor
		want := readRemainingChunks(t, l, &c, output.MaxMemoryBytes)
		inline, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for name, raw := range map[string][]byte{"inline": inline, "file": encodeLog(t, l)} {
			got, err := decodeChunks(raw)
			if name == "inline" {
				got, err = decodeEncodedLog(raw)
			}
			if err != nil {
				t.Fatal(err)
			}
			if streamTexts(got) != streamTexts(want) || len(got) == 0 ||
				got[len(got)-1].ReadTimeMillis != want[len(want)-1].ReadTimeMillis {
				t.Errorf("limit %d: got %q, want %q", limit, streamTexts(got), streamTexts(want))
			}
		}
		l.Discard()
	}
	empty := output.NewLog(10, fileCreatorIn(dir))
	if raw, err := empty.Encode(); raw != nil || err != nil {
		t.Errorf("an empty log: got %v, %v", raw, err)
	}
}

// EncodeHead encodes the first bytes of both streams, and gaps for the rest. It encodes a short log
// completely.
func TestEncodeHeadKeepsFirstBytes(t *testing.T) {
	l := output.NewLog(20, fileCreatorIn(t.TempDir()))
	for _, text := range []string{"out 1\n", "out 2\n"} {
		l.Append(output.Stdout, 1, []byte(text))
	}
	l.Append(output.Stderr, 2, []byte("err 1\nerr 2\nerr 3\nerr 4\n"))
	l.Close()
	for _, c := range []struct {
		max  int
		want [2]string
	}{{8, [2]string{"out 1\nou[4]", "[24]"}}, {15, [2]string{"out 1\nout 2\n", "err[21]"}},
		{1000, [2]string{"out 1\nout 2\n", "err 1\nerr [4]r 3\nerr 4\n"}}} {
		b, kept := l.EncodeHead(c.max)
		var chunks []output.Chunk
		var n int64
		err := output.Decode(bytes.NewReader(b), func(c output.Chunk) error {
			chunks = append(chunks, c)
			n += int64(len(c.Data))
			return nil
		})
		if got := streamTexts(chunks); got != c.want || n != kept || err != nil {
			t.Errorf("at most %d bytes: got %q with %d bytes, returned %d, %v; want %q", c.max, got, n, kept, err, c.want)
		}
	}
}

// For a damaged log, Decode passes on the chunks before the damage and then returns an error.
func TestDecodeStopsAtDamage(t *testing.T) {
	whole, _ := output.AppendEncodedChunks(nil, 0, []output.Chunk{{ReadTimeMillis: 5, Data: []byte("one")},
		{Stream: output.Stderr, ReadTimeMillis: 7, Data: []byte("two")}})
	for what, raw := range map[string][]byte{
		"cut in the data":   whole[:len(whole)-1],
		"cut in the head":   whole[:7],
		"no such stream":    append(slices.Clone(whole[:6]), 0x02, 0, 0),
		"gap of no stream":  append(slices.Clone(whole[:6]), 0x82, 0, 1),
		"endless varint":    append(slices.Clone(whole[:6]), bytes.Repeat([]byte{0xff}, 20)...),
		"record of 1 TiB":   append(slices.Clone(whole[:6]), 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20),
		"cut after a kind":  append(slices.Clone(whole[:6]), 0),
		"cut after a delta": append(slices.Clone(whole[:6]), 0, 2),
	} {
		var got []output.Chunk
		err := output.Decode(bytes.NewReader(raw), func(c output.Chunk) error { got = append(got, c); return nil })
		if want := []output.Chunk{{ReadTimeMillis: 5, Data: []byte("one")}}; err == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v and an error", what, got, err, want)
		}
	}
	stop := errors.New("enough")
	if err := output.Decode(bytes.NewReader(whole), func(output.Chunk) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Decode returned %v, want the error of the caller's function", err)
	}
}

// For any input, Decode neither panics nor passes on an invalid chunk. If decoding succeeds, encoding the
// chunks and decoding them again gives the same number of chunks.
func FuzzDecode(f *testing.F) {
	seed, _ := output.AppendEncodedChunks(nil, 0, []output.Chunk{{ReadTimeMillis: 5, Data: []byte("one")},
		{Stream: output.Stderr, ReadTimeMillis: 3, DroppedBytes: 9}})
	f.Add(seed)
	f.Add(seed[:4])
	f.Add([]byte{0x80, 0, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 30))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var chunks []output.Chunk
		err := output.Decode(bytes.NewReader(raw), func(c output.Chunk) error {
			if c.Stream > output.Stderr || c.DroppedBytes < 0 || c.DroppedBytes > 0 && c.Data != nil {
				t.Fatalf("%x: got chunk %+v", raw, c)
			}
			chunks = append(chunks, c)
			return nil
		})
		again, _ := output.AppendEncodedChunks(nil, 0, chunks)
		var twice []output.Chunk
		if failed := output.Decode(bytes.NewReader(again),
			func(c output.Chunk) error { twice = append(twice, c); return nil }); failed != nil || err == nil &&
			len(twice) != len(chunks) {
			t.Fatalf("%x was decoded and encoded as %x: %v", raw, again, failed)
		}
	})
}

// A log takes little memory even if the two streams alternate after each byte, and keeps every byte within the
// limit.
func TestAlternatingStreamsTakeLittleMemory(t *testing.T) {
	const n = 2_000_000
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	defer l.Discard()
	before := heapBytesInUse()
	for i := range n {
		l.Append(output.Stream(i%2), int64(i/100), []byte{byte(i / 2)})
	}
	if grown := heapBytesInUse() - before; grown > 2<<20 {
		t.Errorf("the log takes %d bytes, want 2 MiB at most", grown)
	}
	l.Close()
	m := logModel{limitBytes: 1 << 20}
	for i := range n {
		m.writtenBytes[i%2] = append(m.writtenBytes[i%2], byte(i/2))
	}
	var c output.StreamCursor
	m.checkChunks(t, readRemainingChunks(t, l, &c, 1<<20))
}

// heapBytesInUse returns the number of bytes of the heap that are in use.
func heapBytesInUse() int64 {
	runtime.GC()
	var memStats runtime.MemStats
	runtime.ReadMemStats(&memStats)
	return int64(memStats.HeapAlloc)
}

// A negative position in a cursor counts back from the end of the stream. If it lies before the beginning,
// reading starts at the beginning.
func TestNegativeCursorReadsFromEnd(t *testing.T) {
	l := output.NewLog(1<<20, nil)
	l.Append(output.Stdout, 1, []byte("0123456789"))
	l.Append(output.Stderr, 2, []byte("ab"))
	for c, want := range map[output.StreamCursor]string{{-3, -1}: "789 b", {-10, -2}: "0123456789 ab",
		{-11, -50}: "0123456789 ab", {-1, 2}: "9 ", {4, -1}: "456789 b"} {
		var got [2]string
		chunks, next, _, err := l.Read(c, 100)
		for _, chunk := range chunks {
			got[chunk.Stream] += string(chunk.Data)
		}
		if err != nil || got[0]+" "+got[1] != want || next != (output.StreamCursor{10, 2}) {
			t.Errorf("from %v: got %q, next %v, %v, want %q", c, got, next, err, want)
		}
	}
}
