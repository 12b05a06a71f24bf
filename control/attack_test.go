//go:build linux || windows

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// testServer is a server for which each test chooses the uid of every client. A test method that reads holds a slot
// (see HeavyWorkClass) until the read ends. If the uid is divisible by three, the read ends immediately. Other reads
// last until the test ends them.
type testServer struct {
	API               // panics for methods that are not defined below
	t                 *testing.T
	userLimits        *UserLimits
	socketPath        string
	uidsOfNextClients chan int // uids of the next clients that connect, in this order

	maxUserConns int // maximum number of connections of one user; must not change while there are connections
	// readEndPermits receives one value for each read that may end. A test closes it to end all reads.
	readEndPermits chan struct{}

	mu                        sync.Mutex
	activeReadsByUserAndClass map[string]int // number of reads that hold a slot, by user and class; guarded by mu
	peakReadsByUserAndClass   map[string]int // highest value of each entry in activeReadsByUserAndClass; guarded by mu
}

func newTestServer(t *testing.T) *testServer {
	v := &testServer{t: t, userLimits: NewUserLimits(), socketPath: tempSocketPath(t), uidsOfNextClients: make(chan int),
		readEndPermits: make(chan struct{}), activeReadsByUserAndClass: map[string]int{},
		peakReadsByUserAndClass: map[string]int{}}
	l, err := socket.Listen(v.socketPath, ownerOnlySocketPerms())
	if err != nil {
		t.Fatal(err)
	}
	v.maxUserConns = 1000
	many := func() (all, user int) { return 1000, v.maxUserConns }
	server := NewServer(v, ConnectionLimits{many}, v, v.userLimits, slog.New(slog.DiscardHandler))
	server.identifyPeer = func(net.Conn) (Peer, error) { return Peer{UID: <-v.uidsOfNextClients}, nil }
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Run(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	return v
}

// CurrentRight implements Authorizer. User 0 is an admin, users from 100 on have no access, and all others may
// operate.
func (v *testServer) CurrentRight(p *Peer) Right {
	switch {
	case p.UID == 0:
		return RightAdmin
	case p.UID >= 100:
		return RightNone
	}
	return RightOperate
}

func (v *testServer) AdmitConnection(context.Context, *Peer) error { return nil }

func (v *testServer) MissingRightError(p *Peer, action string, neededRight Right) error {
	return queue.ErrDenied
}

// dial connects as the given user.
func (v *testServer) dial(uid int) net.Conn {
	v.t.Helper()
	c := dial(v.t, v.socketPath)
	// Wait until the server has accepted the connection. On Windows, the server does not accept a connection
	// that the client has already closed.
	v.uidsOfNextClients <- uid
	v.t.Cleanup(func() { c.Close() })
	return c
}

// simulateRead simulates a database query of the service, which holds a slot while the query runs.
func (v *testServer) simulateRead(ctx context.Context, class HeavyWorkClass) error {
	return v.userLimits.RunInSlot(ctx, class, func() error {
		who := fmt.Sprint("user ", PeerFrom(ctx).UID, " class ", class)
		v.mu.Lock()
		v.activeReadsByUserAndClass[who]++
		v.peakReadsByUserAndClass[who] = max(v.peakReadsByUserAndClass[who], v.activeReadsByUserAndClass[who])
		v.mu.Unlock()
		defer func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.activeReadsByUserAndClass[who]--
		}()
		if PeerFrom(ctx).UID%3 == 0 {
			return nil // the uid is divisible by three, so the read ends immediately
		}
		select {
		case <-v.readEndPermits:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (v *testServer) ListJobs(ctx context.Context, _ JobListParams) (JobPage, error) {
	return JobPage{}, v.simulateRead(ctx, ClassManyJobsRead)
}
func (v *testServer) ShowJob(ctx context.Context, _ JobShowParams) (JobDetail, error) {
	return JobDetail{}, v.simulateRead(ctx, ClassOneJobRead)
}
func (v *testServer) CancelJobs(ctx context.Context, _ JobSelection) (BulkResult, error) {
	return BulkResult{}, v.simulateRead(ctx, ClassOneJobRead)
}
func (v *testServer) Enqueue(context.Context, EnqueueParams) (EnqueueResult, error) {
	return EnqueueResult{}, nil
}
func (v *testServer) Hello(context.Context, HelloParams) (HelloResult, error) {
	return HelloResult{Version: "town"}, nil
}

// waitUntil waits until a condition is true. The text describes the condition in the failure message.
func (v *testServer) waitUntil(description string, isMet func() bool) {
	v.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !isMet(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			v.t.Fatalf("timed out after 20s while waiting until %s", description)
		}
	}
}

// userBytesInProgress returns the size of a user's requests and answers that are in progress.
func (v *testServer) userBytesInProgress(uid int) int64 {
	_, bytes := v.userLimits.connLimiter.Usage(uid)
	return bytes
}

// sendRequest writes a request and returns a channel with its answer.
func (v *testServer) sendRequest(c net.Conn, method, params string) <-chan string {
	v.t.Helper()
	if _, err := fmt.Fprintf(c, `{"id":1,"method":%q,"params":%s}`+"\n", method, params); err != nil {
		v.t.Fatal(err)
	}
	answer := make(chan string, 1)
	go func() { // this goroutine ends when the connection is closed
		text, _ := bufio.NewReader(c).ReadString('\n')
		answer <- text
	}()
	return answer
}

// A user who connects over and over, sends many requests and disconnects never has more connections in progress
// than the limit per user.
func TestAbandonedConnectionsStayWithinUserLimit(t *testing.T) {
	v := newTestServer(t)
	v.maxUserConns = 20
	before := runtime.NumGoroutine()
	requests := strings.Repeat(`{"id":1,"method":"list","params":{}}`+"\n", 64)
	for range 2000 {
		c := dial(t, v.socketPath)
		v.uidsOfNextClients <- 1
		io.WriteString(c, requests) // the server may have refused the connection already
		c.Close()
	}
	if n := runtime.NumGoroutine() - before; n > 20*(1+maxRequestsPerConn)+maxConcurrentConnRefusals {
		t.Errorf("%d goroutines serve 2000 connections, of which 20 may be open", n)
	}
	if text := <-v.sendRequest(v.dial(3), "show", `{"id":"a"}`); !strings.Contains(text, "result") {
		t.Errorf("another user got the answer %q", text)
	}
	began := time.Now()
	v.waitUntil("the limiter counts no request or byte of user 1", func() bool {
		requests, bytes := v.userLimits.connLimiter.Usage(1)
		return requests == 0 && bytes == 0
	})
	if took := time.Since(began); took > maxUserLimitWait {
		t.Errorf("requests of closed connections were served for %v", took)
	}
}

// One or two attackers send as many requests as they can, each on a hundred connections. A request of another
// user still waits for at most readSlots reads of the attackers.
func TestManyRequestsDoNotDelayOtherUsers(t *testing.T) {
	for _, attack := range []struct {
		method    string
		attackers []int
	}{{"list", []int{1}}, {"list", []int{1, 2}}, {"show", []int{1, 2}}, {"cancel", []int{1}}} {
		v := newTestServer(t)
		const conns, each = 100, 64
		line := fmt.Sprintf(`{"id":1,"method":%q,"params":{"limit":1}}`+"\n", attack.method)
		if attack.method != "list" {
			line = strings.Replace(line, `"limit":1`, `"id":"a"`, 1)
		}
		var sending sync.WaitGroup
		for _, uid := range attack.attackers {
			for range conns {
				c := v.dial(uid)
				sending.Go(func() { io.WriteString(c, strings.Repeat(line, each)) })
				go io.Copy(io.Discard, c) // this goroutine ends when the connection is closed
			}
		}
		full := v.waitUntilRequestLimitsReached(attack.attackers)
		for _, uid := range []int{3, 0} {
			for _, c := range [][2]string{{"show", `{"id":"a"}`}, {"cancel", `{"id":"a"}`}, {"enqueue", `{"command":"x"}`},
				{"list", `{}`}} {
				answer := v.sendRequest(v.dial(uid), c[0], c[1])
				text, ended := "", 0
				for text == "" {
					v.waitUntil("the request is answered, or waits for a slot", func() bool {
						return len(answer) > 0 || v.userLimits.heavyWorkSlots.WaitingCount(uid) > 0
					})
					if len(answer) > 0 {
						text = <-answer
						continue
					}
					v.readEndPermits <- struct{}{}
					ended++
					v.waitUntil("the request is answered, or another read has begun", func() bool {
						return len(answer) > 0 || v.countReadsHoldingSlots(attack.attackers...) == full
					})
				}
				if ended > readSlots || !strings.Contains(text, `"result"`) {
					t.Errorf("%s of %d against %s of %v: %d reads ended before it, want at most %d: %s", c[0], uid, attack.method,
						attack.attackers, ended, readSlots, text)
				}
			}
		}
		v.mu.Lock()
		for class, n := range v.peakReadsByUserAndClass {
			if strings.HasSuffix(class, fmt.Sprint("class ", ClassManyJobsRead)) && n > 1 || n > readSlots-1 {
				t.Errorf("%s: %d concurrent reads", class, n)
			}
		}
		v.mu.Unlock()
		close(v.readEndPermits)
		sending.Wait()
	}
}

// countReadsHoldingSlots returns how many reads of these users hold a slot.
func (v *testServer) countReadsHoldingSlots(uids ...int) (readCount int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for who, now := range v.activeReadsByUserAndClass {
		for _, uid := range uids {
			if strings.HasPrefix(who, fmt.Sprint("user ", uid, " ")) {
				readCount += now
			}
		}
	}
	return readCount
}

// waitUntilRequestLimitsReached waits until these users have as many requests in progress as the limits allow. It
// returns how many of their reads hold a slot.
func (v *testServer) waitUntilRequestLimitsReached(uids []int) int {
	v.waitUntil("the requests are in progress", func() bool {
		for _, uid := range uids {
			if requests, _ := v.userLimits.connLimiter.Usage(uid); requests < maxRequestsPerUser {
				return false
			}
		}
		return true
	})
	before := -1
	v.waitUntil("the maximum number of reads is in progress", func() bool {
		now := v.countReadsHoldingSlots(uids...)
		same := now == before && now > 0
		before = now
		return same
	})
	return before
}

// A user sends the beginning of a long line on many connections. The server buffers one of these lines, and
// refuses the others with an error that says why. Other users' requests are processed at the same time.
func TestServerBuffersOneIncompleteLinePerUser(t *testing.T) {
	v := newTestServer(t)
	const conns = 200
	half := []byte(`{"id":1,"method":"enqueue","params":{"command":"` + strings.Repeat("x", MaxLineBytes-100_000))
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	before := stats.HeapAlloc
	answers := make(chan string, conns)
	var talking sync.WaitGroup
	var clients []net.Conn
	for range conns {
		c := v.dial(1)
		clients = append(clients, c)
		talking.Go(func() { c.Write(half) })
		talking.Go(func() { text, _ := bufio.NewReader(c).ReadString('\n'); answers <- text })
	}
	v.waitUntil("one line uses all the bytes of the user",
		func() bool { return v.userBytesInProgress(1) > int64(len(half))-uncountedBytesPerConn })
	runtime.GC()
	runtime.ReadMemStats(&stats)
	// While a buffer grows, the old and the new one exist together. Each connection also has a reader and
	// goroutines.
	const most = MaxLineBytes*3/2 + conns*(uncountedBytesPerConn+48<<10)
	if grown := stats.HeapAlloc - before; grown > most {
		t.Errorf("the heap grew by %d MiB, want at most %d", grown>>20, most>>20)
	}
	other := v.dial(2)
	if text := <-v.sendRequest(other, "enqueue", `{"command":"`+strings.Repeat("x",
		MaxLineBytes-1000)+`"}`); !strings.Contains(text,
		`"result"`) {
		t.Errorf("another user's line: %.300s", text)
	}
	if text := <-v.sendRequest(v.dial(1), "hello", `{}`); !strings.Contains(text, `"town"`) {
		t.Errorf("a short request of the same user: %.300s", text)
	}
	for range conns - 1 {
		if text := <-answers; !strings.Contains(text, `"unavailable"`) || !strings.Contains(text, "8388608 bytes") {
			t.Errorf("a line that exceeds the user's bytes: %.300q", text)
			break
		}
	}
	for _, c := range clients {
		c.Close()
	}
	talking.Wait()
}

// At most two large requests are processed at the same time, and at most one of each user. If a request takes longer
// than a second, the next one begins before the first has ended.
func TestLargeRequestsAreServedRoundRobin(t *testing.T) {
	v := newTestServer(t)
	line := `{"id":1,"method":"cancel","params":{"id":"a"},"pad":"` + strings.Repeat("x", largeRequestBytes) + `"}` + "\n"
	asked := time.Now()
	for _, uid := range []int{1, 1, 1, 2, 4, 5} {
		c := v.dial(uid)
		if _, err := io.WriteString(c, line); err != nil {
			t.Fatal(err)
		}
	}
	v.waitUntil("two requests are in progress", func() bool { return v.countReadsHoldingSlots(1, 2, 4, 5) == 2 })
	if v.countReadsHoldingSlots(1) > 1 || v.countReadsHoldingSlots(2) > 1 {
		t.Error("one user has both slots")
	}
	v.waitUntil("the next requests are in progress, although the first ones wait", func() bool {
		return v.countReadsHoldingSlots(1, 2, 4, 5) > 2
	})
	if took := time.Since(asked); took < maxLargeRequestSlotTime {
		t.Errorf("the next requests began after %v", took)
	}
	close(v.readEndPermits)
}

// A user may have 64 streams on all connections together. One more stream is refused with an error that says
// why. A slow reader of a stream does not occupy a slot.
func TestSlowStreamReadersHoldNoSlots(t *testing.T) {
	v := newTestServer(t)
	b := &endlessEventsAPI{server: v, eventText: strings.Repeat("x", 64<<10)}
	v.API = b
	c := v.dial(1)
	for range MaxStreamsPerUser {
		if _, err := io.WriteString(c, `{"id":1,"method":"events"}`+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	v.waitUntil("all streams are blocked",
		func() bool { return v.userBytesInProgress(1) >= (MaxStreamsPerUser-1)*int64(len(b.eventText)) })
	answer := v.sendRequest(v.dial(1), "events", "{}")
	if text := <-answer; !strings.Contains(text, `"unavailable"`) || !strings.Contains(text, "64 open streams") {
		t.Errorf("one more stream: %.300s", text)
	}
	for _, class := range []HeavyWorkClass{ClassOneJobRead, ClassManyJobsRead} {
		if err := v.userLimits.RunInSlot(WithPeer(t.Context(), Peer{UID: 2}), class,
			func() error { return nil }); err != nil {
			t.Errorf("another user's read: %v", err)
		}
	}
	if n := v.userBytesInProgress(1); n > maxBytesInProgressPerUser+1<<20 {
		t.Errorf("the streams' pieces take %d bytes", n)
	}
}

// endlessEventsAPI is an API whose method StreamEvents sends events with the value eventText until sending fails.
type endlessEventsAPI struct {
	API
	server    *testServer
	eventText string
}

func (b *endlessEventsAPI) StreamEvents(ctx context.Context, _ EventsParams,
	handleEvent func(Event) error) (EventStreamEnd, error) {
	for {
		if err := b.server.userLimits.RunStreamStep(ctx, ClassManyJobsRead,
			func() error { return handleEvent(Event{SettingValue: b.eventText}) }); err != nil {
			return EventStreamEnd{}, err
		}
	}
}

// StreamEvents calls StreamEvents of the API that the test has set.
func (v *testServer) StreamEvents(ctx context.Context, p EventsParams, handleEvent func(Event) error) (EventStreamEnd,
	error) {
	return v.API.StreamEvents(ctx, p, handleEvent)
}

// A request line of a user without access may have 64 KiB, and not a byte more.
func TestUsersWithoutAccessSendOnlyShortLines(t *testing.T) {
	v := newTestServer(t)
	line := func(n int) string {
		head, end := `{"id":1,"method":"show","pad":"`, `"}`
		return head + strings.Repeat("x", n-len(head)-len(end)) + end
	}
	const most = maxLineBytesWithoutAccess
	for n, want := range map[int]string{most: "denied", most + 1: "too_large", 1 << 20: "too_large"} {
		c := v.dial(100)
		go io.WriteString(c, line(n)+"\n") // the server stops reading a line that it refuses, so writing may block
		var answer struct {
			Error struct{ Data struct{ Code string } }
		}
		text, err := bufio.NewReader(c).ReadString('\n')
		if json.Unmarshal([]byte(text), &answer) != nil || answer.Error.Data.Code != want {
			t.Errorf("%d bytes: got %.200s, %v, want %s", n, text, err, want)
		}
		c.Close()
	}
	if _, err := readLine(bufio.NewReader(strings.NewReader(line(1 << 20)))); errors.Is(err, queue.ErrTooLarge) {
		t.Error(err)
	}
}
