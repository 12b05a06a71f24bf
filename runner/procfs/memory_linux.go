package procfs

import (
	"sync"
	"sync/atomic"
	"time"
)

// A process can make reads of its memory, such as /proc/PID/environ, block indefinitely. For example,
// it executes a program while it has a file open on a file system that does not answer. Or it maps such
// a file at the address of its environment. Threads that can be abandoned therefore do these reads. See
// docs/decisions/0054.
var memories = memoryReaders{hung: map[uint32]int{}}

// ReadMemory calls a function that reads a process's memory. It returns ok=false if the read hangs, or if
// another read of a process of the same account still hangs.
func ReadMemory(pid int, read func() string) (text string, ok bool) { return memories.read(pid, read) }

// memoryReadTimeout limits how long a read of a process's memory may take.
const memoryReadTimeout = time.Second

// memoryReaders are the threads that read: one for each concurrent read, including reads that hang.
type memoryReaders struct {
	anyHung atomic.Bool // some read hangs

	mu   sync.Mutex
	idle []*memoryReader
	// hung counts the reads that hang, by account. Until they return, no process of the account is
	// read.
	hung map[uint32]int
}

type memoryReader struct {
	requests chan func() string
	replies  chan string
	timer    *time.Timer
}

// read implements ReadMemory with any function that reads.
func (m *memoryReaders) read(pid int, read func() string) (text string, ok bool) {
	if m.anyHung.Load() && m.blocks(pid) {
		return "", false
	}
	r := m.get()
	r.requests <- read
	r.timer.Reset(memoryReadTimeout)
	select {
	case text = <-r.replies:
		r.timer.Stop()
		m.put(r)
		return text, true
	case <-r.timer.C:
		m.abandon(r, pid)
		return "", false
	}
}

func (m *memoryReaders) blocks(pid int) bool {
	uid, _, ok := UIDs(pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	return ok && m.hung[uid] > 0
}

func (m *memoryReaders) get() *memoryReader {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.idle); n > 0 {
		r := m.idle[n-1]
		m.idle = m.idle[:n-1]
		return r
	}
	r := &memoryReader{make(chan func() string), make(chan string), time.NewTimer(memoryReadTimeout)}
	go func() { // runs until this process ends; later reads use it again
		for read := range r.requests {
			r.replies <- read()
		}
	}()
	return r
}

func (m *memoryReaders) put(r *memoryReader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, r)
}

// abandon abandons a reader that hangs.
func (m *memoryReaders) abandon(r *memoryReader, pid int) {
	uid, _, exists := UIDs(pid)
	if exists {
		m.countHung(uid, 1)
	}
	go func() { // ends when the process answers or has ended
		<-r.replies
		if exists {
			m.countHung(uid, -1)
		}
		m.put(r)
	}()
}

func (m *memoryReaders) countHung(uid uint32, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hung[uid] += n; m.hung[uid] == 0 {
		delete(m.hung, uid)
	}
	m.anyHung.Store(len(m.hung) > 0)
}
