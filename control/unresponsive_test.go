package control

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// If a service accepts a connection but sends nothing, the call fails after half a minute, with a hint. But if the
// service answers the method hello, other requests may take any time.
func TestCallFailsIfServiceNeverAnswers(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			c := newClientConn(ours)
			go func() { // this goroutine ends when the connection is closed
				for {
					line, err := readLineFromConn(theirs)
					if err != nil {
						return
					}
					if answers && strings.Contains(line, `"hello"`) {
						theirs.Write([]byte(`{"jsonrpc":"2.0","id":2,"result":{}}` + "\n"))
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			_, err := c.roundTrip(ctx, "wait", NoParams{}, new(JobWaitResult), nil)
			switch took := time.Since(began); {
			case answers && (!errors.Is(err, context.DeadlineExceeded) || took != time.Hour):
				t.Errorf("a service that answers probes: %v after %v, want the client to wait", err, took)
			case !answers && (!errors.Is(err, queue.ErrUnavailable) ||
				!strings.Contains(err.Error(), "it is unknown whether the request was carried out") ||
				took != helloProbeDelay+helloProbeTimeout):
				t.Errorf("a service that answers nothing: %v after %v", err, took)
			}
			ours.Close()
			theirs.Close()
		})
	}
}

// A call fails if the service stops answering, even if the service has answered earlier requests on the same
// connection.
func TestCallFailsIfServiceStopsAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := newClientConn(ours)
		go func() { // this goroutine ends when the connection is closed
			for n := 1; ; n++ {
				if _, err := readLineFromConn(theirs); err != nil {
					return
				}
				if n == 1 {
					theirs.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n"))
				}
			}
		}()
		if _, err := c.roundTrip(t.Context(), "hold", JobSelection{}, new(BulkResult), nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := c.roundTrip(t.Context(), "hold", JobSelection{}, new(BulkResult), nil)
		if took := time.Since(began); !errors.Is(err, queue.ErrUnavailable) || took != helloProbeDelay+helloProbeTimeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// If an answer is cut off, or does not come from a queuectl service, the error has the code unavailable. The code is
// not invalid, because the request itself was valid.
func TestTruncatedAnswerIsUnavailableError(t *testing.T) {
	for _, said := range []string{`{"jsonrpc":"2.0","id":1,"res`, "HTTP/1.1 400 Bad Request\r\n", "hello world\n",
		"\x00\xff\n"} {
		ours, theirs := net.Pipe()
		c := newClientConn(ours)
		go func() { // this goroutine ends after it has written
			readLineFromConn(theirs)
			theirs.Write([]byte(said))
			theirs.Close()
		}()
		_, err := c.roundTrip(t.Context(), "hold", JobSelection{}, new(BulkResult), nil)
		if err = connErrorWithCode(err, 1); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%q: %v, want that the service is not running", said, err)
		}
	}
}

// readLineFromConn reads one line, one byte at a time.
func readLineFromConn(c net.Conn) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return "", err
		}
		if line = append(line, b[0]); b[0] == '\n' {
			return string(line), nil
		}
	}
}

// If the connection is lost before the request was sent, the error has the code unavailable. The code is not invalid,
// because the request itself was valid.
func TestConnectionLostBeforeSendIsUnavailableError(t *testing.T) {
	dead := &clientConn{endCause: errConnectionLost, pendingCalls: map[int64]*call{}}
	sent, err := dead.roundTrip(t.Context(), "hold", JobSelection{}, new(BulkResult), nil)
	if err = connErrorWithCode(err, 0); sent || !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("got %v, sent %t; want that the service is not running", err, sent)
	}
}

// If the service ends during a request and does not come back, the error says how to start the service and where to
// find the reason why it ended. If no service was running before the request, the error is not changed.
func TestErrorExplainsServiceThatStaysStopped(t *testing.T) {
	away := &unreachableError{"s", errors.New("refused")}
	if err := connErrorWithCode(away, 1); !errors.Is(err, queue.ErrUnavailable) ||
		!strings.Contains(err.Error(), "was carried out; start the service with") ||
		!strings.Contains(err.Error(), "its log") || !strings.Contains(err.Error(), "queuectl doctor") {
		t.Errorf("after the request was sent: %v", err)
	}
	if err := connErrorWithCode(away, 0); err != error(away) {
		t.Errorf("before the request was sent: %v", err)
	}
	if err := connErrorWithCode(socket.ErrServiceOverloaded, 1); !errors.Is(err, queue.ErrUnavailable) ||
		!strings.Contains(err.Error(), "unknown whether the request was carried out") {
		t.Errorf("after a request was sent to an overloaded service: %v", err)
	}
}
