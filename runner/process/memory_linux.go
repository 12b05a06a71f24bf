package process

import (
	"sync"
	"sync/atomic"
	"time"
)

// A process can have whoever reads its memory wait for as long as it likes: in an exec that
// closes a file of a disk of its own that does not answer, or with such a file where its
// environment was. So its memory is read by threads that can be left behind.
// See docs/decisions/0054.
var memories = memoryReaders{hung: map[uint32]int{}}

// answerWithin is how long a process's memory is waited for.
const answerWithin = time.Second

// memoryReaders are the threads that read, one for each who asks at once, and which wait in vain.
type memoryReaders struct {
	any atomic.Bool // whether anything hangs

	mu   sync.Mutex
	idle []*memoryReader
	hung map[uint32]int // by account, reads that hang: no other process of it is read meanwhile
}

type memoryReader struct {
	ask  chan func() string
	told chan string
	rest *time.Timer
}

// read has something read of a process's memory; ok is false if the process, or another one of
// its account, has readers wait.
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
	go func() { // as long as the process: it is for whoever asks next
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

// leave has a reader that waits for a process's memory wait alone.
func (m *memoryReaders) leave(r *memoryReader, pid int) {
	uid, _, there := uidsOf(pid)
	if there {
		m.blame(uid, 1)
	}
	go func() { // until the process's memory answers, or it has ended
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
