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

// scriptedConn is a connection to a client that sends what reader returns.
type scriptedConn struct {
	net.Conn
	reader io.Reader

	mu     sync.Mutex
	output bytes.Buffer // guarded by mu
}

func (s *scriptedConn) Read(p []byte) (int, error) { return s.reader.Read(p) }

func (s *scriptedConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

func (s *scriptedConn) Close() error                     { return nil }
func (s *scriptedConn) SetReadDeadline(time.Time) error  { return nil }
func (s *scriptedConn) SetWriteDeadline(time.Time) error { return nil }

// noopAPI is an API whose methods do nothing and succeed.
type noopAPI struct{ API }

func (noopAPI) Hello(context.Context, HelloParams) (h HelloResult, err error)       { return h, nil }
func (noopAPI) Whoami(context.Context, NoParams) (w WhoamiResult, err error)        { return w, nil }
func (noopAPI) Enqueue(context.Context, EnqueueParams) (e EnqueueResult, err error) { return e, nil }
func (noopAPI) EnqueueBatch(context.Context, EnqueueBatchParams) (e EnqueueBatchResult, err error) {
	return e, nil
}
func (noopAPI) ShowJob(context.Context, JobShowParams) (d JobDetail, err error) { return d, nil }
func (noopAPI) ListJobs(context.Context, JobListParams) (p JobPage, err error)  { return p, nil }
func (noopAPI) Status(context.Context, NoParams) (s Status, err error)          { return s, nil }
func (noopAPI) ReadOverviewScreen(context.Context, OverviewScreenParams) (s OverviewScreen, err error) {
	return s, nil
}
func (noopAPI) WaitForJobs(_ context.Context, p JobWaitParams, handleNotice func(JobEndNotice) error) (w JobWaitResult,
	err error) {
	return w, handleNotice(JobEndNotice{Job{ID: string(p.ID)}})
}
func (noopAPI) StreamOutput(_ context.Context, p JobOutputParams,
	handlePiece func(OutputPiece) error) (l OutputStreamEnd,
	err error) {
	return l, handlePiece(OutputPiece{JobID: string(p.ID)})
}
func (noopAPI) AttachTerminal(context.Context, AttachTerminalParams) (a AttachTerminalResult, err error) {
	return a, nil
}
func (noopAPI) CancelJobs(context.Context, JobSelection) (v BulkResult, err error)    { return v, nil }
func (noopAPI) RetryJobs(context.Context, JobRetryParams) (v BulkResult, err error)   { return v, nil }
func (noopAPI) HoldJobs(context.Context, JobSelection) (v BulkResult, err error)      { return v, nil }
func (noopAPI) ReleaseJobs(context.Context, JobSelection) (v BulkResult, err error)   { return v, nil }
func (noopAPI) PauseJobs(context.Context, JobSelection) (v BulkResult, err error)     { return v, nil }
func (noopAPI) ResumeJobs(context.Context, JobSelection) (v BulkResult, err error)    { return v, nil }
func (noopAPI) RequeueJobs(context.Context, JobSelection) (v BulkResult, err error)   { return v, nil }
func (noopAPI) KillJobs(context.Context, JobKillParams) (v BulkResult, err error)     { return v, nil }
func (noopAPI) EditJobs(context.Context, JobEditParams) (v BulkResult, err error)     { return v, nil }
func (noopAPI) RemoveJobs(context.Context, JobRemoveParams) (v BulkResult, err error) { return v, nil }
func (noopAPI) RemoveNonRunningJobs(context.Context, JobClearParams) (r RemovalCount, err error) {
	return r, nil
}
func (noopAPI) ListDeadJobs(context.Context, DeadJobListParams) (p JobPage, err error) { return p, nil }
func (noopAPI) RetryDeadJobs(context.Context, DeadJobRetryParams) (v BulkResult, err error) {
	return v, nil
}
func (noopAPI) RemoveDeadJobs(context.Context, JobClearParams) (r RemovalCount, err error) {
	return r, nil
}
func (noopAPI) ListQueues(context.Context, QueueListParams) (l QueueList, err error) { return l, nil }
func (noopAPI) ConfigureQueue(context.Context, ConfigureQueueParams) (v QueueView, err error) {
	return v, nil
}
func (noopAPI) PauseQueues(context.Context, QueuePauseParams) (l QueueList, err error) { return l, nil }
func (noopAPI) ResumeQueues(context.Context, QueueResumeParams) (l QueueList, err error) {
	return l, nil
}
func (noopAPI) RemoveQueue(context.Context, QueueRemoveParams) (l QueueList, err error) {
	return l, nil
}
func (noopAPI) ListNodes(context.Context, NodeListParams) (v NodeList, err error) { return v, nil }
func (noopAPI) SetNodeDraining(context.Context, NodeDrainParams) (v NodeView, err error) {
	return v, nil
}
func (noopAPI) RemoveNode(context.Context, NodeRemoveParams) (v NodeView, err error)   { return v, nil }
func (noopAPI) ListGates(context.Context, GateListParams) (v GateList, err error)      { return v, nil }
func (noopAPI) SetGateRule(context.Context, SetGateRuleParams) (v GateView, err error) { return v, nil }
func (noopAPI) StartWebPage(context.Context, WebStartParams) (v WebState, err error)   { return v, nil }
func (noopAPI) StopWebPage(context.Context, NoParams) (v WebState, err error)          { return v, nil }
func (noopAPI) CreateWebLink(context.Context, NoParams) (v WebLink, err error)         { return v, nil }
func (noopAPI) EnqueueHookTest(context.Context, HookTestParams) (v EnqueueResult, err error) {
	return v, nil
}
func (noopAPI) ReadDependencyTree(context.Context, DependencyTreeParams) (v DependencyTree, err error) {
	return v, nil
}
func (noopAPI) SimulateNextStarts(context.Context, SimulateParams) (s SimulateResult, err error) {
	return s, nil
}
func (noopAPI) ReadStats(context.Context, StatsParams) (s Stats, err error) { return s, nil }
func (noopAPI) ExplainWaiting(context.Context, ExplainWaitingParams) (w WaitingExplanation, err error) {
	return w, nil
}
func (noopAPI) StartWorkers(context.Context, WorkerStartParams) (w WorkerCount, err error) {
	return w, nil
}
func (noopAPI) StopWorkers(context.Context, WorkerStopParams) (w WorkerCount, err error) {
	return w, nil
}
func (noopAPI) ScaleWorkers(context.Context, WorkerScaleParams) (w WorkerCount, err error) {
	return w, nil
}
func (noopAPI) ListWorkers(context.Context, NoParams) (w WorkerList, err error)  { return w, nil }
func (noopAPI) ListSettings(context.Context, NoParams) (c ConfigList, err error) { return c, nil }
func (noopAPI) ReadSetting(context.Context, SettingNameParams) (c ConfigValue, err error) {
	return c, nil
}
func (noopAPI) ChangeSetting(context.Context, ConfigSetParams) (c ConfigValue, err error) {
	return c, nil
}
func (noopAPI) UnsetSetting(context.Context, SettingNameParams) (c ConfigValue, err error) {
	return c, nil
}
func (noopAPI) StartOrEndDrain(context.Context, DrainParams) (d DrainResult, err error) {
	return d, nil
}
func (noopAPI) ReloadSettingsFile(context.Context, NoParams) (r ReloadResult, err error) {
	return r, nil
}
func (noopAPI) StopService(context.Context, ServiceStopParams) (s ServiceStopResult, err error) {
	return s, nil
}
func (noopAPI) AddSchedule(context.Context, ScheduleAddParams) (d ScheduleDetail, err error) {
	return d, nil
}
func (noopAPI) ListSchedules(context.Context, ScheduleListParams) (p SchedulePage, err error) {
	return p, nil
}
func (noopAPI) ShowSchedule(context.Context, ScheduleNameParams) (d ScheduleDetail, err error) {
	return d, nil
}
func (noopAPI) RemoveSchedule(context.Context, ScheduleNameParams) (s Schedule, err error) {
	return s, nil
}
func (noopAPI) PauseSchedule(context.Context, ScheduleNameParams) (s Schedule, err error) {
	return s, nil
}
func (noopAPI) ResumeSchedule(context.Context, ScheduleNameParams) (s Schedule, err error) {
	return s, nil
}
func (noopAPI) RunScheduleNow(context.Context, ScheduleNameParams) (e EnqueueResult, err error) {
	return e, nil
}
func (noopAPI) StreamEvents(_ context.Context, p EventsParams, handleEvent func(Event) error) (e EventStreamEnd,
	err error) {
	for _, id := range p.JobIDs {
		err = handleEvent(Event{JobID: id})
	}
	return e, err
}
func (noopAPI) RemoveOldJobs(context.Context, CleanupParams, func(RemovalCount) error) (r RemovalCount, err error) {
	return r, nil
}
func (noopAPI) StreamBackup(context.Context, NoParams, func(BackupPiece) error) (b BackupSummary, err error) {
	return b, nil
}
func (noopAPI) RunDoctor(context.Context, DoctorParams, func(DoctorProgress) error) (d Diagnosis, err error) {
	return d, nil
}

// Whatever lines a user sends, and whatever right the user has, each answer is one line of valid JSON without an
// internal error. Each line has at most one answer. When all requests have ended, nothing counts towards the user's
// limits any more.
func FuzzLines(f *testing.F) {
	for _, m := range Methods() {
		f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"`+m.Name+`","params":{}}`+"\n"), uint8(4))
	}
	for _, seed := range []string{
		`{"id":1,"method":"enqueue","params":{"command":"x","env":{"A":"b"},"key":"k"}}`,
		`{"id":"a","method":"list","params":{"state":["dead"],"label":{"a":"b"},"since":"2026-01-01T00:00:00Z"}}`,
		`{"id":1,"method":"enqueue.batch","params":{"jobs":[{"command":"x"},{}],"commit":true,"batch":"b"}}`,
		`{"id":1,"method":"edit","params":{"ids":[1,"b"],"set":{"priority":1}}}`,
		`{"id":1,"method":"wait","params":{"ids":["a"],"timeout":"1s"}}`,
		`{"id":1,"method":"logs","params":{"id":"a","n":3}}` + "\n" + `{"id":2,"method":"hello"}`,
		`{"id":1,"method":"config.set","params":{"key":"a","value":true}}`, "\n\n[]\n{}\n{", "{\"id\":1e5}\r\n",
		`{"id":1,"id":2}`,
	} {
		f.Add([]byte(seed+"\n"), uint8(2))
	}
	f.Fuzz(func(t *testing.T, lines []byte, right uint8) {
		shares := NewUserLimits()
		many := func() (all, user int) { return 10, 10 }
		gate := &fakeAuthorizer{right: rights[int(right)%len(rights)]}
		server := NewServer(noopAPI{}, ConnectionLimits{many}, gate, shares, slog.New(slog.DiscardHandler))
		server.identifyPeer = func(net.Conn) (Peer, error) { return Peer{UID: 7}, nil }
		c := &scriptedConn{reader: bytes.NewReader(lines)}
		server.admitAndServeConn(t.Context(), c)
		wantNoUserLimitUsage(t, shares)
		asked, answered := 0, 0
		for line := range bytes.Lines(lines) {
			if len(bytes.TrimRight(line, "\n")) > 0 {
				asked++
			}
		}
		for line := range strings.Lines(c.output.String()) {
			var a struct {
				JSONRPC string           `json:"jsonrpc"`
				ID      json.RawMessage  `json:"id"`
				Result  *json.RawMessage `json:"result"`
				Method  string           `json:"method"`
				Error   *rpcError        `json:"error"`
			}
			if err := json.Unmarshal([]byte(line), &a); err != nil || a.JSONRPC != "2.0" || !strings.HasSuffix(line, "\n") ||
				len(line) > MaxLineBytes {
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
			t.Fatalf("%q: %d answers to %d lines:\n%s", lines, answered, asked, c.output.String())
		}
	})
}
