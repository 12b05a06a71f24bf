//go:build unix

package rundir

import (
	"fmt"
	"os"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// If a journal was removed or cut off at any byte, it is reported as incomplete, because the lost part may
// contain results.
func TestTruncatedJournalIsIncomplete(t *testing.T) {
	dir, _, j := newRunnerFiles(t)
	checkComplete := func(when string, want bool) {
		t.Helper()
		read, err := ReadRunningTable(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := ReadJournal(dir, read.JournalSize, func(wire.Lease) bool { return true }); got != want ||
			err != nil {
			t.Errorf("%s: the journal counts as complete: %t, error %v; want %t", when, got, err, want)
		}
	}
	checkTruncated := func(what string, segment int) {
		t.Helper()
		raw, err := os.ReadFile(j.segmentPath(segment))
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range []int{0, 1, len(raw) / 2, len(raw) / 3, len(raw) - 1} {
			os.Truncate(j.segmentPath(segment), int64(cut))
			checkComplete(fmt.Sprintf("%s, cut to %d of %d bytes", what, cut, len(raw)), false)
		}
		os.Remove(j.segmentPath(segment))
		checkComplete(what+", removed", false)
		if err := os.WriteFile(j.segmentPath(segment), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		checkComplete(what+", put back", true)
	}
	checkComplete("empty", true)
	appendResults(t, j, 1, 2, 3)
	checkTruncated("the newest segment", 1)
	raw, err := os.ReadFile(j.segmentPath(1))
	if err == nil {
		err = os.WriteFile(j.segmentPath(1), append(raw, raw[:9]...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkComplete("torn behind what was noted", true)
	os.WriteFile(j.segmentPath(1), raw, 0o600)
	// Continue in a new segment, which normally happens when the old one is full.
	if err := j.startSegmentLocked(); err != nil {
		t.Fatal(err)
	}
	appendResults(t, j, 4)
	checkTruncated("the older segment", 1)
	checkTruncated("the newest segment of two", 2)
	for range 3 {
		j.AckResult(1)
	}
	checkComplete("the older segment is acknowledged", true)
	j.segmentSize = minTruncatedSegmentBytes + 1
	j.AckResult(2)
	checkComplete("all is acknowledged", true)
}
