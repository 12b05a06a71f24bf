// Package noderequests sends requests from one node of a queue to another, through a table of the PostgreSQL
// database.
//
// Start with NodeMessenger.
package noderequests

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
)

// NodeMessenger sends requests to other nodes of the queue and receives their requests. It implements
// store.NodeRequests.
type NodeMessenger struct {
	Conn                *pgdb.ReconnectingConn
	nodeNumber          func() int64 // returns the number of this node
	requestHints        chan struct{}
	receiverWakeChannel atomic.Pointer[chan struct{}] // the channel that the next WakeReceivers closes
	// TakeRequests marks the requests that it takes with a random value. lostReplyTakeMarks holds, newest last, the
	// values of calls whose replies were lost; the next call removes these marks, so that the requests are
	// taken again. Only the goroutine that calls TakeRequests uses this field.
	lostReplyTakeMarks []int64
}

// New returns the NodeMessenger of a node. nodeNumber returns the number of this node.
func New(config *pgdb.ConnConfig, nodeNumber func() int64) *NodeMessenger {
	r := &NodeMessenger{Conn: &pgdb.ReconnectingConn{Config: config}, nodeNumber: nodeNumber,
		requestHints: make(chan struct{}, 1)}
	r.receiverWakeChannel.Store(new(make(chan struct{})))
	return r
}

// RequestsNotifyChannel is the channel for NOTIFY on which nodes notify each other of requests and answers. The
// payload is the number of the node to which a request or an answer was sent.
const RequestsNotifyChannel = "queuectl_asks"

// replyPollInterval is the time between two queries for an answer.
const replyPollInterval = 250 * time.Millisecond

// WakeReceivers makes this node check for new requests, and waiting calls of SendRequest check for their answers.
func (r *NodeMessenger) WakeReceivers() {
	queue.TrySend(r.requestHints, struct{}{})
	close(*r.receiverWakeChannel.Swap(new(make(chan struct{}))))
}

// NotifyNodes notifies the other nodes of an event that concerns the given node. With NOTIFY, it sends the number
// of the given node on a channel.
func (r *NodeMessenger) NotifyNodes(ctx context.Context, channel string, nodeNumber int64) {
	r.Conn.UseConn(ctx, func(c *pgdb.Conn) error { // ignore errors, because nodes also poll
		_, err := c.QueryNumber(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, channel, nodeNumber)
		return err
	})
}

// RequestHints implements store.NodeRequests. The channel receives a hint when this node may have a new request.
func (r *NodeMessenger) RequestHints() <-chan struct{} { return r.requestHints }

// SendRequest implements store.NodeRequests. It sends a request to another node and waits for the reply.
func (r *NodeMessenger) SendRequest(ctx context.Context, nodeNumber int64, request []byte,
	mayTakeLong bool) (reply []byte, err error) {
	if len(request) > store.MaxNodeRequestBytes {
		return nil, queue.Errorf(queue.CodeTooLarge, "the request to another node has %d bytes, and the maximum is %d; "+
			"name fewer jobs in one command",
			len(request), store.MaxNodeRequestBytes)
	}
	var requestNumber int64
	err = r.Conn.UseConn(ctx, func(c *pgdb.Conn) (err error) {
		requestNumber, err = c.QueryNumber(`INSERT INTO asks (node, asker, slow, ask) VALUES (?, ?, ?, ?) RETURNING n`,
			nodeNumber, r.nodeNumber(), mayTakeLong, string(request))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pgdb.CloseTimeout)
		defer cancel()
		// If this fails, RenewNodeLease deletes the row later, with other old requests.
		r.Conn.UseConn(within, func(c *pgdb.Conn) error { return c.Exec(`DELETE FROM asks WHERE n = ?`, requestNumber) })
	}()
	r.NotifyNodes(ctx, RequestsNotifyChannel, nodeNumber)
	for {
		woken, found := *r.receiverWakeChannel.Load(), false
		err = r.Conn.UseConn(ctx, func(c *pgdb.Conn) error {
			reply = nil
			found, err = database.ReadFirstRow(c, func(row database.Row) {
				if row.Int64(1) != 0 {
					reply = json.RawMessage(row.Text(0))
				}
			}, `SELECT answer, answer IS NOT NULL FROM asks WHERE n = ?`, requestNumber)
			return err
		})
		if err == nil && !found {
			err = queue.Errorf(queue.CodeUnavailable, "another node must carry out this request, but has not answered "+
				"in time; check the nodes with: queuectl node list; then try again")
		}
		if err != nil || reply != nil {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-woken:
		case <-time.After(replyPollInterval):
		}
	}
}

// maxLostReplyTakeMarks is the maximum length of lostReplyTakeMarks. It may be short, because most queries whose
// replies were lost have never reached the server.
const maxLostReplyTakeMarks = 32

// TakeRequests implements store.NodeRequests. It returns up to limit new requests to this node.
func (r *NodeMessenger) TakeRequests(ctx context.Context, mayTakeLong bool, limit int) (requests []store.NodeRequest,
	err error) {
	take := 1 + rand.Int64N(math.MaxInt64)
	// UseConn calls this function again if the connection is lost. Both calls mark requests with the same value, take, so
	// the second call also returns requests that the first one has marked.
	err = r.Conn.UseConn(ctx, func(c *pgdb.Conn) error {
		for len(r.lostReplyTakeMarks) > 0 {
			if err := c.Exec(`UPDATE asks SET taken = 0 WHERE node = ? AND taken = ?`, r.nodeNumber(),
				r.lostReplyTakeMarks[0]); err != nil {
				return err
			}
			r.lostReplyTakeMarks = r.lostReplyTakeMarks[1:]
		}
		requests, err = database.ReadRows(c, func(row database.Row) store.NodeRequest {
			return store.NodeRequest{Number: row.Int64(0), Payload: []byte(row.Text(1))}
		}, `UPDATE asks SET taken = ? WHERE n IN (SELECT n FROM asks WHERE node = ? AND slow = ? AND answer IS NULL
			AND taken IN (0, ?) ORDER BY n LIMIT ?) RETURNING n, ask`,
			take, r.nodeNumber(), mayTakeLong, take, limit)
		return err
	})
	if err != nil { // the server may have marked requests, but its reply was lost
		r.lostReplyTakeMarks, requests = append(r.lostReplyTakeMarks[max(0, len(r.lostReplyTakeMarks)-maxLostReplyTakeMarks+
			1):], take), nil
	}
	slices.SortFunc(requests, func(a, b store.NodeRequest) int { return cmp.Compare(a.Number, b.Number) })
	return requests, err
}

// AwaitedRequestNumbers implements store.NodeRequests. It returns the numbers of the unanswered requests to this
// node whose senders are still waiting.
func (r *NodeMessenger) AwaitedRequestNumbers(ctx context.Context) (awaitedNumbers map[int64]bool, err error) {
	err = r.Conn.UseConn(ctx, func(c *pgdb.Conn) error {
		awaitedNumbers = map[int64]bool{}
		return database.ForEachRow(c, func(row database.Row) { awaitedNumbers[row.Int64(0)] = true },
			`SELECT n FROM asks WHERE node = ? AND answer IS NULL`, r.nodeNumber())
	})
	return awaitedNumbers, err
}

// SendReply implements store.NodeRequests. It stores the reply to the request with the given number, and notifies the
// node that sent the request.
func (r *NodeMessenger) SendReply(ctx context.Context, requestNumber int64, reply []byte) error {
	asker := int64(0)
	err := r.Conn.UseConn(ctx, func(c *pgdb.Conn) (err error) {
		asker, err = c.QueryNumber(`UPDATE asks SET answer = ? WHERE n = ? RETURNING asker`, string(reply), requestNumber)
		return err
	})
	if err == nil && asker != 0 {
		r.NotifyNodes(ctx, RequestsNotifyChannel, asker)
	}
	return err
}

var _ store.NodeRequests = (*NodeMessenger)(nil)
