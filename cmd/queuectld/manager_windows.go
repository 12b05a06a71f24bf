package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/osservice/install"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

// addServiceManagerFlag adds the flag --service. The service manager starts `queuectl serve` with this flag.
// See docs/decisions/0091.
func addServiceManagerFlag(f *pflag.FlagSet, underServiceManager *bool) {
	f.BoolVar(underServiceManager, "service", false, "the service was started by the service manager")
	f.Lookup("service").Hidden = true
}

// runByServiceManager runs the service under the service manager.
func runByServiceManager(ctx context.Context, serve func(context.Context, *serviceManager) error) error {
	err := svc.Run(install.ServiceName, &serviceHandler{ctx: ctx, serve: serve, eventLogger: openEventLog()})
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return fault.Usagef("only the service manager can run serve --service; start the service with: %s; or run it in the "+
			"foreground with: queuectl serve", connect.StartSystemServiceCommand)
	}
	return err
}

// serviceHandler implements svc.Handler: it runs the service and answers the requests of the service manager.
type serviceHandler struct {
	ctx         context.Context
	serve       func(context.Context, *serviceManager) error
	eventLogger *eventLogHandler
}

// The service manager assumes that a starting or stopping service hangs unless the service reports progress
// within progressWaitHint. A starting service reports progress every startProgressInterval. A stopping service reports
// progress at each call of ExtendStopTimeout.
const (
	startProgressInterval = 3 * time.Second
	progressWaitHint      = 40 * time.Second
)

// controlsDuringStart are the requests that a service accepts while it starts. controlsWhileRunning are the requests
// that it accepts while it runs.
const (
	controlsDuringStart  = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown
	controlsWhileRunning = controlsDuringStart | svc.AcceptParamChange
)

// Execute runs the service until the service manager stops it or the service ends by itself. It reports each
// change of the service's state to the service manager.
func (h *serviceHandler) Execute(
	_ []string, requests <-chan svc.ChangeRequest, states chan<- svc.Status,
) (isServiceSpecific bool, exitCode uint32) {
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	listening, extendStop := make(chan struct{}, 1), make(chan struct{}, 1)
	reload := make(chan os.Signal, 1)
	ended := make(chan error, 1)
	go func() { // this goroutine ends before Execute returns
		ended <- h.serve(ctx, &serviceManager{
			ServiceManager: service.ServiceManager{
				OnListening:       func() { queue.TrySend(listening, struct{}{}) },
				ExtendStopTimeout: func() { queue.TrySend(extendStop, struct{}{}) },
				LogHandler:        h.eventLogger,
			},
			reloadSignals: reload,
		})
	}()
	status := statusReporter{statuses: states}
	status.reportState(svc.StartPending)
	starts := time.NewTicker(startProgressInterval)
	defer starts.Stop()
	for {
		select {
		case <-starts.C:
			// Report progress regularly. A start takes long if the database is large or the disk is full.
			if status.lastStatus.State == svc.StartPending {
				status.reportState(svc.StartPending)
			}
		case <-listening:
			starts.Stop()
			// If the service manager requested a stop during the start, the state is StopPending. Do not report
			// Running then.
			if status.lastStatus.State == svc.StartPending {
				status.reportState(svc.Running)
				h.eventLogger.reportServiceStart()
			}
		case <-extendStop:
			status.reportState(svc.StopPending)
		case c := <-requests:
			switch c.Cmd {
			case svc.Interrogate:
				states <- status.lastStatus
			case svc.Stop, svc.Shutdown, svc.PreShutdown:
				status.reportState(svc.StopPending)
				stop()
			case svc.ParamChange:
				queue.TrySend(reload, os.Interrupt) // reload the settings, as SIGHUP does on Unix
			}
		case err := <-ended:
			h.eventLogger.reportServiceEnd(err)
			if err != nil {
				return true, uint32(fault.ExitCode(err))
			}
			return false, 0
		}
	}
}

// statusReporter reports the state of the service to the service manager.
type statusReporter struct {
	statuses   chan<- svc.Status
	lastStatus svc.Status // the last reported status
}

// reportState reports a state to the service manager. If it has already reported this state, the report says
// that the start or stop makes progress.
func (r *statusReporter) reportState(state svc.State) {
	next := svc.Status{State: state, CheckPoint: 1, WaitHint: uint32(progressWaitHint.Milliseconds())}
	switch state {
	case svc.StartPending:
		next.Accepts = controlsDuringStart
	case svc.Running:
		next = svc.Status{State: state, Accepts: controlsWhileRunning}
	}
	if state == r.lastStatus.State {
		next.CheckPoint = r.lastStatus.CheckPoint + 1
	}
	r.lastStatus = next
	r.statuses <- next
}

// installerVerbs returns the hidden subcommands of `queuectl service` that installers call.
func (a *app) installerVerbs() []*cobra.Command {
	undo, tidy := false, false
	cmd := &cobra.Command{
		Use: "prepare", Short: "Complete the setup of a service that an installer registered", Hidden: true,
		Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			r, err := a.userOrSystemService(false)
			switch {
			case err != nil:
				return err
			case undo:
				return r.UndoConfiguration()
			case tidy:
				return r.RemoveOldRunnerCopies()
			}
			return r.Configure()
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "undo this setup")
	cmd.Flags().BoolVar(&tidy, "tidy", false, "remove the files that an upgrade has left behind")
	return []*cobra.Command{cmd}
}
