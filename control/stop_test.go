//go:build linux || windows

package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// slowAPI is an API whose method ShowJob closes the channel showJobStarted, and then waits until the channel release is
// closed or the context of the call ends.
type slowAPI struct {
	fakeAPI
	showJobStarted   chan struct{}
	releaseShowJob   chan struct{}
	showJobCancelled chan struct{} // ShowJob closes this channel when its context has ended
}

func (s *slowAPI) ShowJob(ctx context.Context, _ JobShowParams) (JobDetail, error) {
	close(s.showJobStarted)
	select {
	case <-s.releaseShowJob:
		return JobDetail{Job: Job{ID: "late"}}, nil
	case <-ctx.Done():
		close(s.showJobCancelled)
		return JobDetail{}, ctx.Err()
	}
}

// stopServerDuringShowJob stops a server during a call of ShowJob. callResult receives the error of that call.
// serverEnded is closed when Server.Run has returned.
func stopServerDuringShowJob(t *testing.T) (api *slowAPI, callResult chan error, serverEnded chan struct{}) {
	api = &slowAPI{showJobStarted: make(chan struct{}), releaseShowJob: make(chan struct{}),
		showJobCancelled: make(chan struct{})}
	path := tempSocketPath(t)
	l, err := socket.Listen(path, ownerOnlySocketPerms())
	if err != nil {
		t.Fatal(err)
	}
	many := func() (all, user int) { return 100, 100 }
	server := NewServer(api, ConnectionLimits{many}, allowAllAuthorizer{}, NewUserLimits(), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	serverEnded = make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		defer close(serverEnded)
		if err := server.Run(ctx, l); err != nil {
			t.Error(err)
		}
	})
	c := newTestClient(t, path)
	callResult = make(chan error, 1)
	wg.Go(func() {
		var d JobDetail
		err := c.call(t.Context(), "show", JobShowParams{ID: "a"}, &d, false, nil)
		if err == nil && d.ID != "late" {
			err = errors.New("it is another answer")
		}
		callResult <- err
	})
	<-api.showJobStarted
	stop()
	return api, callResult, serverEnded
}

// If a request is in progress when the service stops, it is still answered.
func TestServerStopAnswersRequestsInProgress(t *testing.T) {
	api, answer, ended := stopServerDuringShowJob(t)
	select {
	case <-ended:
		t.Error("the server ended while a request was in progress")
	case err := <-answer:
		t.Errorf("the request was cancelled: %v", err)
	case <-time.After(requestsStopTimeout / 4):
	}
	close(api.releaseShowJob)
	if err := <-answer; err != nil {
		t.Errorf("the answer: %v", err)
	}
	<-ended
}

// When the service stops, requests that take longer than requestsStopTimeout are cancelled.
func TestServerStopCancelsLongRequests(t *testing.T) {
	began := time.Now()
	_, answer, ended := stopServerDuringShowJob(t)
	if err := <-answer; !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the answer: %v", err)
	}
	<-ended
	if took := time.Since(began); took < requestsStopTimeout {
		t.Errorf("the request was cancelled after %v", took)
	}
}

// If the client of a request disconnects, the request is soon cancelled. If the client closes only its sending
// side, the request is answered.
func TestClientDisconnectCancelsItsRequests(t *testing.T) {
	for _, gone := range []bool{true, false} {
		api := &slowAPI{showJobStarted: make(chan struct{}), releaseShowJob: make(chan struct{}),
			showJobCancelled: make(chan struct{})}
		c := dial(t, serveUntilTestEnds(t, api))
		defer c.Close()
		if _, err := c.Write([]byte(`{"id":1,"method":"show","params":{"id":"a"}}` + "\n")); err != nil {
			t.Fatal(err)
		}
		<-api.showJobStarted
		if gone {
			c.Close()
			select {
			case <-api.showJobCancelled:
			case <-time.After(hangUpCheckInterval + 2*time.Second):
				t.Error("the request continues although its client has disconnected")
			}
			continue
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-api.showJobCancelled:
			t.Error("the request ended although its client waits")
		case <-time.After(hangUpCheckInterval + hangUpCheckInterval/2):
		}
		close(api.releaseShowJob)
		if raw, err := io.ReadAll(c); err != nil || !strings.Contains(string(raw), `"late"`) {
			t.Errorf("the answer: %s, %v", raw, err)
		}
	}
}
