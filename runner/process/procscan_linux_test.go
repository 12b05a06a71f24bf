package process

import (
	"os"
	"sync"
	"testing"
	"time"
)

// Goroutines that need a scan of all processes at the same time share one scan, so only few scans are done. Each
// goroutine gets the result of a scan that began after its call.
func TestConcurrentCallersShareScan(t *testing.T) {
	var o scanner
	var all sync.WaitGroup
	var scans sync.Map // the key is the *scan
	for range 50 {
		all.Go(func() {
			for range 4 {
				before := time.Now()
				l := o.freshSnapshot()
				scans.Store(l, true)
				if l.startedAt.Before(before) {
					t.Errorf("got a scan that started before the request")
				}
				if !l.isOwnedBy(uint32(os.Getuid()), os.Getpid()) {
					t.Errorf("the scan does not contain this process")
				}
			}
		})
	}
	all.Wait()
	count := 0
	for range scans.Range {
		count++
	}
	if count > 20 {
		t.Errorf("%d scans for 200 requests from 50 goroutines, want at most 20", count)
	}
}
