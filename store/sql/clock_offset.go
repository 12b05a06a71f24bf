package sql

import (
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
)

// clockOffset is how far this machine's clock is behind the server's, in milliseconds.
//
// The server reads its clock between the request and the reply, so a reading shows only that the offset is between two
// values. An offset outside of them is moved to the nearer one. An example: the clocks are equal, and the reply to a
// reading is 200 ms late. The server's time is then 200 ms before the time at which the reply is received, but not
// before that of the request, so the offset stays 0.
type clockOffset struct{ atomic.Int64 }

// correct takes account of a reading of the server's clock. sent and received are by this machine's clock.
func (o *clockOffset) correct(sent, server, received queue.Millis) {
	o.Store(min(max(o.Load(), int64(server-received)), int64(server-sent)))
}
