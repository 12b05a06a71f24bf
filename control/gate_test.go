//go:build linux || windows

package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// fakeAuthorizer is an API and an Authorizer. All users have the same right, which the test sets.
type fakeAuthorizer struct {
	fakeAPI
	admissionError      error  // error that AdmitConnection returns for every connection; nil admits all connections
	onMissingRightError func() // called by MissingRightError, to simulate a slow lookup of names; may be nil

	mu             sync.Mutex
	right          Right  // guarded by mu
	showJobCallers []Peer // peers that called ShowJob; guarded by mu
}

func (d *fakeAuthorizer) setRightOfAllUsers(r Right) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.right = r
}

func (d *fakeAuthorizer) CurrentRight(*Peer) Right {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.right
}

func (d *fakeAuthorizer) AdmitConnection(context.Context, *Peer) error { return d.admissionError }

func (d *fakeAuthorizer) MissingRightError(p *Peer, action string, neededRight Right) error {
	if d.onMissingRightError != nil {
		d.onMissingRightError()
	}
	return queue.Errorf(queue.CodeDenied, "%q needs %s, not %s", action, neededRight, p.Right)
}

func (d *fakeAuthorizer) ShowJob(ctx context.Context, _ JobShowParams) (JobDetail, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.showJobCallers = append(d.showJobCallers, PeerFrom(ctx))
	return JobDetail{}, nil
}

func (d *fakeAuthorizer) Whoami(ctx context.Context, _ NoParams) (WhoamiResult, error) {
	return WhoamiResult{Right: PeerFrom(ctx).Right}, nil
}

// The server rejects a request without the required right before it decodes the parameters. Any other request
// reaches the service, together with the user's right.
func TestServerRejectsRequestsWithoutRequiredRight(t *testing.T) {
	d := &fakeAuthorizer{right: RightRead}
	socket := serveUntilTestEnds(t, d)
	for _, right := range []Right{RightRead, RightSubmit, RightOperate, RightAdmin} {
		d.setRightOfAllUsers(right)
		c := newTestClient(t, socket)
		for _, m := range Methods() {
			err := c.call(t.Context(), m.Name, map[string]any{"no such parameter": 1}, &NoParams{}, false, nil)
			denied := !right.Covers(m.Right)
			if errors.Is(err, queue.ErrDenied) != denied || !denied && !errors.Is(err, queue.ErrInvalid) {
				t.Errorf("%s with %s: got %v, want it denied: %t", m.Name, right, err, denied)
			}
			if want := fmt.Sprintf("%q needs %s, not %s", m.Name, m.Right, right); denied && err.Error() != want {
				t.Errorf("%s with %s: got %v, want %s", m.Name, right, err, want)
			}
		}
		if _, err := c.ShowJob(t.Context(), JobShowParams{ID: "a"}); err != nil ||
			d.showJobCallers[len(d.showJobCallers)-1].Right != right {
			t.Errorf("requests came from %+v, error %v; want the right %s", d.showJobCallers, err, right)
		}
		c.Close()
	}
}

// If AdmitConnection rejects a user, the user gets the reason, and no request of the user reaches the service.
func TestRejectedClientGetsTheReason(t *testing.T) {
	d := &fakeAuthorizer{right: RightAdmin, admissionError: queue.Errorf(queue.CodeUnavailable, "come back later")}
	c := newTestClient(t, serveUntilTestEnds(t, d))
	if _, err := c.ShowJob(t.Context(), JobShowParams{ID: "a"}); !errors.Is(err, queue.ErrUnavailable) ||
		!strings.Contains(err.Error(), "come back later") {
		t.Errorf("got %v, want the reason of the rejection", err)
	}
	if len(d.showJobCallers) != 0 {
		t.Errorf("the service received requests from %+v", d.showJobCallers)
	}
}

// The server determines the user's right at each request, so a changed right applies to the next request on the
// same connection.
func TestChangedRightAppliesToNextRequest(t *testing.T) {
	d := &fakeAuthorizer{right: RightSubmit}
	c := newTestClient(t, serveUntilTestEnds(t, d))
	for _, step := range []struct {
		right Right
		may   bool
	}{{RightSubmit, true}, {RightNone, false}, {RightRead, true}, {RightAdmin, true}, {RightNone, false}} {
		d.setRightOfAllUsers(step.right)
		_, err := c.ShowJob(t.Context(), JobShowParams{ID: "a"})
		if (err == nil) != step.may || err != nil && !errors.Is(err, queue.ErrDenied) {
			t.Errorf("with %s: %v", step.right, err)
		}
		if w, err := c.Whoami(t.Context(), NoParams{}); err != nil || w.Right != step.right {
			t.Errorf("whoami with %s: %+v, %v", step.right, w, err)
		}
	}
	if got := d.showJobCallers[len(d.showJobCallers)-1].Right; len(d.showJobCallers) != 3 ||
		got != RightAdmin {
		t.Errorf("the service received %d requests, the last with the right %s", len(d.showJobCallers), got)
	}
}

// sendLineTwice writes a line twice and returns everything that the server sends.
func sendLineTwice(t *testing.T, socketPath, line string) string {
	t.Helper()
	c := dial(t, socketPath)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	// Ignore the error: the server may have refused the connection before the second line.
	io.WriteString(c, line+"\n"+line+"\n")
	raw, _ := io.ReadAll(c) // ignore the error: a reset ends the connection as well
	return string(raw)
}

// A user without access may make one request per connection: whoami succeeds, and any other method fails with the
// reason. At most maxConnsWithoutAccess connections of users without access are open at a time. A connection without
// access evicts no other connection.
func TestUsersWithoutAccessMayCallOnlyWhoami(t *testing.T) {
	d := &fakeAuthorizer{right: RightAdmin}
	server, socket := runServer(t, d)
	inside := newTestClient(t, socket)
	if _, err := inside.Hello(t.Context(), HelloParams{}); err != nil {
		t.Fatal(err)
	}
	d.setRightOfAllUsers(RightNone)
	if got := sendLineTwice(t, socket, `{"id":1,"method":"whoami"}`); strings.Count(got, `"right":"none"`) != 1 {
		t.Errorf("whoami: %s", got)
	}
	if got := sendLineTwice(t, socket, `{"id":1,"method":"status"}`); strings.Count(got, "denied") != 1 ||
		!strings.Contains(got, `\"status\" needs read, not none`) {
		t.Errorf("status: %s", got)
	}
	var open []net.Conn
	for range maxConnsWithoutAccess {
		c := dial(t, socket)
		defer c.Close()
		open = append(open, c)
	}
	for deadline := time.Now().Add(10 * time.Second); server.servedConns.openCount.Load() != maxConnsWithoutAccess+
		1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open", server.servedConns.openCount.Load())
		}
	}
	if got := sendLineTwice(t, socket, `{"id":1,"method":"whoami"}`); !strings.Contains(got, `"id":null`) ||
		!strings.Contains(got, "denied") {
		t.Errorf("one connection without access too many: %s", got)
	}
	d.setRightOfAllUsers(RightAdmin)
	if _, err := inside.Hello(t.Context(), HelloParams{}); err != nil {
		t.Errorf("the connection of an admitted user was evicted: %v", err)
	}
	for _, c := range open {
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, `{"id":1,"method":"hello"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, `"version"`) {
			t.Errorf("a user who got a right after connecting: %q, %v", line, err)
		}
	}
}

// While the server looks up names for a refusal, which may be slow, other users are served.
func TestRefusalsDoNotDelayOtherUsers(t *testing.T) {
	refused, known := make(chan struct{}, 1), make(chan struct{})
	d := &fakeAuthorizer{onMissingRightError: func() { refused <- struct{}{}; <-known }}
	socket := serveUntilTestEnds(t, d)
	d.setRightOfAllUsers(RightNone)
	for range maxConnsWithoutAccess + 1 {
		c := dial(t, socket)
		defer c.Close()
	}
	defer close(known)
	select {
	case <-refused:
	case <-time.After(10 * time.Second):
		t.Fatal("no connection was refused")
	}
	d.setRightOfAllUsers(RightAdmin)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := newTestClient(t, socket).Hello(ctx, HelloParams{}); err != nil {
		t.Errorf("during a refusal: %v", err)
	}
}
