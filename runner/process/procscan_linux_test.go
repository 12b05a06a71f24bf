package process

import (
	"os"
	"sync"
	"testing"
)

// Goroutines that need a scan of all processes at the same time share one, so only a few scans take place.
// Each goroutine gets a scan that began after its call.
func TestScansAreShared(t *testing.T) {
	var o scanner
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 4 {
				o.mu.Lock()
				before := o.scanCount
				o.mu.Unlock()
				l := o.freshScan()
				if l.number <= before {
					t.Errorf("got a scan that started before the request")
				}
				if !l.isOwnedBy(uint32(os.Getuid()), os.Getpid()) {
					t.Errorf("the scan does not contain this process")
				}
			}
		})
	}
	all.Wait()
	if o.scanCount > 20 {
		t.Errorf("%d scans for 200 requests from 50 goroutines, want at most 20", o.scanCount)
	}
}
