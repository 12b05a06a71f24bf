package process

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

// answerWithin limits how long a read of a process's memory may take.
const answerWithin = time.Second

// memoryReaders are the threads that read: one for each concurrent read, including reads that hang.
type memoryReaders struct {
	any atomic.Bool // some read hangs

	mu   sync.Mutex
	idle []*memoryReader
	// hung counts the reads that hang, by account. Until they return, no process of the account is
	// read.
	hung map[uint32]int
}

type memoryReader struct {
	ask  chan func() string
	told chan string
	rest *time.Timer
}

// read calls a function that reads a process's memory. It returns ok=false if the read hangs, or if
// another read of the same account does.
func (m *memoryReaders) read(pid int, read func() string) (text string, ok bool) {
	if m.any.Load() && m.blocks(pid) {
		return "", false
	}
	r := m.take()
	r.ask <- read
	r.rest.Reset(answerWithin)
	select {
	case text = <-r.told:
		r.rest.Stop()
		m.give(r)
		return text, true
	case <-r.rest.C:
		m.leave(r, pid)
		return "", false
	}
}

func (m *memoryReaders) blocks(pid int) bool {
	uid, _, ok := uidsOf(pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	return ok && m.hung[uid] > 0
}

func (m *memoryReaders) take() *memoryReader {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.idle); n > 0 {
		r := m.idle[n-1]
		m.idle = m.idle[:n-1]
		return r
	}
	r := &memoryReader{make(chan func() string), make(chan string), time.NewTimer(answerWithin)}
	go func() { // runs until this process ends; later reads use it again
		for read := range r.ask {
			r.told <- read()
		}
	}()
	return r
}

func (m *memoryReaders) give(r *memoryReader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, r)
}

// leave abandons a reader that hangs.
func (m *memoryReaders) leave(r *memoryReader, pid int) {
	uid, _, there := uidsOf(pid)
	if there {
		m.blame(uid, 1)
	}
	go func() { // ends when the process answers or has ended
		<-r.told
		if there {
			m.blame(uid, -1)
		}
		m.give(r)
	}()
}

func (m *memoryReaders) blame(uid uint32, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hung[uid] += n; m.hung[uid] == 0 {
		delete(m.hung, uid)
	}
	m.any.Store(len(m.hung) > 0)
}
