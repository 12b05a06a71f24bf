package process

import (
	"os"
	"sync"
	"testing"
)

// Goroutines that need a scan of all processes at the same time share one. The scan begins after the
// call of each of them, and only a few scans take place.
func TestScansAreShared(t *testing.T) {
	var o scanner
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 4 {
				o.mu.Lock()
				before := o.started
				o.mu.Unlock()
				l := o.fresh()
				if l.number <= before {
					t.Errorf("a look was told that had begun before")
				}
				if !l.owns(uint32(os.Getuid()), os.Getpid()) {
					t.Errorf("this process was not seen")
				}
			}
		})
	}
	all.Wait()
	if o.started > 20 {
		t.Errorf("%d looks for 200 who asked, 50 at once", o.started)
	}
}
