package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/service"
)

// fakeServiceManager simulates the service manager of Windows with a fake clock. It sends requests to the
// service and records the states that the service reports.
type fakeServiceManager struct {
	requests                  chan svc.ChangeRequest
	statuses                  []svc.Status
	events                    []string
	exitCodeIsServiceSpecific bool   // first result of Execute
	exitCode                  uint32 // second result of Execute
}

// runUnderFakeServiceManager runs a service under the fake service manager until the service ends. sendRequests plays
// the role of the manager.
func runUnderFakeServiceManager(t *testing.T, runService func(context.Context, *serviceManager) error,
	sendRequests func(*fakeServiceManager)) *fakeServiceManager {
	s := &fakeServiceManager{requests: make(chan svc.ChangeRequest)}
	synctest.Test(t, func(t *testing.T) {
		requests, statuses, done := make(chan svc.ChangeRequest), make(chan svc.Status), make(chan bool)
		s.requests = requests
		m := &serviceHandler{ctx: t.Context(), serve: runService,
			eventLogger: newEventLogHandler(func(_ uint16, text string) error {
				s.events = append(s.events, text)
				return nil
			})}
		go func() {
			s.exitCodeIsServiceSpecific, s.exitCode = m.Execute(nil, requests, statuses)
			close(statuses)
		}()
		go func() {
			for now := range statuses {
				s.statuses = append(s.statuses, now)
			}
			close(done)
		}()
		synctest.Wait()
		sendRequests(s)
		<-done
	})
	return s
}

func (s *fakeServiceManager) sendCommand(c svc.Cmd) {
	s.requests <- svc.ChangeRequest{Cmd: c}
	synctest.Wait()
}

func (s *fakeServiceManager) lastStatus() svc.Status { return s.statuses[len(s.statuses)-1] }

// A service reports progress while it starts and while it stops. It reports that it runs when clients can
// connect to its pipe. It answers when the service manager asks for its state.
func TestServiceReportsStateToServiceManager(t *testing.T) {
	for _, stop := range []svc.Cmd{svc.Stop, svc.Shutdown, svc.PreShutdown} {
		var reloads int
		s := runUnderFakeServiceManager(t, func(ctx context.Context, m *serviceManager) error {
			time.Sleep(10 * time.Second) // the service takes this long to start
			m.OnListening()
			for {
				select {
				case <-m.reloadSignals:
					reloads++
					continue
				case <-ctx.Done():
				}
				break
			}
			for range 12 { // the service waits for its jobs
				time.Sleep(5 * time.Second)
				m.ExtendStopTimeout()
			}
			return nil
		}, func(s *fakeServiceManager) {
			for i := range 4 {
				if now := s.lastStatus(); now.State != svc.StartPending || now.CheckPoint != uint32(i+1) || now.WaitHint < 30_000 ||
					now.Accepts != svc.AcceptStop|svc.AcceptShutdown|svc.AcceptPreShutdown {
					t.Errorf("while the service starts, the state is %+v", now)
				}
				time.Sleep(startProgressInterval)
				synctest.Wait()
			}
			want := svc.Status{State: svc.Running,
				Accepts: svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown | svc.AcceptParamChange}
			if now := s.lastStatus(); now != want {
				t.Errorf("when the service listens, the state is %+v, want %+v", now, want)
			}
			time.Sleep(time.Hour)
			n := len(s.statuses)
			s.sendCommand(svc.ParamChange)
			if s.sendCommand(svc.Interrogate); len(s.statuses) != n+1 || s.lastStatus() != want || reloads != 1 {
				t.Errorf("after an hour: %d progress reports, %+v, %d reloads", len(s.statuses)-n, s.lastStatus(), reloads)
			}
			s.sendCommand(stop)
			before := uint32(0)
			for range 11 {
				now := s.lastStatus()
				if now.State != svc.StopPending || now.CheckPoint <= before || now.WaitHint < 30_000 || now.Accepts != 0 {
					t.Errorf("while the service stops, the state is %+v after check point %d", now, before)
				}
				before = now.CheckPoint
				time.Sleep(5 * time.Second)
				synctest.Wait()
			}
			s.sendCommand(svc.Interrogate)
			if now := s.lastStatus(); now.State != svc.StopPending {
				t.Errorf("the answer to a query while the service stops is %+v", now)
			}
		})
		if s.exitCodeIsServiceSpecific || s.exitCode != 0 {
			t.Errorf("the service ended with a specific code: %v, code %d; want 0", s.exitCodeIsServiceSpecific, s.exitCode)
		}
		if want := []string{"queuectl " + cli.Version + " started", "queuectl stopped"}; !slices.Equal(s.events, want) {
			t.Errorf("the event log contains %q, want %q", s.events, want)
		}
	}
}

// A service that the service manager stops during its start ends, and is never reported as running.
func TestServiceStoppedDuringStartNeverReportsRunning(t *testing.T) {
	s := runUnderFakeServiceManager(t, func(ctx context.Context, m *serviceManager) error {
		<-ctx.Done()
		m.OnListening() // the service begins to listen although the stop was requested
		time.Sleep(time.Second)
		return nil
	}, func(s *fakeServiceManager) {
		time.Sleep(10 * time.Second)
		s.sendCommand(svc.Stop)
	})
	if now := s.lastStatus(); now.State != svc.StopPending || s.exitCodeIsServiceSpecific || s.exitCode != 0 {
		t.Errorf("the last state is %+v, specific code: %v, code %d", now, s.exitCodeIsServiceSpecific, s.exitCode)
	}
	if want := []string{"queuectl stopped"}; !slices.Equal(s.events, want) {
		t.Errorf("the event log contains %q, want %q", s.events, want)
	}
}

// A service that fails reports its exit code to the service manager. A service that a client stops through its
// pipe reports to the service manager that it is stopping.
func TestServiceReportsItsEndToServiceManager(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint32
	}{{&service.ExitError{Code: 74, Err: errors.New("disk")}, 74},
		{&service.ExitError{Code: 78, Err: errors.New("settings")}, 78}, {fault.Usagef("no"), 2}, {errors.New("any"), 1}} {
		s := runUnderFakeServiceManager(t, func(context.Context, *serviceManager) error { return c.err },
			func(*fakeServiceManager) {})
		if !s.exitCodeIsServiceSpecific || s.exitCode != c.code {
			t.Errorf("error %v: specific code: %v, code %d, want %d", c.err, s.exitCodeIsServiceSpecific, s.exitCode, c.code)
		}
		if len(s.events) != 1 || !strings.Contains(s.events[0], c.err.Error()) ||
			!strings.Contains(s.events[0], fmt.Sprint(c.code)) {
			t.Errorf("error %v: the event log contains %q", c.err, s.events)
		}
	}
	s := runUnderFakeServiceManager(t, func(_ context.Context, m *serviceManager) error {
		m.OnListening()
		time.Sleep(time.Minute)
		m.ExtendStopTimeout()
		time.Sleep(time.Minute)
		return nil
	}, func(*fakeServiceManager) {})
	if now := s.lastStatus(); now.State != svc.StopPending || s.exitCodeIsServiceSpecific || s.exitCode != 0 {
		t.Errorf("after a stop through the pipe, the state is %+v, specific code: %v, code %d", now,
			s.exitCodeIsServiceSpecific, s.exitCode)
	}
}

// panickingContext is a context whose Done method panics.
type panickingContext struct{ context.Context }

func (panickingContext) Done() <-chan struct{} { panic("on purpose") }

// A service that crashes under the service manager writes the crash report to its log, because it has no other
// output.
func TestServiceCrashReportIsInTheLog(t *testing.T) {
	const crashVariable = "QUEUECTL_TEST_CRASH"
	if dir := os.Getenv(crashVariable); dir != "" {
		(&app{new(cli.App)}).serve(panickingContext{t.Context()},
			service.Options{Paths: config.PathsInDir(dir), RunnerCommand: []string{filepath.Join(dir, "none.exe")}},
			&serviceManager{ServiceManager: service.ServiceManager{LogHandler: slog.DiscardHandler}})
		return
	}
	dir := filepath.Join(t.TempDir(), "state")
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), crashVariable+"="+dir)
	if err := cmd.Run(); err == nil {
		t.Error("the service has not crashed")
	}
	raw, err := os.ReadFile(filepath.Join(dir, config.WindowsServiceLogName))
	if err != nil || !strings.Contains(string(raw), "panic: on purpose") || !strings.Contains(string(raw), "goroutine ") {
		t.Errorf("the log contains %s, error %v; want the panic and a stack trace", raw, err)
	}
}

// If a user calls `queuectl serve --service`, the error names the command that starts the service.
func TestServeServiceFlagErrorNamesStartCommand(t *testing.T) {
	err := runByServiceManager(t.Context(), func(context.Context, *serviceManager) error {
		t.Error("the service is running")
		return nil
	})
	if err == nil || fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), "sc start queuectl") {
		t.Errorf("got error %v, want a usage error with the command to use instead", err)
	}
}

// The event log gets warnings and errors, but at most maxEventsPerWindow in a minute. After that minute, it
// gets the number of the events that were omitted.
func TestEventLogEntriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		e := newEventLogHandler(func(kind uint16, text string) error {
			got = append(got, fmt.Sprintf("%d %s", kind, text))
			return nil
		})
		log := slog.New(e).With("job", "a").WithGroup("g")
		log.Info("nothing")
		log.Warn("slow", "n", 1)
		log.Error("bad\x00", "n", strings.Repeat("é", maxEventBytes))
		if len(got) != 2 || got[0] != fmt.Sprintf("%d msg=slow job=a g.n=1", windows.EVENTLOG_WARNING_TYPE) ||
			!strings.HasPrefix(got[1], fmt.Sprintf("%d msg=", windows.EVENTLOG_ERROR_TYPE)) || len(got[1]) > maxEventBytes+10 ||
			strings.Contains(got[1], "\x00") {
			t.Errorf("the event log contains %.200q", got)
		}
		for range 10 * maxEventsPerWindow {
			log.Warn("flood")
		}
		if len(got) != maxEventsPerWindow {
			t.Errorf("the event log got %d events in a minute", len(got))
		}
		time.Sleep(eventLimitWindow + time.Second)
		synctest.Wait()
		if len(got) != maxEventsPerWindow+1 || !strings.Contains(got[maxEventsPerWindow],
			fmt.Sprint(9*maxEventsPerWindow+2)) {
			t.Errorf("%d events, the last: %q", len(got), got[len(got)-1])
		}
		log.Warn("again")
		if last := got[len(got)-1]; len(got) != maxEventsPerWindow+2 || !strings.Contains(last, "again") {
			t.Errorf("%d events, the last: %q", len(got), last)
		}
	})
}
