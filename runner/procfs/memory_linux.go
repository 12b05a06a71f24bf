package procfs

import (
	"sync"
	"time"
)

// A read of a process's memory, such as /proc/PID/environ, can block indefinitely. For example, the process can map a
// file at the address of its environment, on a file system that does not respond. So each of these reads runs in a
// separate goroutine, and the caller waits at most memoryReadTimeout for the result. See docs/decisions/0054.
var globalHungReads = hungMemoryReads{hungCountByUID: map[uint32]int{}}

// ReadMemoryWithTimeout calls readMemory, which reads the memory of the process with this pid, and returns its result.
// It returns ok=false if readMemory hangs, or if an earlier call for a process of the same account still hangs.
func ReadMemoryWithTimeout(pid int, readMemory func() string) (memoryText string, ok bool) {
	return globalHungReads.readWithTimeout(pid, readMemory)
}

// memoryReadTimeout limits how long a read of a process's memory may take.
const memoryReadTimeout = time.Second

// hungMemoryReads counts the reads that hang. Each of them occupies a thread, so their number must be limited.
type hungMemoryReads struct {
	mu sync.Mutex
	// hungCountByUID counts the reads that hang, by account. While a read for an account hangs, no other read for
	// this account starts.
	hungCountByUID map[uint32]int
}

// readWithTimeout implements ReadMemoryWithTimeout.
func (m *hungMemoryReads) readWithTimeout(pid int, readMemory func() string) (text string, ok bool) {
	if m.isAccountBlocked(pid) {
		return "", false
	}
	reply := make(chan string, 1)
	// This goroutine ends when the read returns. If the read never returns, the goroutine lasts until this process ends.
	go func() { reply <- readMemory() }()
	select {
	case text = <-reply:
		return text, true
	case <-time.After(memoryReadTimeout):
	}
	if uid, _, exists := UIDs(pid); exists {
		m.addHungReads(uid, 1)
		go func() { // this goroutine ends when the read returns
			<-reply
			m.addHungReads(uid, -1)
		}()
	}
	return "", false
}

// isAccountBlocked reports whether an earlier read of a process of the same account hangs.
func (m *hungMemoryReads) isAccountBlocked(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.hungCountByUID) == 0 { // no read hangs, for any account
		return false
	}
	uid, _, ok := UIDs(pid)
	return ok && m.hungCountByUID[uid] > 0
}

// addHungReads adds delta to the number of hanging reads of an account's processes.
func (m *hungMemoryReads) addHungReads(uid uint32, delta int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hungCountByUID[uid] += delta; m.hungCountByUID[uid] == 0 {
		delete(m.hungCountByUID, uid)
	}
}
