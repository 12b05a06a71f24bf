//go:build unix

package rundir

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// If a record is written only in part, for example because the disk is full, the journal removes the part.
// Readers thus find all later records.
func TestJournalRemovesPartlyWrittenRecord(t *testing.T) {
	const limit = 128 << 10 // not a multiple of the size of a record
	j := newJournal(t)
	var want []int64
	for seq := int64(1); j.segmentSize+int64(len(encodedResultFrame(1)))+4 <= limit; seq++ {
		appendResults(t, j, seq)
		want = append(want, seq)
	}
	removeLimit := limitFileSize(t, limit)
	_, err := j.AppendResult(encodedResultFrame(-1))
	removeLimit()
	if err == nil {
		t.Fatal("the write was not cut short")
	}
	appendResults(t, j, -2)
	checkJournal(t, j.dir, "after a short write", append(want, -2)...)
}

// limitFileSize prevents files of this process from growing beyond maxBytes, until the returned function is
// called.
func limitFileSize(t *testing.T, maxBytes int64) func() {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead of the signal ending this process
	var oldLimit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &oldLimit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(maxBytes), Max: oldLimit.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &oldLimit); err != nil {
			t.Fatal(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
}

// allocatedBytes returns for how many bytes of a file the file system has allocated space.
func allocatedBytes(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
