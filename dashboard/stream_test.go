package dashboard

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"
)

// heldKey is the key of a context value. The test observes when that value is garbage-collected.
type heldKey struct{}

// After the end of a stream, its request is garbage-collected, even if the page continues to run. Closing the
// page ends the remaining streams.
func TestStreamsLeaveNothing(t *testing.T) {
	streams, end := context.WithCancel(t.Context())
	defer end()
	base := context.WithValue(t.Context(), streamsKey{}, streams)
	once := func() weak.Pointer[[4096]byte] {
		held := new([4096]byte)
		ctx := context.WithValue(base, heldKey{}, held)
		_, done := cancelOnClose(httptest.NewRequest("GET", "/live", nil).WithContext(ctx))
		done()
		return weak.Make(held)
	}
	left := once()
	runtime.GC()
	if left.Value() != nil {
		t.Error("the request of an ended stream was not garbage-collected")
	}
	r, done := cancelOnClose(httptest.NewRequest("GET", "/live", nil).WithContext(base))
	defer done()
	end()
	<-r.Context().Done()
}
