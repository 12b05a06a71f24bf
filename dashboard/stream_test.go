package dashboard

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"
)

// heldKey is the key of what a request's context holds in the test below.
type heldKey struct{}

// A stream that has ended leaves nothing behind, however long the page stands; the end of the page ends those that go on.
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
