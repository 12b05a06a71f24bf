package tune

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

// Most of the memory of an idle service contains code and constant data of libraries. The program reads this memory
// when it starts and at the first request of each kind, and rarely later. So these pages can be released while the
// service is idle.

// A service is idle if it uses less than 1/idleCPUTimeDivisor of a processor. Before it releases memory, MemoryTrimmer
// collects garbage, but only if the service has used minCPUTimeBeforeGC since the previous collection. See
// docs/decisions/0073.
const (
	idleCPUTimeDivisor = 100
	minCPUTimeBeforeGC = 20 * time.Millisecond // time on a processor, not elapsed time
)

// MemoryTrimmer releases memory of an idle program to the system. Its methods may be called concurrently.
type MemoryTrimmer struct {
	mu          sync.Mutex
	lastCheckAt time.Time // time of the last call of TrimIfIdle or BeginIdleCheck
	// cpuTimeAtLastCheck is the processor time that the program had used at the last call of TrimIfIdle. cpuTimeAtLastTrim
	// is the processor time that it had used at the last garbage collection by MemoryTrimmer.
	cpuTimeAtLastCheck, cpuTimeAtLastTrim time.Duration
}

// BeginIdleCheck begins the first interval: the first call of TrimIfIdle checks whether the program was idle since
// then.
func (t *MemoryTrimmer) BeginIdleCheck() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastCheckAt, t.cpuTimeAtLastCheck = time.Now(), processCPUTime()
}

// TrimIfIdle releases memory if the program was idle since the previous call. It takes about a millisecond, or
// longer if it must collect a large heap.
func (t *MemoryTrimmer) TrimIfIdle() {
	if !t.mu.TryLock() {
		return // another call is in progress
	}
	defer t.mu.Unlock()
	now, used := time.Now(), processCPUTime()
	idle := (used-t.cpuTimeAtLastCheck)*idleCPUTimeDivisor < now.Sub(t.lastCheckAt)
	t.lastCheckAt, t.cpuTimeAtLastCheck = now, used
	if idle {
		t.releasePagesLocked(used-t.cpuTimeAtLastTrim >= minCPUTimeBeforeGC)
	}
}

// releasePagesLocked releases the pages that are unchanged copies of this program's file and, if includeHeap is set,
// unused memory of the heap. If the program uses a released page of the file again, the kernel maps it from the page
// cache, mostly 64 KiB at a time and in a few microseconds. Errors are ignored. The caller holds mu.
func (t *MemoryTrimmer) releasePagesLocked(includeHeap bool) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	list := unmodifiedMappings(smaps, exe)
	smaps = nil
	if includeHeap {
		debug.FreeOSMemory()
		t.cpuTimeAtLastTrim = processCPUTime()
	}
	for _, m := range list {
		unix.RawSyscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

// processCPUTime returns the processor time that this program has used.
func processCPUTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// memoryMapping is a range of addresses in the memory of this process.
type memoryMapping struct{ start, end uintptr }

// unmodifiedMappings returns the read-only mappings of a file without modified pages. Their pages can be released,
// because the kernel can read them from the file again.
func unmodifiedMappings(smaps []byte, filePath string) (mappings []memoryMapping) {
	var m memoryMapping
	clean := false // m is a read-only mapping of the file, and no modified page was found in it
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 6 && len(words[1]) == 4: // start-end perms offset device inode path
			from, to, _ := strings.Cut(words[0], "-")
			start, err := strconv.ParseUint(from, 16, int(8*unsafe.Sizeof(m.start)))
			end, err2 := strconv.ParseUint(to, 16, int(8*unsafe.Sizeof(m.start)))
			m = memoryMapping{uintptr(start), uintptr(end)}
			clean = err == nil && err2 == nil && words[1][1] == '-' && strings.Join(words[5:], " ") == filePath
		case len(words) == 5 && len(words[1]) == 4: // a mapping without a file
			clean = false
		case clean && len(words) == 3 && words[0] == "Anonymous:": // pages that were modified
			clean = words[1] == "0"
		case clean && len(words) == 3 && words[0] == "Swap:": // modified pages that are in swap space
			if words[1] == "0" {
				mappings = append(mappings, m)
			}
			clean = false
		}
	}
	return mappings
}
