package dashboard

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"
)

// heldKey is the context key of a value. The test below observes when that value is garbage-collected.
type heldKey struct{}

// A stream that has ended is garbage-collected while the page is still running. Closing the page ends the
// remaining streams.
func TestStreamsLeaveNothing(t *testing.T) {
	streams, end := context.WithCancel(t.Context())
	defer end()
	base := context.WithValue(t.Context(), streamsKey{}, streams)
	once := func() weak.Pointer[[4096]byte] {
		held := new([4096]byte)
		_, done := streaming(httptest.NewRequest("GET", "/live", nil).WithContext(context.WithValue(base, heldKey{}, held)))
		done()
		return weak.Make(held)
	}
	left := once()
	runtime.GC()
	if left.Value() != nil {
		t.Error("the request of a stream that has ended is held")
	}
	r, done := streaming(httptest.NewRequest("GET", "/live", nil).WithContext(base))
	defer done()
	end()
	<-r.Context().Done()
}
