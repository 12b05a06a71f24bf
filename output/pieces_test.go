package output

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

func fileCreatorIn(dir string) func() (*os.File, error) {
	return func() (*os.File, error) { return os.CreateTemp(dir, "out") }
}

// allPieceLists returns the four lists of pieces of a log: one for the first half of each stream, and then one for the
// last half of each stream.
func (l *Log) allPieceLists() (lists [4]pieceList) {
	for s := range l.streams {
		lists[s], lists[2+s] = l.streams[s].head.pieces, l.streams[s].tail.pieces
	}
	return lists
}

// Appending a byte takes constant time on average, for any number of pieces: each piece is dropped once, and on average
// it is moved at most four times, when the list needs a larger array.
func TestAppendedByteTakesConstantTime(t *testing.T) {
	const n = 300_000
	l := NewLog(64<<10, fileCreatorIn(t.TempDir()))
	defer l.Discard()
	var moved, dropped, before int
	for i := range n {
		listsBefore := l.allPieceLists()
		l.Append(Stream(i%2), int64(i), []byte("x"))
		piecesInUse := 0
		for k, list := range l.allPieceLists() {
			piecesInUse += len(list)
			if cap(list) > cap(listsBefore[k]) { // the pieces were moved to a new array
				moved += len(list)
			}
		}
		dropped += max(0, before-piecesInUse)
		before = piecesInUse
		if piecesInUse > 2*l.maxPiecesPerHalf {
			t.Fatalf("after %d bytes the log has %d pieces, want at most %d", i+1, piecesInUse, 2*l.maxPiecesPerHalf)
		}
	}
	if total := int(l.nextArrivalNumber); moved > 4*total || dropped > total || total > n {
		t.Errorf("of %d pieces %d were moved and %d dropped", total, moved, dropped)
	}
	for k, list := range l.allPieceLists() {
		if cap(list) > 4*l.maxPiecesPerHalf {
			t.Errorf("list %d has room for %d pieces", k, cap(list))
		}
	}
}

// Until half of the maximum number of pieces exist, each append creates a piece. Beyond this number, bytes that arrive
// soon after the previous piece extend that piece. "Soon" is a time that grows with the number of pieces. At the
// maximum, new bytes always extend a piece.
func TestPiecesAreJoinedNearTheLimit(t *testing.T) {
	for limit, most := range map[int64]int{0: 64, 64 * 64: 64, 65*64 - 1: 64, 65 * 64: 65, 8192 * 64: 8192,
		8193 * 64: 8192, 1 << 30: 8192} {
		if l := NewLog(limit, nil); l.maxPiecesPerHalf != most {
			t.Errorf("limit %d: maximum of %d pieces, want %d", limit, l.maxPiecesPerHalf, most)
		}
	}
	type step struct {
		at    int64
		s     Stream
		joins bool
	}
	for _, c := range []struct {
		existing int // number of existing pieces in addition to one of each stream
		steps    []step
	}{
		{0, []step{{9, 0, true}, {9, 0, true}, {10, 0, false}, {19, 0, true}, {19, 1, false}, {19, 0, false}}},
		{30, []step{{9, 0, true}, {9, 1, false}, {9, 0, true}}},
		{31, []step{{9, 1, true}, {9, 0, true}, {10, 0, false}}},
		{34, []step{{19, 1, true}, {19, 0, true}, {20, 0, false}}},
		{60, []step{{int64(joinPieceWithinMillis<<7) - 1, 0, true}, {joinPieceWithinMillis << 7, 0, false}}},
		{62, []step{{1 << 40, 0, true}, {1 << 50, 1, true}, {1 << 60, 0, true}}},
	} {
		l := NewLog(1<<30, fileCreatorIn(t.TempDir()))
		l.maxPiecesPerHalf = 64
		for i := range c.existing {
			l.streams[0].head.pieces = append(l.streams[0].head.pieces,
				streamPiece{arrivalNumber: int64(i), streamPosition: -2, byteCount: 1})
		}
		l.nextArrivalNumber = int64(c.existing)
		l.Append(Stderr, 0, []byte("e"))
		l.Append(Stdout, 0, []byte("o"))
		for i, s := range c.steps {
			before := l.nextArrivalNumber
			l.Append(s.s, s.at, []byte("x"))
			if joined := l.nextArrivalNumber == before; joined != s.joins {
				t.Errorf("%d existing pieces, step %d: joined %v, want %v", c.existing, i, joined, s.joins)
			}
		}
		l.Discard()
	}
}

// The number of pieces stays limited even if there are many gaps. At the maximum, bytes that follow a gap are not kept.
// They count as part of the gap, until older pieces are dropped.
func TestGapsRespectPieceLimit(t *testing.T) {
	var full bool
	l := NewLog(1<<20, func() (*os.File, error) {
		if full {
			return nil, errors.New("no space")
		}
		return os.CreateTemp(t.TempDir(), "out")
	})
	defer l.Discard()
	full, l.maxPiecesPerHalf = true, 64
	written := 0
	for range 3 * l.maxPiecesPerHalf {
		l.Append(Stdout, int64(written), []byte("kept"))
		l.Append(Stdout, int64(written), slices.Repeat([]byte("x"), MaxMemoryBytes+1))
		written += 4 + MaxMemoryBytes + 1
	}
	for _, list := range l.allPieceLists() {
		if len(list) > l.maxPiecesPerHalf {
			t.Errorf("%d pieces, want %d at most", len(list), l.maxPiecesPerHalf)
		}
	}
	if got := len(l.store.memBlocks); got > maxMemBlocks {
		t.Errorf("%d blocks in memory, want %d at most", got, maxMemBlocks)
	}
	if l.KeptBytes()+l.DroppedBytes() != int64(written) {
		t.Errorf("%d bytes kept and %d dropped, of %d", l.KeptBytes(), l.DroppedBytes(), written)
	}
}

// All bytes that are written to a region can be read, in memory and in a file, also at the end of a block or
// region.
func TestWrittenRegionBytesAreReadBack(t *testing.T) {
	const memBlockBytes = 4 << 10
	for _, room := range []int64{1, 100, memBlockBytes, memBlockBytes + 1, 3*fileBlockBytes - 7} {
		for _, inFileFrom := range []int64{0, 2 * memBlockBytes, 1 << 40} {
			t.Run(fmt.Sprint(room, " ", inFileFrom), func(t *testing.T) {
				s := blockStore{createFile: fileCreatorIn(t.TempDir())}
				defer s.discard()
				r, other := &ringRegion{capacity: room}, &ringRegion{capacity: 1 << 20}
				want := make([]byte, room)
				var wantOther []byte
				next := byte(0)
				at := int64(0)
				for at < 3*room+10 {
					p := make([]byte, min(room, 1+at%memBlockBytes, 5000))
					for i := range p {
						next++
						p[i] = next
						want[(at+int64(i))%room] = next
					}
					if at >= inFileFrom && s.file == nil {
						if err := s.moveToFile(); err != nil {
							t.Fatal(err)
						}
					}
					if err := errors.Join(s.writeRegion(r, at, p), s.writeRegion(other, int64(len(wantOther)), p[:1])); err != nil {
						t.Fatal(err)
					}
					at += int64(len(p))
					wantOther = append(wantOther, p[0])
				}
				got, oldest := make([]byte, room), at%room
				want = append(want[oldest:], want[:oldest]...)
				if n, err := s.readRegion(r, at-room, got); err != nil || n != len(got) || !slices.Equal(got, want) {
					t.Errorf("the bytes read back differ from the written bytes: %v", err)
				}
				got = make([]byte, len(wantOther))
				if n, err := s.readRegion(other, 0, got); err != nil || n != len(got) || !slices.Equal(got, wantOther) {
					t.Errorf("the bytes read back from another region differ from the written bytes: %v", err)
				}
				if info := s.memBytes; s.file == nil && info > MaxMemoryBytes {
					t.Errorf("the store keeps %d bytes in memory", info)
				}
			})
		}
	}
}

// Damaged bytes in the file of an open log are never returned as output. Readers of the log get the bytes before and
// after the damage, and the number of damaged bytes. The results of Encode and EncodeFile contain the same.
func TestDamageInOpenLogIsReported(t *testing.T) {
	const limit = 12 * fileBlockBytes
	for name, c := range map[string]struct {
		printed int
		damage  func(f *os.File) error
	}{
		"a bit":     {limit / 2, func(f *os.File) error { return flipBit(f, 5*extentBytes+17) }},
		"the first": {limit / 2, func(f *os.File) error { return flipBit(f, 0) }},
		"a bit of the last half, which was written over": {3 * limit,
			func(f *os.File) error { return flipBit(f, limit/2+3*fileBlockBytes) }},
		"cut":     {limit / 2, func(f *os.File) error { return f.Truncate(3*fileBlockBytes + 5) }},
		"zeros":   {limit / 2, func(f *os.File) error { _, err := f.WriteAt(make([]byte, 1), 2*fileBlockBytes); return err }},
		"nothing": {3 * limit, func(*os.File) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLog(limit, fileCreatorIn(t.TempDir()))
			defer l.Discard()
			var want []byte
			for len(want) < c.printed {
				p := []byte(fmt.Sprintf("line %d of many\n", len(want)))
				want = append(want, p...)
				l.Append(Stdout, 1, p)
			}
			if err := c.damage(l.store.file); err != nil {
				t.Fatal(err)
			}
			l.Close()
			check := func(form string, read func(each func(Chunk) error) error) {
				t.Helper()
				at, damaged := int64(0), int64(0)
				if err := read(func(c Chunk) error {
					if c.DamagedBytes > 0 && c.StreamOffset != at {
						t.Errorf("%s: the damage at byte %d is reported at byte %d", form, at, c.StreamOffset)
					}
					if !bytes.Equal(c.Data, want[at:at+int64(len(c.Data))]) {
						t.Fatalf("%s: the bytes from %d on differ from the printed bytes", form, at)
					}
					at += c.ByteLength()
					damaged += c.DamagedBytes
					return nil
				}); err != nil || at != int64(len(want)) {
					t.Errorf("%s: read %d bytes of %d, %v", form, at, len(want), err)
				}
				most := int64(extentBytes)
				if name == "cut" {
					most = limit
				}
				if (damaged > 0) != (name != "nothing") || damaged > most {
					t.Errorf("%s: %d bytes are reported as damaged", form, damaged)
				}
			}
			check("live", func(do func(Chunk) error) error {
				return l.readAllChunks(1000, func(chunks []Chunk) (err error) {
					for _, c := range chunks {
						err = errors.Join(err, do(c))
					}
					return err
				})
			})
			row, err := l.Encode()
			if err != nil {
				t.Fatal(err)
			}
			check("row", func(do func(Chunk) error) error { return Decode(bytes.NewReader(row), do) })
			var file bytes.Buffer
			if err := l.EncodeFile(&file); err != nil {
				t.Fatal(err)
			}
			check("file", func(do func(Chunk) error) error {
				return DecodeFile(bytes.NewReader(file.Bytes()), int64(file.Len()), do)
			})
		})
	}
}

// flipBit changes one bit of the byte at an offset of a file.
func flipBit(f *os.File, offset int64) error {
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, offset); err != nil {
		return err
	}
	b[0] ^= 4
	_, err := f.WriteAt(b, offset)
	return err
}
