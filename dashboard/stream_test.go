package dashboard

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"
)

// trackedContextKey is the key of a value in the context of a request. The test watches when this value is
// garbage-collected, because the request is then garbage-collected too.
type trackedContextKey struct{}

// After a stream has ended, its request is garbage-collected, even if the page continues to run. When the page
// is closed, the remaining streams end.
func TestEndedStreamRequestIsGarbageCollected(t *testing.T) {
	streams, end := context.WithCancel(t.Context())
	defer end()
	base := context.WithValue(t.Context(), streamsContextKey{}, streams)
	once := func() weak.Pointer[[4096]byte] {
		held := new([4096]byte)
		ctx := context.WithValue(base, trackedContextKey{}, held)
		_, done := withCancelOnServerClose(httptest.NewRequest("GET", "/live", nil).WithContext(ctx))
		done()
		return weak.Make(held)
	}
	left := once()
	runtime.GC()
	if left.Value() != nil {
		t.Error("the request of an ended stream was not garbage-collected")
	}
	r, done := withCancelOnServerClose(httptest.NewRequest("GET", "/live", nil).WithContext(base))
	defer done()
	end()
	<-r.Context().Done()
}
