//go:build linux || windows

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// scriptedConn is a connection whose client has written its last byte. Its input comes from in.
type scriptedConn struct {
	net.Conn
	in io.Reader

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func (s *scriptedConn) Read(p []byte) (int, error) { return s.in.Read(p) }

func (s *scriptedConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *scriptedConn) Close() error                     { return nil }
func (s *scriptedConn) SetReadDeadline(time.Time) error  { return nil }
func (s *scriptedConn) SetWriteDeadline(time.Time) error { return nil }

// succeedingAPI is an API whose methods do nothing and succeed.
type succeedingAPI struct{ API }

func (succeedingAPI) Hello(context.Context, HelloParams) (h Hello, err error)  { return h, nil }
func (succeedingAPI) Whoami(context.Context, Nothing) (w Whoami, err error)    { return w, nil }
func (succeedingAPI) Enqueue(context.Context, Enqueue) (e Enqueued, err error) { return e, nil }
func (succeedingAPI) EnqueueBatch(context.Context, EnqueueBatch) (e EnqueuedBatch, err error) {
	return e, nil
}
func (succeedingAPI) Show(context.Context, Show) (d JobDetail, err error)      { return d, nil }
func (succeedingAPI) List(context.Context, List) (p JobPage, err error)        { return p, nil }
func (succeedingAPI) Status(context.Context, Nothing) (s Status, err error)    { return s, nil }
func (succeedingAPI) Screen(context.Context, ScreenRows) (s Screen, err error) { return s, nil }
func (succeedingAPI) Wait(_ context.Context, p Wait, each func(Ended) error) (w Waited, err error) {
	return w, each(Ended{Job{ID: string(p.ID)}})
}
func (succeedingAPI) Logs(_ context.Context, p Logs, each func(Piece) error) (l LogsEnd, err error) {
	return l, each(Piece{ID: string(p.ID)})
}
func (succeedingAPI) Attach(context.Context, Attach) (a Attached, err error)          { return a, nil }
func (succeedingAPI) Cancel(context.Context, Selection) (v BulkResult, err error)     { return v, nil }
func (succeedingAPI) Retry(context.Context, Retry) (v BulkResult, err error)          { return v, nil }
func (succeedingAPI) Hold(context.Context, Selection) (v BulkResult, err error)       { return v, nil }
func (succeedingAPI) Release(context.Context, Selection) (v BulkResult, err error)    { return v, nil }
func (succeedingAPI) Pause(context.Context, Selection) (v BulkResult, err error)      { return v, nil }
func (succeedingAPI) Resume(context.Context, Selection) (v BulkResult, err error)     { return v, nil }
func (succeedingAPI) Requeue(context.Context, Selection) (v BulkResult, err error)    { return v, nil }
func (succeedingAPI) Kill(context.Context, Kill) (v BulkResult, err error)            { return v, nil }
func (succeedingAPI) Edit(context.Context, Edit) (v BulkResult, err error)            { return v, nil }
func (succeedingAPI) Remove(context.Context, Remove) (v BulkResult, err error)        { return v, nil }
func (succeedingAPI) Clear(context.Context, Sure) (r Removed, err error)              { return r, nil }
func (succeedingAPI) DLQList(context.Context, DLQList) (p JobPage, err error)         { return p, nil }
func (succeedingAPI) DLQRetry(context.Context, DLQRetry) (v BulkResult, err error)    { return v, nil }
func (succeedingAPI) DLQClear(context.Context, Sure) (r Removed, err error)           { return r, nil }
func (succeedingAPI) QueueList(context.Context, Queues) (l QueueList, err error)      { return l, nil }
func (succeedingAPI) QueueSet(context.Context, QueueSet) (v QueueView, err error)     { return v, nil }
func (succeedingAPI) QueuePause(context.Context, QueuePause) (l QueueList, err error) { return l, nil }
func (succeedingAPI) QueueResume(context.Context, QueueName) (l QueueList, err error) { return l, nil }
func (succeedingAPI) QueueRemove(context.Context, QueueRemove) (l QueueList, err error) {
	return l, nil
}
func (succeedingAPI) NodeList(context.Context, Nodes) (v NodeList, err error)       { return v, nil }
func (succeedingAPI) NodeDrain(context.Context, NodeDrain) (v NodeView, err error)  { return v, nil }
func (succeedingAPI) NodeRemove(context.Context, NodeName) (v NodeView, err error)  { return v, nil }
func (succeedingAPI) GateList(context.Context, Gates) (v GateList, err error)       { return v, nil }
func (succeedingAPI) GateSet(context.Context, GateSet) (v GateView, err error)      { return v, nil }
func (succeedingAPI) WebStart(context.Context, WebStart) (v WebState, err error)    { return v, nil }
func (succeedingAPI) WebStop(context.Context, Nothing) (v WebState, err error)      { return v, nil }
func (succeedingAPI) WebOpen(context.Context, Nothing) (v WebLink, err error)       { return v, nil }
func (succeedingAPI) HookTest(context.Context, HookName) (v Enqueued, err error)    { return v, nil }
func (succeedingAPI) Tree(context.Context, Tree) (v TreeView, err error)            { return v, nil }
func (succeedingAPI) Simulate(context.Context, Simulate) (s Simulated, err error)   { return s, nil }
func (succeedingAPI) Stats(context.Context, StatsParams) (s Stats, err error)       { return s, nil }
func (succeedingAPI) Why(context.Context, WhyParams) (w Why, err error)             { return w, nil }
func (succeedingAPI) WorkerStart(context.Context, Count) (w WorkerCount, err error) { return w, nil }
func (succeedingAPI) WorkerStop(context.Context, WorkerStop) (w WorkerCount, err error) {
	return w, nil
}
func (succeedingAPI) WorkerScale(context.Context, WorkerScale) (w WorkerCount, err error) {
	return w, nil
}
func (succeedingAPI) WorkerList(context.Context, Nothing) (w WorkerList, err error)   { return w, nil }
func (succeedingAPI) ConfigList(context.Context, Nothing) (c ConfigList, err error)   { return c, nil }
func (succeedingAPI) ConfigGet(context.Context, ConfigKey) (c ConfigValue, err error) { return c, nil }
func (succeedingAPI) ConfigSet(context.Context, ConfigSet) (c ConfigValue, err error) { return c, nil }
func (succeedingAPI) ConfigUnset(context.Context, ConfigKey) (c ConfigValue, err error) {
	return c, nil
}
func (succeedingAPI) Drain(context.Context, Drain) (d Draining, err error)             { return d, nil }
func (succeedingAPI) Reload(context.Context, Nothing) (r Reloaded, err error)          { return r, nil }
func (succeedingAPI) ServiceStop(context.Context, ServiceStop) (s Stopping, err error) { return s, nil }
func (succeedingAPI) ScheduleAdd(context.Context, ScheduleAdd) (d ScheduleDetail, err error) {
	return d, nil
}
func (succeedingAPI) ScheduleList(context.Context, ScheduleList) (p SchedulePage, err error) {
	return p, nil
}
func (succeedingAPI) ScheduleShow(context.Context, ScheduleName) (d ScheduleDetail, err error) {
	return d, nil
}
func (succeedingAPI) ScheduleRemove(context.Context, ScheduleName) (s Schedule, err error) {
	return s, nil
}
func (succeedingAPI) SchedulePause(context.Context, ScheduleName) (s Schedule, err error) {
	return s, nil
}
func (succeedingAPI) ScheduleResume(context.Context, ScheduleName) (s Schedule, err error) {
	return s, nil
}
func (succeedingAPI) ScheduleRun(context.Context, ScheduleName) (e Enqueued, err error) {
	return e, nil
}
func (succeedingAPI) Events(_ context.Context, p Events, each func(Event) error) (e EventsEnd, err error) {
	for _, id := range p.ID {
		err = each(Event{ID: id})
	}
	return e, err
}
func (succeedingAPI) Cleanup(context.Context, Cleanup, func(Removed) error) (r Removed, err error) {
	return r, nil
}
func (succeedingAPI) Backup(context.Context, Nothing, func(BackupPiece) error) (b BackupEnd, err error) {
	return b, nil
}
func (succeedingAPI) Doctor(context.Context, Doctor, func(Progress) error) (d Diagnosis, err error) {
	return d, nil
}

// Whatever lines a user with any right sends, each answer is one line of valid JSON without an
// internal error. There is at most one answer for each line, and afterwards the shares are empty.
func FuzzLines(f *testing.F) {
	for _, m := range Methods() {
		f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"`+m.Name+`","params":{}}`+"\n"), uint8(4))
	}
	for _, seed := range []string{
		`{"id":1,"method":"enqueue","params":{"command":"x","env":{"A":"b"},"key":"k"}}`, `{"id":"a","method":"list","params":{"state":["dead"],"label":{"a":"b"},"since":"2026-01-01T00:00:00Z"}}`,
		`{"id":1,"method":"enqueue.batch","params":{"jobs":[{"command":"x"},{}],"commit":true,"batch":"b"}}`, `{"id":1,"method":"edit","params":{"ids":[1,"b"],"set":{"priority":1}}}`,
		`{"id":1,"method":"wait","params":{"ids":["a"],"timeout":"1s"}}`, `{"id":1,"method":"logs","params":{"id":"a","n":3}}` + "\n" + `{"id":2,"method":"hello"}`,
		`{"id":1,"method":"config.set","params":{"key":"a","value":true}}`, "\n\n[]\n{}\n{", "{\"id\":1e5}\r\n", `{"id":1,"id":2}`,
	} {
		f.Add([]byte(seed+"\n"), uint8(2))
	}
	f.Fuzz(func(t *testing.T, lines []byte, right uint8) {
		shares := new(Shares)
		many := func() (all, user int) { return 10, 10 }
		gate := &scriptedAuthorizer{right: rights[int(right)%len(rights)]}
		server := NewServer(succeedingAPI{}, Limits{many}, gate, shares, slog.New(slog.DiscardHandler))
		server.peerOf = func(net.Conn) (Peer, error) { return Peer{UID: 7}, nil }
		c := &scriptedConn{in: bytes.NewReader(lines)}
		server.admitAndServe(t.Context(), c)
		wantNoUsage(t, shares)
		asked, answered := 0, 0
		for line := range bytes.Lines(lines) {
			if len(bytes.TrimRight(line, "\n")) > 0 {
				asked++
			}
		}
		for line := range strings.Lines(c.out.String()) {
			var a struct {
				JSONRPC string           `json:"jsonrpc"`
				ID      json.RawMessage  `json:"id"`
				Result  *json.RawMessage `json:"result"`
				Method  string           `json:"method"`
				Error   *failure         `json:"error"`
			}
			if err := json.Unmarshal([]byte(line), &a); err != nil || a.JSONRPC != "2.0" || !strings.HasSuffix(line, "\n") || len(line) > MaxLine {
				t.Fatalf("%q: answered %.300q, %v", lines, line, err)
			}
			if a.Error != nil && (a.Error.Data.Code == "internal" || len(a.Error.Message) > 2048) {
				t.Fatalf("%q: answered %.300q", lines, line)
			}
			if a.Method == "" {
				answered++
			}
		}
		if answered > asked {
			t.Fatalf("%q: %d answers to %d lines:\n%s", lines, answered, asked, c.out.String())
		}
	})
}
