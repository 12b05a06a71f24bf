package access

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// rawClient is a raw protocol client that sends one request at a time.
type rawClient struct {
	net.Conn
	reader        *bufio.Reader
	lastRequestID int
}

func newRawClient(c net.Conn) *rawClient { return &rawClient{c, bufio.NewReaderSize(c, 16<<10), 0} }

// refusedError is the error that the service returned for a refused request.
type refusedError struct{ code, message string }

func (e *refusedError) Error() string { return e.code + ": " + e.message }

// call sends a request and returns its result. It skips notifications that arrive before the result.
func (c *rawClient) call(method, params string) (json.RawMessage, error) {
	c.lastRequestID++
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`+"\n", c.lastRequestID, method,
		params); err != nil {
		return nil, err
	}
	for {
		line, err := c.reader.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var a testrig.ServiceMessage
		if err := json.Unmarshal(line, &a); err != nil {
			return nil, err
		}
		switch {
		case a.Method != "":
		case a.Error != nil:
			return nil, &refusedError{a.Error.Data.Code, a.Error.Message}
		default:
			return a.Result, nil
		}
	}
}

// keepConnections keeps connCount connections open until the attack ends. It passes each connection to useConn
// and opens a new one when useConn returns.
func (a *abuser) keepConnections(ctx context.Context, tally *requestTally, connCount int, useConn func(c *rawClient)) {
	var workers sync.WaitGroup
	for range connCount {
		workers.Go(func() {
			for a.waitForCPUShare(ctx) {
				c, err := net.Dial("unix", a.socketPath)
				if err != nil {
					tally.refusals.Add(1)
					a.waitBriefly(ctx, 50*time.Millisecond)
					continue
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				useConn(newRawClient(c))
				stop()
				c.Close()
			}
		})
	}
	workers.Wait()
}

// sendRequest sends one request and counts it in tally. ok is false if the request fails or is refused.
func (a *abuser) sendRequest(c *rawClient, tally *requestTally, method, params string) (result json.RawMessage,
	ok bool) {
	tally.requests.Add(1)
	tally.sentBytes.Add(int64(len(params)))
	result, err := c.call(method, params)
	var refused *refusedError
	switch {
	case err == nil:
		tally.replies.Add(1)
		return result, true
	case errors.As(err, &refused):
		tally.refusals.Add(1)
		tally.firstRefusal.CompareAndSwap(nil, refused)
	}
	return nil, false
}

// repeatRequest sends the same request again and again on several connections.
func (a *abuser) repeatRequest(ctx context.Context, tally *requestTally, connCount int, method, params string) {
	a.keepConnections(ctx, tally, connCount, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			if _, ok := a.sendRequest(c, tally, method, params); !ok {
				return
			}
		}
	})
}

// pipelineRequests repeatedly sends requestCount requests without waiting, and then reads all replies, on each
// of connCount connections.
func (a *abuser) pipelineRequests(ctx context.Context, tally *requestTally, connCount, requestCount int, method,
	params string) {
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}`+"\n", method, params)
	a.keepConnections(ctx, tally, connCount, func(c *rawClient) {
		for a.waitForCPUShare(ctx) {
			var reader sync.WaitGroup
			reader.Go(func() { a.readReplies(ctx, c, tally, requestCount) })
			for range requestCount {
				if _, err := io.WriteString(c, line); err != nil || !a.waitForCPUShare(ctx) {
					c.Close()
					break
				}
				tally.requests.Add(1)
				tally.sentBytes.Add(int64(len(line)))
			}
			reader.Wait()
		}
	})
}

// readReplies reads the given number of replies. It returns early when the connection or the attack ends.
func (a *abuser) readReplies(ctx context.Context, c *rawClient, tally *requestTally, replyCount int) {
	buf := make([]byte, 64<<10)
	for got := 0; got < replyCount && a.waitForCPUShare(ctx); {
		k, err := c.Read(buf)
		lines := bytes.Count(buf[:k], []byte("\n"))
		got += lines
		tally.replies.Add(int64(lines))
		if err != nil {
			c.Close()
			return
		}
	}
}
