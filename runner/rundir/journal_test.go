package rundir

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// encodedResultFrame returns the frame of a job's result.
func encodedResultFrame(jobSeq int64) []byte {
	a := wire.Attempt{Lease: wire.Lease{Seq: jobSeq, Fence: 1}}
	return wire.AppendFrame(nil, &wire.Result{Attempt: a, Output: bytes.Repeat([]byte("x"), 100)})
}

func newJournal(t *testing.T) *Journal {
	t.Helper()
	j, err := OpenJournal(t.TempDir(), 0o600, func(JournalSize) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.segmentFile.Close() })
	return j
}

// appendResults appends one result for each of the given jobs. It returns the numbers of the segments that contain the
// results.
func appendResults(t *testing.T, j *Journal, jobSeqs ...int64) (segmentNumbers []int) {
	t.Helper()
	for _, seq := range jobSeqs {
		n, err := j.AppendResult(encodedResultFrame(seq))
		if err != nil {
			t.Fatal(err)
		}
		segmentNumbers = append(segmentNumbers, n)
	}
	return segmentNumbers
}

// checkJournal checks that a dead runner's journal contains results of exactly the given jobs.
func checkJournal(t *testing.T, dir, situation string, wantJobSeqs ...int64) {
	t.Helper()
	results, _, err := ReadJournal(dir, JournalSize{}, func(wire.Lease) bool { return true })
	if err != nil {
		t.Fatalf("%s: %v", situation, err)
	}
	var got []int64
	for _, r := range results {
		got = append(got, r.Seq)
	}
	if !slices.Equal(got, wantJobSeqs) {
		t.Errorf("%s: the journal has results of jobs %v, want %v", situation, got, wantJobSeqs)
	}
}

// The results in a journal are read in the order in which they were appended. The journal need not be closed:
// a runner that is killed does not close it.
func TestJournalIsReadAsWritten(t *testing.T) {
	j := newJournal(t)
	checkJournal(t, j.dir, "empty")
	appendResults(t, j, 1, 2, 3)
	checkJournal(t, j.dir, "three results", 1, 2, 3)
	checkJournal(t, t.TempDir(), "no journal")
}

// If another process truncates the newest segment, the runner continues and can write further results.
func TestJournalSurvivesTruncatedSegment(t *testing.T) {
	j := newJournal(t)
	appendResults(t, j, 1)
	if err := os.Truncate(j.segmentPath(1), 0); err != nil {
		t.Fatal(err)
	}
	appendResults(t, j, 2)
	j.segmentSize = maxSegmentBytes + 1
	appendResults(t, j, 3)
	checkJournal(t, j.dir, "after it was cut short", 3)
}

// If the last record is incomplete, no matter where it is cut off, the records before it are still read.
func TestTornJournalRecordKeepsEarlierRecords(t *testing.T) {
	j := newJournal(t)
	appendResults(t, j, 1, 2)
	whole, err := os.ReadFile(j.segmentPath(1))
	if err != nil {
		t.Fatal(err)
	}
	whole = whole[:j.segmentSize]
	for cut := len(whole) / 2; cut < len(whole); cut++ {
		if err := os.WriteFile(j.segmentPath(1), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		checkJournal(t, j.dir, "torn", 1)
	}
}

// If any bit of a record is wrong, the record is not returned. The records before it are.
func TestDamagedJournalRecordIsNotReturned(t *testing.T) {
	raw := []byte(nil)
	for seq := range int64(3) {
		frame := encodedResultFrame(seq + 1)
		raw = append(binary.LittleEndian.AppendUint32(raw, crc32.ChecksumIEEE(frame)), frame...)
	}
	size := len(raw) / 3
	for i := range size * 8 {
		damaged := slices.Clone(raw)
		damaged[size+i/8] ^= 1 << (i % 8)
		if got, _ := parseSegment(damaged); len(got) != 1 || got[0].Seq != 1 {
			t.Fatalf("bit %d: got %d results, want the first alone", i, len(got))
		}
	}
}

// When a segment has its full size, the journal continues in a new one. Segments are read in numeric
// order, so segment 10 comes after segment 9.
func TestJournalContinuesInNewSegment(t *testing.T) {
	j := newJournal(t)
	var want []int64
	for seq := range int64(12) {
		appendResults(t, j, seq)
		want = append(want, seq)
		j.segmentSize = maxSegmentBytes + 1
	}
	if j.segmentNumber != 12 {
		t.Errorf("the journal has %d segments, want 12", j.segmentNumber)
	}
	checkJournal(t, j.dir, "twelve segments", want...)
}

// When all results of a segment are acknowledged, in any order, the segment is removed. The newest segment is
// not removed.
func TestAcknowledgedSegmentsAreRemoved(t *testing.T) {
	j := newJournal(t)
	appendResults(t, j, 1, 2)
	j.segmentSize = maxSegmentBytes + 1
	appendResults(t, j, 3)
	j.AckResult(1)
	checkJournal(t, j.dir, "one of two acknowledged", 1, 2, 3)
	j.AckResult(1)
	checkJournal(t, j.dir, "both acknowledged", 3)
	if _, err := os.Stat(j.segmentPath(1)); !os.IsNotExist(err) {
		t.Errorf("the first segment still exists: %v", err)
	}
	j.AckResult(2)
	appendResults(t, j, 4)
	checkJournal(t, j.dir, "small segment, nothing emptied", 3, 4)
	j.segmentSize = minTruncatedSegmentBytes + 1
	j.AckResult(2)
	checkJournal(t, j.dir, "large segment, all acknowledged")
	appendResults(t, j, 5)
	checkJournal(t, j.dir, "after it was emptied", 5)
}

// The journal parser does not panic, no matter what the journal contains. It returns a valid record even if
// damaged data follows.
func FuzzJournalParser(f *testing.F) {
	frame := encodedResultFrame(1)
	record := append(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(frame)), frame...)
	f.Add(record)
	f.Add(append(slices.Clone(record), record[:9]...))
	f.Add([]byte{1, 2, 3, 4, 1, 0, 0, 0, 10})
	f.Fuzz(func(t *testing.T, raw []byte) {
		alone, _ := parseSegment(raw)
		if both, _ := parseSegment(append(slices.Clone(record), raw...)); len(both) != len(alone)+1 || both[0].Seq != 1 {
			t.Fatalf("%x: got %d results alone and %d behind a good one", raw, len(alone), len(both))
		}
	})
}
