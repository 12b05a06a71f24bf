package daemon

// A runner limits its own memory to runnerBaseMemoryBytes plus memoryBytesPerWorker for each worker. So a bug in the
// runner cannot use up the memory of the machine. For comparison: an idle runner needs 12 MB. Each worker needs memory
// for the standard input and the output of its job, and for a buffer.
const (
	runnerBaseMemoryBytes = 256 << 20
	memoryBytesPerWorker  = 512 << 10
)

// limitRunnerMemory limits the memory of this process, but not that of its jobs. It does so only if a control
// group was delegated to the runner.
func (s *server) limitRunnerMemory(workerCount int) {
	if s.Cgroups == nil {
		return
	}
	s.diskQueue.addOperation(func() {
		if err := s.Cgroups.LimitThisProcessMemory(runnerBaseMemoryBytes +
			int64(workerCount)*memoryBytesPerWorker); err != nil {
			s.warnUnlimitedMemoryOnce.Do(func() {
				s.Log.Warn("could not limit the runner's own memory; jobs are not affected", "error", err)
			})
		}
	})
}
