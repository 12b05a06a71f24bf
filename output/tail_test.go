package output_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/output"
)

// counted counts what is read of a file.
type counted struct {
	io.ReaderAt
	reads, bytes int
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	c.reads++
	c.bytes += len(p)
	return c.ReaderAt.ReadAt(p, at)
}

// file is a log as a file.
func file(t interface{ Fatal(...any) }, l *output.Log) []byte {
	var b bytes.Buffer
	if err := l.EncodeTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// decode gives all chunks of an encoded log, and tail those of its end.
func decode(raw []byte) (chunks []output.Chunk, err error) {
	err = output.Decode(bytes.NewReader(raw), func(c output.Chunk) error { chunks = append(chunks, c); return nil })
	return chunks, err
}

func tail(raw []byte, n int) (chunks []output.Chunk, err error) {
	err = output.DecodeTail(bytes.NewReader(raw), int64(len(raw)), n, func(c output.Chunk) error { chunks = append(chunks, c); return nil })
	return chunks, err
}

// The tail of an encoded log is the end of each stream, with the same order and times and
// with the gaps among it, be the log a file or part of a result.
func TestTailIsTheEndOfEachStream(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		l := output.New(rapid.SampledFrom([]int64{0, 3, 100, 10_000, 300_000}).Draw(t, "limit"), spill(dir))
		defer l.Discard()
		at := int64(1_700_000_000_000)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			at += int64(rapid.SampledFrom([]int{-5000, 0, 1, 20, 100_000}).Draw(t, "later"))
			p := bytes.Repeat([]byte{byte('a' + at%26)}, rapid.SampledFrom([]int{1, 2, 50, 5000, 90_000}).Draw(t, "bytes"))
			l.Append(output.Stream(rapid.IntRange(0, 1).Draw(t, "stream")), at, p)
		}
		l.Close()
		raw := file(t, l)
		if rapid.Bool().Draw(t, "part of a result") && l.Kept() <= output.InMemory {
			raw, _ = l.Encode()
		}
		whole, err := decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.SampledFrom([]int{1, 2, 100, 4096, 1 << 20}).Draw(t, "tail")
		end, err := tail(raw, n)
		if err != nil {
			t.Fatal(err)
		}
		all, got := texts(whole), texts(end)
		for s := range all {
			var kept int
			for _, c := range end {
				if int(c.Stream) == s {
					kept += len(c.Data)
				}
			}
			var of int
			for _, c := range whole {
				if int(c.Stream) == s {
					of += len(c.Data)
				}
			}
			if !strings.HasSuffix(all[s], got[s]) || kept < min(n, of) {
				t.Fatalf("stream %d: the tail has %d bytes of %d, want %d at least, of the end", s, kept, of, n)
			}
		}
		for _, c := range end { // each is the end of a chunk, in their order
			i := slices.IndexFunc(whole, func(w output.Chunk) bool {
				return w.Stream == c.Stream && w.At == c.At && w.Dropped == c.Dropped && bytes.HasSuffix(w.Data, c.Data)
			})
			if i < 0 {
				t.Fatalf("the tail has %+v, which is no chunk's end, or not in order", c)
			}
			whole = whole[i+1:]
		}
	})
}

// To read the tail of a file takes as many bytes as it is about, however large the file is,
// and wherever in it the end of a stream is.
func TestTailReadsLittle(t *testing.T) {
	const limit, n = 8 << 20, 4096
	for _, c := range []struct {
		name string
		most int // bytes read
		fill func(l *output.Log)
	}{
		{"both streams", 64 << 10, func(l *output.Log) {
			for i := range 400 {
				l.Append(output.Stream(i%2), int64(i), bytes.Repeat([]byte("x"), 50_000))
			}
		}},
		{"one stream at the beginning", 64 << 10, func(l *output.Log) {
			l.Append(output.Stderr, 1, bytes.Repeat([]byte("e"), n))
			for i := range 200 {
				l.Append(output.Stdout, int64(i), bytes.Repeat([]byte("x"), 50_000))
			}
		}},
		{"single bytes of one among much of the other", 64 * n * 3, func(l *output.Log) {
			for i := range 2 * n {
				l.Append(output.Stderr, int64(i), []byte("e"))
				l.Append(output.Stdout, int64(i), bytes.Repeat([]byte("x"), 1000))
			}
		}},
	} {
		l := output.New(limit, spill(t.TempDir()))
		c.fill(l)
		l.Close()
		raw := file(t, l)
		r := &counted{ReaderAt: bytes.NewReader(raw)}
		var kept [2]int
		err := output.DecodeTail(r, int64(len(raw)), n, func(c output.Chunk) error { kept[c.Stream] += len(c.Data); return nil })
		if err != nil || kept != [2]int{n, n} {
			t.Errorf("%s: got %v bytes, %v", c.name, kept, err)
		}
		if r.bytes > c.most || r.reads > 3*n || r.bytes > len(raw)/4 {
			t.Errorf("%s: %d bytes in %d reads of a file of %d, want %d at most", c.name, r.bytes, r.reads, len(raw), c.most)
		}
		l.Discard()
	}
}

// A file that was cut anywhere gives the chunks before the cut and says that it was cut; of
// its tail nothing is known.
func TestCutFilesSaySo(t *testing.T) {
	l := output.New(100, spill(t.TempDir()))
	defer l.Discard()
	l.Append(output.Stdout, 1000, []byte("first"))
	l.Append(output.Stderr, 1020, bytes.Repeat([]byte("e"), 150))
	l.Append(output.Stdout, 1040, []byte("last"))
	l.Close()
	raw := file(t, l)
	whole, err := decode(raw)
	if err != nil || len(whole) != 5 {
		t.Fatalf("got %+v, %v", whole, err)
	}
	const trailer = 41
	for cut := 1; cut < len(raw); cut++ {
		chunks, err := decode(raw[:cut])
		if intact := cut > len(raw)-trailer; intact != (err == nil) || err != nil && !errors.Is(err, output.ErrTruncated) {
			t.Errorf("cut after %d of %d bytes: %v", cut, len(raw), err)
		}
		if len(chunks) > len(whole) || !reflect.DeepEqual(chunks, whole[:len(chunks)]) && len(chunks) > 0 {
			t.Errorf("cut after %d bytes: got %+v", cut, chunks)
		}
		if chunks, err := tail(raw[:cut], 10); !errors.Is(err, output.ErrTruncated) || chunks != nil {
			t.Errorf("the tail of one cut after %d bytes: %+v, %v", cut, chunks, err)
		}
	}
	if chunks, err := tail(nil, 10); chunks != nil || err != nil {
		t.Errorf("the tail of nothing: %+v, %v", chunks, err)
	}
	short := bytes.NewReader(raw[:len(raw)-1])
	if err := output.DecodeTail(short, int64(len(raw)), 10, func(output.Chunk) error { return nil }); !errors.Is(err, output.ErrTruncated) {
		t.Errorf("a file that is shorter than it was said to be: %v", err)
	}
	stop := errors.New("enough")
	if err := output.DecodeTail(bytes.NewReader(raw), int64(len(raw)), 10, func(output.Chunk) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the caller's own error", err)
	}
	large := bytes.Repeat([]byte{0, 0, 0}, 100_000)
	if _, err := tail(large, 10); err == nil || errors.Is(err, output.ErrTruncated) {
		t.Errorf("300,000 bytes that are no file: %v", err)
	}
	if l := output.New(100, nil); len(file(t, l)) != trailer {
		t.Errorf("an empty log's file has %d bytes", len(file(t, l)))
	}
}

// No bytes make DecodeTail panic, read without end, or hand over a chunk that cannot be.
func FuzzDecodeTail(f *testing.F) {
	l := output.New(20, spill(f.TempDir()))
	l.Append(output.Stdout, 5, []byte("one"))
	l.Append(output.Stderr, 30, []byte("two, which is longer than the limit"))
	l.Append(output.Stdout, 3, []byte("three"))
	l.Close()
	var b bytes.Buffer
	if err := l.EncodeTo(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), 4)
	f.Add(b.Bytes(), 1000)
	f.Add(b.Bytes()[:b.Len()-1], 4)
	f.Add(b.Bytes()[b.Len()-41:], 4)
	seed, _ := output.AppendChunks(nil, 0, []output.Chunk{{At: 5, Data: []byte("one")}})
	f.Add(seed, 1)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		n = min(n, 1<<12)
		r := &counted{ReaderAt: bytes.NewReader(raw)}
		var kept [2]int
		err := output.DecodeTail(r, int64(len(raw)), n, func(c output.Chunk) error {
			if c.Stream > output.Stderr || c.Dropped < 0 || c.Dropped > 0 && c.Data != nil {
				t.Fatalf("%x: got chunk %+v", raw, c)
			}
			kept[c.Stream] += len(c.Data)
			return nil
		})
		if most := 100 + 8*max(n, 0); r.reads > most+len(raw) {
			t.Fatalf("%x, %d: %d reads", raw, n, r.reads)
		}
		if err == nil && n > 0 && len(raw) > 0 && raw[0]&0x40 != 0 && max(kept[0], kept[1]) > n {
			t.Fatalf("%x, %d: handed over %v bytes", raw, n, fmt.Sprint(kept))
		}
	})
}
