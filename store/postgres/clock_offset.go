package postgres

import (
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
)

// clockOffset is how far this machine's clock is behind the server's, in milliseconds.
//
// The server reads its clock between the request and the reply. So each reading gives a lower and an upper
// bound of the offset. If the stored offset is outside of these bounds, it is set to the nearer bound.
//
// Example: the clocks are equal, and the reply to a reading arrives 200 ms late. The server's time is then 200
// ms before the time at which the reply is received, but not before that of the request, so the offset stays 0.
type clockOffset struct{ atomic.Int64 }

// update adjusts the offset to a reading of the server's clock. sentAt and receivedAt are times of
// this machine's clock.
func (o *clockOffset) update(sentAt, serverTime, receivedAt queue.Millis) {
	o.Store(min(max(o.Load(), int64(serverTime-receivedAt)), int64(serverTime-sentAt)))
}
