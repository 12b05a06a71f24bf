package postgres

import (
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
)

// serverClockOffsetMillis is how far this machine's clock is behind the server's, in milliseconds.
//
// A node asks the server for its time. The server reads its clock between the request and the reply, so each
// reading gives a lower and an upper bound of the offset. If the stored offset is outside of these bounds, it
// is set to the nearer one.
//
// Example: the clocks are equal, and a reply arrives 200 ms late. The server's time is 200 ms before the time
// of the reply, but not before that of the request. So the offset stays 0.
type serverClockOffsetMillis struct{ atomic.Int64 }

// update adjusts the offset after a reading of the server's clock. sentAt and receivedAt are the times of the
// request and of the reply on this machine's clock.
func (o *serverClockOffsetMillis) update(sentAt, serverTime, receivedAt queue.UnixMillis) {
	o.Store(min(max(o.Load(), int64(serverTime-receivedAt)), int64(serverTime-sentAt)))
}
