// Package resident keeps what a service holds in memory small while it is idle. Its start, and each kind of request, read code and
// tables of libraries that are not needed again for long, and are most of what it would hold.
package resident

import (
	"bufio"
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An idle service is one that takes less than a hundredth of a processor. What it has used since its heap was looked through must be
// worth another time.
// See docs/decisions/0073.
const (
	idleShare = 100
	worthIt   = 20 * time.Millisecond // of processor time
)

// Trimmer knows when there is something to drop. It may be used by several goroutines at once.
type Trimmer struct {
	mu            sync.Mutex
	looked        time.Time
	used, cleaned time.Duration // of processor time, at the last look, and when the heap was looked through
}

// Begin is the first look, which drops nothing.
func (t *Trimmer) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked, t.used = time.Now(), processorTime()
}

// Look drops what is held too much if the program was idle since the last look. That takes about a millisecond, and longer where there
// is a large heap to look through.
func (t *Trimmer) Look() {
	if !t.mu.TryLock() {
		return // another look is under way
	}
	defer t.mu.Unlock()
	now, used := time.Now(), processorTime()
	idle := (used-t.used)*idleShare < now.Sub(t.looked)
	t.looked, t.used = now, used
	if idle {
		t.drop(used-t.cleaned >= worthIt)
	}
}

// drop drops the pages of this program's file from its memory, and what the heap has too much. What is used again comes back from the
// page cache, mostly 64 KiB at a time, in a few microseconds each. Pages that were written to are left alone; where nothing can be
// dropped nothing is. The caller holds mu.
func (t *Trimmer) drop(heap bool) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	list := unwritten(smaps, exe)
	smaps = nil
	if heap {
		debug.FreeOSMemory()
		t.cleaned = processorTime()
	}
	for _, m := range list {
		unix.RawSyscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

// processorTime is what this program has used.
func processorTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

type mapping struct{ start, end uintptr }

// unwritten are the mappings of a file that cannot be written to, and were not: all that they hold is the file's.
func unwritten(smaps []byte, file string) (list []mapping) {
	var m mapping
	of := false
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 6 && len(words[1]) == 4: // start-end perms offset device inode path
			from, to, _ := strings.Cut(words[0], "-")
			start, err := strconv.ParseUint(from, 16, int(8*unsafe.Sizeof(m.start)))
			end, err2 := strconv.ParseUint(to, 16, int(8*unsafe.Sizeof(m.start)))
			m = mapping{uintptr(start), uintptr(end)}
			of = err == nil && err2 == nil && words[1][1] == '-' && strings.Join(words[5:], " ") == file
		case len(words) == 5 && len(words[1]) == 4: // of no file
			of = false
		case of && len(words) == 3 && words[0] == "Anonymous:": // pages that were written to
			of = words[1] == "0"
		case of && len(words) == 3 && words[0] == "Swap:": // and such as are not in memory now
			if words[1] == "0" {
				list = append(list, m)
			}
			of = false
		}
	}
	return list
}
