package daemon

// A runner limits its own memory to ownMemoryBytes, plus workerMemoryBytes for each worker, in bytes. A bug
// in the runner therefore cannot use up the machine's memory. An idle runner needs 12 MB. Each worker also
// needs memory for the standard input and the output of its job, and for a buffer.
const (
	ownMemoryBytes    = 256 << 20
	workerMemoryBytes = 512 << 10
)

// limitOwnMemory limits the memory of this process, but not of its jobs. It needs a control group that was
// delegated to the runner.
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
