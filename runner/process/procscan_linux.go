package process

import (
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner/procfs"
)

// These constants limit scans of all processes. A scan takes about 10 µs for each process. See
// docs/decisions/0040.
const (
	// scanPauseFactor is the length of the pause after a scan, as a multiple of the duration of the scan. So scans use at
	// most a fifth of one processor, unless maxScanPause limits the pause.
	scanPauseFactor = 4
	// maxScanPause is the longest pause after a scan. A scan can be slow, for example because thousands of processes
	// exist. A long pause after it would delay the end of commands even more.
	maxScanPause = 100 * time.Millisecond
)

// processScanner scans the processes of this machine, for all workers of this process.
var processScanner scanner

// scanner scans all processes. Goroutines that need a scan at the same time share one scan. The zero value of scanner
// is ready for use.
type scanner struct {
	mu sync.Mutex
	// joinNextScan starts the next scan or waits for it, and returns the result. It is nil if no goroutine waits
	// for a scan; guarded by mu.
	joinNextScan func() *processSnapshot

	scanMu                sync.Mutex // held during a scan and the pause before it
	earliestNextScanStart time.Time  // no scan begins before this time; guarded by scanMu
}

// processSnapshot is the result of one scan of all processes. The state of each process is from some time during the
// scan.
type processSnapshot struct {
	startedAt    time.Time
	procs        []procfs.Process
	realUIDByPID map[int]uint32 // real user id by pid

	mu          sync.Mutex
	cookieByPID map[int]string // cookies that were already read, by pid; guarded by mu
}

// freshSnapshot returns the result of a scan that begins after the call. Concurrent callers share a scan.
func (s *scanner) freshSnapshot() *processSnapshot {
	s.mu.Lock()
	if s.joinNextScan == nil {
		s.joinNextScan = sync.OnceValue(s.scan)
	}
	next := s.joinNextScan
	s.mu.Unlock()
	return next()
}

// scan waits until a scan may begin, and then scans.
func (s *scanner) scan() *processSnapshot {
	s.scanMu.Lock()
	defer s.scanMu.Unlock()
	time.Sleep(time.Until(s.earliestNextScanStart))
	s.mu.Lock()
	s.joinNextScan = nil // a later call of freshSnapshot needs another scan
	s.mu.Unlock()
	result := takeProcessSnapshot()
	s.earliestNextScanStart = time.Now().Add(min(scanPauseFactor*time.Since(result.startedAt), maxScanPause))
	return result
}

// takeProcessSnapshot scans all processes immediately.
func takeProcessSnapshot() *processSnapshot {
	l := &processSnapshot{startedAt: time.Now(), procs: procfs.AllProcesses(), cookieByPID: map[int]string{}}
	l.realUIDByPID = make(map[int]uint32, len(l.procs))
	for _, p := range l.procs {
		if real, _, ok := procfs.UIDs(p.PID); ok {
			l.realUIDByPID[p.PID] = real
		}
	}
	return l
}

// isOwnedBy reports whether a process belonged to an account at the time of the scan.
func (s *processSnapshot) isOwnedBy(uid uint32, pid int) bool {
	real, ok := s.realUIDByPID[pid]
	return ok && real == uid
}

// cookie returns the cookie of a process. It reads the cookie of each process only once.
func (s *processSnapshot) cookie(pid int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, known := s.cookieByPID[pid]
	if !known {
		c = readCookie(pid)
		s.cookieByPID[pid] = c
	}
	return c
}

// readCookie returns the cookie in a process's environment. It returns "" if the environment has no
// cookie or cannot be read.
func readCookie(pid int) string { return procfs.EnvVar(pid, CookieEnvVar) }
