package process

import (
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner/procfs"
)

// Limits of scans of all processes. A scan takes about 10 µs for each process. See docs/decisions/0040.
const (
	// scanPauseFactor sets the pause after a scan, as a multiple of the duration of the scan. Scans
	// therefore use at most a fifth of one processor, however many processes the commands leave behind,
	// unless maxScanPause shortens the pause.
	scanPauseFactor = 4
	// maxScanPause is the longest pause. A scan is slow with thousands of processes or on a busy
	// machine, and commands that are ending must not wait much longer.
	maxScanPause = 100 * time.Millisecond
)

// processScanner scans the processes of this machine, for all goroutines that search for leftover processes.
var processScanner scanner

// scanner scans all processes. Goroutines that need a scan at the same time share one. The zero value
// is ready for use.
type scanner struct {
	mu         sync.Mutex
	changed    sync.Cond // latest or isScanning has changed; its L is set to &mu on first use
	isScanning bool      // a goroutine is scanning
	scanCount  int       // number of scans that have begun
	latest     *scan
	notBefore  time.Time // no scan begins before this time
}

// scan is the result of a scan. It contains the state of each process at some time
// during the scan.
type scan struct {
	number  int // number of this scan, from 1
	procs   []procfs.Process
	realUID map[int]uint32 // real user id by pid

	mu      sync.Mutex
	cookies map[int]string // requested cookies, by pid; guarded by mu
}

// freshScan returns the result of a scan that began after the call.
func (s *scanner) freshScan() *scan {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed.L == nil {
		s.changed.L = &s.mu
	}
	for wanted := s.scanCount + 1; s.latest == nil || s.latest.number < wanted; {
		if s.isScanning {
			s.changed.Wait()
			continue
		}
		s.isScanning = true
		pause := time.Until(s.notBefore)
		s.mu.Unlock()
		time.Sleep(pause)
		s.mu.Lock()
		s.scanCount++
		number := s.scanCount
		s.mu.Unlock()
		start := time.Now()
		l := newScan(number)
		took := time.Since(start)
		s.mu.Lock()
		s.latest, s.isScanning, s.notBefore = l, false, time.Now().Add(min(scanPauseFactor*took, maxScanPause))
		s.changed.Broadcast()
	}
	return s.latest
}

func newScan(number int) *scan {
	procs := procfs.AllProcesses()
	l := &scan{number: number, procs: procs, realUID: make(map[int]uint32, len(procs)), cookies: map[int]string{}}
	for _, p := range procs {
		if real, _, ok := procfs.UIDs(p.PID); ok {
			l.realUID[p.PID] = real
		}
	}
	return l
}

// isOwnedBy reports whether a process belongs to an account, as IsOwnedBy does.
func (s *scan) isOwnedBy(uid uint32, pid int) bool {
	real, ok := s.realUID[pid]
	return ok && real == uid
}

// cookie returns the cookie of a process, as readCookie does.
func (s *scan) cookie(pid int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, known := s.cookies[pid]
	if !known {
		c = readCookie(pid)
		s.cookies[pid] = c
	}
	return c
}

// readCookie returns the cookie in a process's environment. It returns "" if the environment has no
// cookie or cannot be read.
func readCookie(pid int) string { return procfs.EnvVar(pid, CookieName) }
