package daemon

// A runner limits its own memory to ownMemoryBytes plus workerMemoryBytes for each worker. So a bug in the
// runner cannot use up the memory of the machine. An idle runner needs 12 MB. Each worker needs memory for the
// standard input and the output of its job, and for a buffer.
const (
	ownMemoryBytes    = 256 << 20
	workerMemoryBytes = 512 << 10
)

// limitOwnMemory limits the memory of this process, but not that of its jobs. It does so only if a control
// group was delegated to the runner.
func (s *server) limitOwnMemory(workers int) {
	if s.Cgroups == nil {
		return
	}
	s.diskQueue.add(func() {
		if err := s.Cgroups.LimitOwnMemory(ownMemoryBytes + int64(workers)*workerMemoryBytes); err != nil {
			s.warnUnlimitedMemoryOnce.Do(func() {
				s.Log.Warn("could not limit the runner's own memory; jobs are not affected", "error", err)
			})
		}
	})
}
