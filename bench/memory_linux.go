package main

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// These constants are the targets for an idle service.
const (
	maxServiceMemoryMB     = 25.0
	maxRunnerMemoryMB      = 15.0
	maxIdleCPUTime         = 10 * time.Millisecond // CPU time that an idle process may use in idleMeasurementTime
	idleMeasurementTime    = 5 * time.Second
	pauseBeforeMeasurement = time.Second // pause before each measurement, so that the processes can finish earlier work
)

// measureMemory measures the memory of the service and its runner: idle, after 1,000 jobs, and while 100 jobs
// run.
func (b *bench) measureMemory(s *service) error {
	if err := s.setWorkers(2); err != nil {
		return err
	}
	time.Sleep(2 * pauseBeforeMeasurement) // a service releases memory some time after its start
	service, runner, err := s.processMemory()
	if err != nil {
		return err
	}
	b.results.addRowWithVerdict(row{"memory: service, idle", service.String(), "", "",
		fmt.Sprintf("≤ %.0f MB", maxServiceMemoryMB), ""}, service.rssMB <= maxServiceMemoryMB)
	b.results.addRowWithVerdict(row{"memory: runner, idle", runner.String(), "", "",
		fmt.Sprintf("≤ %.0f MB", maxRunnerMemoryMB), ""}, runner.rssMB <= maxRunnerMemoryMB)
	if err := s.fillQueue(1000, "true"); err != nil {
		return err
	}
	if err := s.waitForState(queue.Completed, 1000); err != nil {
		return err
	}
	for range b.itemsToMeasure(1000, 1000) {
		if _, err := s.ListJobs(s.ctx, control.JobListParams{}); err != nil {
			return err
		}
	}
	if service, runner, err = s.processMemory(); err != nil {
		return err
	}
	b.results.addRow("memory: service, after 1,000 jobs and 1,000 `list` requests", service.String(),
		"runner "+runner.String(), "")
	if err := s.setWorkers(100); err != nil {
		return err
	}
	if err := s.fillQueue(100, "exec sleep 600"); err != nil {
		return err
	}
	if err := s.waitForState(queue.Processing, 100); err != nil {
		return err
	}
	time.Sleep(pauseBeforeMeasurement)
	if service, runner, err = s.processMemory(); err != nil {
		return err
	}
	b.results.addRow("memory: runner, while 100 jobs sleep", runner.String(), "service "+service.String(), "")
	_, err = s.StopWorkers(s.ctx, control.WorkerStopParams{AllWorkers: true, StopJobsImmediately: true})
	return err
}

// processMemory returns the memory of the service and of its only runner.
func (s *service) processMemory() (service, runner processMemoryMB, err error) {
	if service, err = readProcessMemory(s.pid()); err != nil {
		return service, runner, err
	}
	pids := s.runnerPIDs()
	if len(pids) != 1 {
		return service, runner, fmt.Errorf("%d runners are running, want 1", len(pids))
	}
	runner, err = readProcessMemory(pids[0])
	return service, runner, err
}

// measureIdle measures how much CPU time the service and its runner use while no job runs.
func (b *bench) measureIdle(s *service) error {
	if err := s.setWorkers(2); err != nil {
		return err
	}
	if err := s.fillQueue(100, "true"); err != nil {
		return err
	}
	if err := s.waitForState(queue.Completed, 100); err != nil {
		return err
	}
	time.Sleep(pauseBeforeMeasurement)
	pids := append(s.runnerPIDs(), s.pid())
	wakes := func() (n int64) {
		for _, pid := range pids {
			n += voluntaryContextSwitches(pid)
		}
		return n
	}
	woken := wakes()
	before, err := s.cpuTimes()
	if err != nil {
		return err
	}
	span := time.Duration(b.itemsToMeasure(int(idleMeasurementTime), int(idleMeasurementTime)))
	time.Sleep(span)
	after, err := s.cpuTimes()
	if err != nil {
		return err
	}
	used := after.minus(before)
	b.results.addRowWithVerdict(row{fmt.Sprintf("CPU time while idle for %v", span),
		fmt.Sprintf("service %v, runner %v; %d wake-ups of threads",
			used.service.Round(10*time.Microsecond), used.runner.Round(10*time.Microsecond), wakes()-woken), "", "",
		"≤ " + maxIdleCPUTime.String(), ""}, used.total() <= maxIdleCPUTime)
	return nil
}

func (s *service) completedJobCount() (int, error) {
	st, err := s.Status(s.ctx, control.NoParams{})
	return int(st.Jobs[queue.Completed.String()]), err
}
