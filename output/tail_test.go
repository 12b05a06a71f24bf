package output_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/output"
)

// countingReader counts the reads from a file, and the bytes read.
type countingReader struct {
	io.ReaderAt
	readCount, readBytes int
}

func (c *countingReader) ReadAt(p []byte, offset int64) (int, error) {
	c.readCount++
	c.readBytes += len(p)
	return c.ReaderAt.ReadAt(p, offset)
}

// encodeLog returns a log in the file format.
func encodeLog(t interface{ Fatal(...any) }, l *output.Log) []byte {
	var b bytes.Buffer
	if err := l.EncodeFile(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// decodeChunks decodes all chunks of a file.
func decodeChunks(raw []byte) (chunks []output.Chunk, err error) {
	return decodeTruncatedFile(raw, int64(len(raw)))
}

// decodeTruncatedFile decodes a file that was cut. originalBytes is its size before the cut.
func decodeTruncatedFile(raw []byte, originalBytes int64) (chunks []output.Chunk, err error) {
	err = output.DecodeFile(bytes.NewReader(raw), originalBytes,
		func(c output.Chunk) error { chunks = append(chunks, c); return nil })
	return chunks, err
}

// decodeTail collects the chunks that DecodeTail passes on for the last tailBytes bytes of each stream.
func decodeTail(raw []byte, tailBytes int) (chunks []output.Chunk, err error) {
	err = output.DecodeTail(bytes.NewReader(raw), int64(len(raw)), tailBytes,
		func(c output.Chunk) error { chunks = append(chunks, c); return nil })
	return chunks, err
}

// DecodeTail passes on the end of each stream, with the order, times and gaps of the whole file.
func TestDecodeTailReturnsEndOfEachStream(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		l := output.NewLog(rapid.SampledFrom([]int64{0, 3, 100, 10_000, 300_000}).Draw(t, "limit"), fileCreatorIn(dir))
		defer l.Discard()
		at := int64(1_700_000_000_000)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			at += int64(rapid.SampledFrom([]int{-5000, 0, 1, 20, 100_000}).Draw(t, "later"))
			p := bytes.Repeat([]byte{byte('a' + at%26)}, rapid.SampledFrom([]int{1, 2, 50, 5000, 90_000}).Draw(t, "bytes"))
			l.Append(output.Stream(rapid.IntRange(0, 1).Draw(t, "stream")), at, p)
		}
		l.Close()
		raw := encodeLog(t, l)
		whole, err := decodeChunks(raw)
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.SampledFrom([]int{1, 2, 100, 4096, 1 << 20}).Draw(t, "tail")
		end, err := decodeTail(raw, n)
		if err != nil {
			t.Fatal(err)
		}
		all, got := streamTexts(whole), streamTexts(end)
		for s := range all {
			var kept int
			for _, c := range end {
				if int(c.Stream) == s {
					kept += len(c.Data)
				}
			}
			var total int
			for _, c := range whole {
				if int(c.Stream) == s {
					total += len(c.Data)
				}
			}
			if !strings.HasSuffix(all[s], got[s]) || kept < min(n, total) {
				t.Fatalf("stream %d: the tail has %d of %d bytes, want at least the last %d", s, kept, total, n)
			}
		}
		for _, c := range end { // each chunk is the end of a chunk of the whole file, in the same order
			i := slices.IndexFunc(whole, func(w output.Chunk) bool {
				return w.Stream == c.Stream && w.ReadTimeMillis == c.ReadTimeMillis && w.DroppedBytes == c.DroppedBytes &&
					bytes.HasSuffix(w.Data, c.Data)
			})
			if i < 0 {
				t.Fatalf("the tail has the chunk %+v, which is not the end of a chunk of the file, or is out of order", c)
			}
			whole = whole[i+1:]
		}
	})
}

// DecodeTail reads only a little more than it passes on. This holds for files of any size, and also if one of the
// streams ends early in the file.
func TestDecodeTailReadsFewBytes(t *testing.T) {
	const limit, n = 8 << 20, 4096
	for _, c := range []struct {
		name string
		most int // maximum number of bytes read
		fill func(l *output.Log)
	}{
		{"both streams", 96 << 10, func(l *output.Log) {
			for i := range 400 {
				l.Append(output.Stream(i%2), int64(i), bytes.Repeat([]byte("x"), 50_000))
			}
		}},
		{"one stream at the beginning", 96 << 10, func(l *output.Log) {
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
	} { // a little more than the wanted bytes: whole records are read, to verify their checksums
		l := output.NewLog(limit, fileCreatorIn(t.TempDir()))
		c.fill(l)
		l.Close()
		raw := encodeLog(t, l)
		r := &countingReader{ReaderAt: bytes.NewReader(raw)}
		var kept [2]int
		err := output.DecodeTail(r, int64(len(raw)), n,
			func(c output.Chunk) error { kept[c.Stream] += len(c.Data); return nil })
		if err != nil || kept != [2]int{n, n} {
			t.Errorf("%s: got %v bytes of the streams, %v", c.name, kept, err)
		}
		if r.readBytes > c.most || r.readCount > 3*n || r.readBytes > len(raw)/4 {
			t.Errorf("%s: read %d bytes in %d reads of a file of %d bytes, want at most %d", c.name,
				r.readBytes, r.readCount, len(raw), c.most)
		}
		l.Discard()
	}
}

// streamTextsWithDamage joins the chunks of each stream to one text, with a ? for each damaged byte and a - for each
// dropped byte.
func streamTextsWithDamage(chunks []output.Chunk) (streams [2]string) {
	for _, c := range chunks {
		if c.DamagedBytes > 0 && !c.StreamUnknown && c.StreamOffset != int64(len(streams[c.Stream])) {
			streams[c.Stream] += fmt.Sprintf("[damage at %d]", c.StreamOffset)
		}
		streams[c.Stream] += string(c.Data) + strings.Repeat("?", int(c.DamagedBytes)) + strings.Repeat("-",
			int(c.DroppedBytes))
	}
	return streams
}

// equalExceptDamage reports whether got equals the printed stream want, except for damaged bytes. In got, each
// damaged byte is a ?.
func equalExceptDamage(got, want string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i] != want[i] && got[i] != '?' {
			return false
		}
	}
	return true
}

// logWithBothStreams returns a log with both streams, a gap, and records of several sizes.
func logWithBothStreams(t *testing.T) *output.Log {
	l := output.NewLog(3000, fileCreatorIn(t.TempDir()))
	t.Cleanup(l.Discard)
	for i := range 40 {
		l.Append(output.Stream(i%3/2), int64(1000*i), fmt.Appendf(nil, "line %d of %s\n", i, strings.Repeat("x", i*i%200)))
	}
	l.Close()
	return l
}

// If any byte of a file is damaged, DecodeFile passes on no wrong byte. It passes on all undamaged records, and
// the exact number and position of the missing bytes.
func TestDamageIsNeverShownAsOutput(t *testing.T) {
	raw := encodeLog(t, logWithBothStreams(t))
	chunks, err := decodeChunks(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := streamTextsWithDamage(chunks)
	for at := range raw {
		for _, flip := range []byte{0x01, 0xff} {
			harmed := bytes.Clone(raw)
			harmed[at] ^= flip
			chunks, err := decodeChunks(harmed)
			got := streamTextsWithDamage(chunks)
			if err != nil || !equalExceptDamage(got[0], want[0]) || !equalExceptDamage(got[1], want[1]) {
				t.Fatalf("damage at byte %d: %v, got %q, want %q", at, err, got, want)
			}
			if lost := strings.Count(got[0]+got[1], "?"); lost > 300 {
				t.Errorf("damage at byte %d: %d bytes of output are lost, want at most 300", at, lost)
			}
			if damaged, err := output.CheckFile(bytes.NewReader(harmed), int64(len(harmed))); damaged == 0 &&
				!errors.Is(err, output.ErrOutputDamaged) {
				t.Errorf("damage at byte %d: CheckFile does not detect it", at)
			}
			end, err := decodeTail(harmed, 100)
			if err != nil && !errors.Is(err, output.ErrOutputDamaged) ||
				err == nil && !strings.HasSuffix(want[0], streamTextsWithDamage(end)[0]) {
				t.Errorf("damage at byte %d: the tail is %q, %v", at, streamTextsWithDamage(end), err)
			}
		}
	}
	if damaged, err := output.CheckFile(bytes.NewReader(raw), int64(len(raw))); damaged != 0 || err != nil {
		t.Errorf("CheckFile of an intact file: %d bytes are damaged, %v", damaged, err)
	}
}

// Damage costs only the damaged records, even if a file is damaged in several places, or if whole blocks are
// overwritten with other bytes of the file.
func TestDamageCostsOnlyDamagedRecords(t *testing.T) {
	raw := encodeLog(t, logWithBothStreams(t))
	chunks, _ := decodeChunks(raw)
	want := streamTextsWithDamage(chunks)
	rapid.Check(t, func(t *rapid.T) {
		harmed := bytes.Clone(raw)
		for range rapid.IntRange(1, 4).Draw(t, "places") {
			at := rapid.IntRange(0, len(raw)-1).Draw(t, "at")
			n := rapid.IntRange(1, min(500, len(raw)-at)).Draw(t, "bytes")
			from := rapid.IntRange(0, len(raw)-n).Draw(t, "from")
			if rapid.Bool().Draw(t, "zeros") {
				clear(harmed[at : at+n])
			} else {
				copy(harmed[at:at+n], raw[from:])
			}
		}
		chunks, err := decodeChunks(harmed)
		got := streamTextsWithDamage(chunks)
		unknown := err == nil && !bytes.Equal(harmed[len(raw)-trailerBytes:], raw[len(raw)-trailerBytes:])
		for s := range got {
			if unknown { // the trailer is damaged, so the number of missing bytes at the end is unknown
				n := min(len(got[s]), len(want[s]))
				got[s] = strings.TrimRight(got[s][:n], "?")
				want := want[s][:len(got[s])]
				if !equalExceptDamage(got[s], want) {
					t.Fatalf("got %q, want %q", got[s], want)
				}
			} else if err != nil || !equalExceptDamage(got[s], want[s]) {
				t.Fatalf("%v, got %q, want %q", err, got[s], want[s])
			}
		}
	})
}

// If neither a later record nor the trailer shows which stream has lost bytes, the chunk for these bytes has
// StreamUnknown set. Here, the trailer and the header of the only record of standard error are damaged.
func TestLossOfUnknownStreamIsReported(t *testing.T) {
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	defer l.Discard()
	const lost = "this is lost"
	l.Append(output.Stdout, 1, []byte("before\n"))
	l.Append(output.Stderr, 2, []byte(lost))
	l.Append(output.Stdout, 3, []byte("after\n"))
	l.Close()
	raw := encodeLog(t, l)
	raw[bytes.Index(raw, []byte(lost))-1] ^= 1
	for _, unknown := range []bool{false, true} {
		damaged := "a header"
		if unknown {
			damaged += " and the trailer"
			raw[len(raw)-1] ^= 1
		}
		chunks, err := decodeChunks(raw)
		last := chunks[len(chunks)-1]
		if err != nil || last.StreamUnknown != unknown || !unknown && last.Stream != output.Stderr ||
			last.DamagedBytes < int64(len(lost)) {
			t.Errorf("%s: %v, the last chunk is %+v; want the loss of %d bytes, stream unknown: %t", damaged, err, last,
				len(lost), unknown)
		}
		if kept := string(chunks[0].Data) + string(chunks[1].Data); kept != "before\nafter\n" {
			t.Errorf("%s: the first two chunks are %q", damaged, kept)
		}
	}
}

// If the output of a job contains a copy of a record, DecodeFile returns the copy as output. It does not mistake the
// copy for a record of the file, even if the record that contains the copy is damaged.
func TestRecordInsideOutputIsNotParsed(t *testing.T) {
	inner := encodeLog(t, logWithBothStreams(t))
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	defer l.Discard()
	l.Append(output.Stdout, 1, []byte("before\n"))
	l.Append(output.Stdout, 2000, inner)
	l.Append(output.Stdout, 4000, []byte("after\n"))
	l.Close()
	raw := encodeLog(t, l)
	raw[bytes.Index(raw, inner)-5] ^= 1 // damages the header of the record that contains inner
	chunks, err := decodeChunks(raw)
	if got, want := streamTextsWithDamage(chunks)[0],
		"before\n"+strings.Repeat("?", len(inner))+"after\n"; err != nil || got != want {
		t.Errorf("DecodeFile returned %q, %v", got, err)
	}
}

const trailerBytes = 53 // length of the trailer in bytes

// If a file is cut at any byte, DecodeFile passes on the records before the cut, and a chunk that reports the
// rest as lost. DecodeTail returns ErrOutputDamaged.
func TestTruncatedFileReportsLoss(t *testing.T) {
	raw := encodeLog(t, logWithBothStreams(t))
	whole, err := decodeChunks(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := streamTextsWithDamage(whole)
	for cut := range raw {
		chunks, err := decodeTruncatedFile(raw[:cut], int64(len(raw)))
		got := streamTextsWithDamage(chunks)
		for s := range got {
			if kept := strings.TrimRight(got[s], "?"); err != nil || !strings.HasPrefix(want[s], kept) {
				t.Fatalf("cut after %d bytes: %v, got %q, want the beginning of %q", cut, err, got[s], want[s])
			}
		}
		if cut < len(raw)-trailerBytes && !strings.HasSuffix(got[0]+got[1], "?") && !strings.HasSuffix(got[0], "?") {
			t.Errorf("cut after %d bytes: no bytes are reported as missing", cut)
		}
		if _, err := output.CheckFile(bytes.NewReader(raw[:cut]), int64(len(raw))); !errors.Is(err, output.ErrOutputDamaged) {
			t.Errorf("cut after %d bytes: CheckFile returned %v, want ErrDamaged", cut, err)
		}
		end := []output.Chunk(nil)
		err = output.DecodeTail(bytes.NewReader(raw[:cut]), int64(len(raw)), 10,
			func(c output.Chunk) error { end = append(end, c); return nil })
		if !errors.Is(err, output.ErrOutputDamaged) || end != nil {
			t.Errorf("the tail of a file cut after %d bytes: %+v, %v", cut, end, err)
		}
	}
	if chunks, err := decodeTail(nil, 10); chunks != nil || err != nil {
		t.Errorf("the tail of an empty file: %+v, %v", chunks, err)
	}
	stop := errors.New("enough")
	for _, err := range []error{
		output.DecodeTail(bytes.NewReader(raw), int64(len(raw)), 10, func(output.Chunk) error { return stop }),
		output.DecodeFile(bytes.NewReader(raw), int64(len(raw)), func(output.Chunk) error { return stop }),
	} {
		if !errors.Is(err, stop) {
			t.Errorf("DecodeTail returned %v, want the error of the caller's function", err)
		}
	}
	if l := output.NewLog(100, nil); len(encodeLog(t, l)) != trailerBytes {
		t.Errorf("the file of an empty log has %d bytes, want only the trailer", len(encodeLog(t, l)))
	}
}

// For any input, DecodeTail does not panic, does not read endlessly, and passes on no invalid chunk.
func FuzzDecodeTail(f *testing.F) {
	l := output.NewLog(20, fileCreatorIn(f.TempDir()))
	l.Append(output.Stdout, 5, []byte("one"))
	l.Append(output.Stderr, 30, []byte("two, which is longer than the limit"))
	l.Append(output.Stdout, 3, []byte("three"))
	l.Close()
	var b bytes.Buffer
	if err := l.EncodeFile(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), 4)
	f.Add(b.Bytes(), 1000)
	f.Add(b.Bytes()[:b.Len()-1], 4)
	f.Add(b.Bytes()[b.Len()-trailerBytes:], 4)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		n = min(n, 1<<12)
		r := &countingReader{ReaderAt: bytes.NewReader(raw)}
		var kept [2]int
		err := output.DecodeTail(r, int64(len(raw)), n, func(c output.Chunk) error {
			if c.Stream > output.Stderr || c.DroppedBytes < 0 || c.DroppedBytes > 0 && c.Data != nil {
				t.Fatalf("%x: got chunk %+v", raw, c)
			}
			kept[c.Stream] += len(c.Data)
			return nil
		})
		if most := 100 + 8*max(n, 0); r.readCount > most+len(raw) {
			t.Fatalf("%x, %d: %d reads", raw, n, r.readCount)
		}
		// The limit is n bytes, plus at most 3 bytes of a character that would otherwise be cut.
		if err == nil && n > 0 && max(kept[0], kept[1]) > n+3 {
			t.Fatalf("%x, %d: passed on %v bytes", raw, n, fmt.Sprint(kept))
		}
		if err := output.DecodeFile(bytes.NewReader(raw), int64(len(raw)), func(c output.Chunk) error {
			if c.Stream > output.Stderr || min(c.DroppedBytes, c.DamagedBytes) < 0 || c.DroppedBytes+c.DamagedBytes > 0 &&
				c.Data != nil {
				t.Fatalf("%x: got chunk %+v", raw, c)
			}
			return nil
		}); err != nil {
			t.Fatalf("%x: %v", raw, err)
		}
	})
}
