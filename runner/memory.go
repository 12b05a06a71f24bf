package runner

// What a runner's own memory is bounded to, in bytes, so that a fault of ours does not take
// the machine's: what it needs at rest is 12 MB, and for each worker its job's standard
// input, what it keeps of the output, and a buffer.
const (
	ownMemory    = 256 << 20
	workerMemory = 512 << 10
)

// boundMemory bounds the memory of this process, but not of its jobs, where the system has
// handed a control group over.
func (s *server) boundMemory(workers int) {
	if s.Cgroups == nil {
		return
	}
	s.chores.add(func() {
		if err := s.Cgroups.BoundSelf(ownMemory + int64(workers)*workerMemory); err != nil {
			s.unbounded.Do(func() { s.Log.Warn("could not limit the runner's own memory", "error", err) })
		}
	})
}
