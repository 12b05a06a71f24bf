package tune

import (
	"reflect"
	"testing"
	"time"
)

// unmodifiedMappings returns read-only mappings of the program's file, but none with modified pages.
func TestModifiedMappingsAreNotReleased(t *testing.T) {
	const smaps = `00400000-01234000 r-xp 00000000 fd:01 42                                 /opt/a b/queuectld
Size:              14544 kB
Rss:               12216 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
01234000-02000000 r--p 00e34000 fd:01 42                                 /opt/a b/queuectld
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac sd
02000000-02100000 rw-p 01c00000 fd:01 42                                 /opt/a b/queuectld
Anonymous:             0 kB
Swap:                  0 kB
02100000-02200000 rw-p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
c000000000-c000400000 rw-p 00000000 00:00 0                              [anon: Go: heap]
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r--s 00000000 fd:01 43                         /opt/a b/queuectld.db
Anonymous:             0 kB
Swap:                  0 kB
7f0000002000-7f0000003000 r--p 00000000 fd:01 42                         /opt/a b/queuectld
Anonymous:             0 kB
Swap:                  0 kB
7f0000003000-7f0000004000 r--p 00000000 fd:01 42                         /opt/a b/queuectld
Anonymous:             0 kB
Swap:                  4 kB
`
	want := []memoryMapping{{0x400000, 0x1234000}, {0x7f0000002000, 0x7f0000003000}}
	if got := unmodifiedMappings([]byte(smaps), "/opt/a b/queuectld"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if got := unmodifiedMappings([]byte(smaps), "/opt/queuectld"); got != nil {
		t.Errorf("of another file: %x", got)
	}
}

// TrimIfIdle collects the heap once when the program is idle again after work. It collects nothing while the program
// works, and nothing more while the program stays idle.
func TestHeapIsCollectedOnceWhenIdle(t *testing.T) {
	var m MemoryTrimmer
	m.BeginIdleCheck()
	first := m.cpuTimeAtLastTrim
	for processCPUTime()-m.cpuTimeAtLastCheck < 2*minCPUTimeBeforeGC {
	}
	// The program has used much processor time in this short interval, so TrimIfIdle finds it busy.
	m.lastCheckAt = m.lastCheckAt.Add(-minCPUTimeBeforeGC)
	if m.TrimIfIdle(); m.cpuTimeAtLastTrim != first {
		t.Error("memory was trimmed while the process was busy")
	}
	m.lastCheckAt = m.lastCheckAt.Add(-time.Hour)
	if m.TrimIfIdle(); m.cpuTimeAtLastTrim == first {
		t.Error("memory was not trimmed when the process was idle")
	}
	second := m.cpuTimeAtLastTrim
	m.lastCheckAt = m.lastCheckAt.Add(-time.Hour)
	if m.TrimIfIdle(); m.cpuTimeAtLastTrim != second {
		t.Error("memory was trimmed again although the process had been idle since")
	}
}
