package engine

import "math/rand/v2"

// otherNodeCommitBackend wraps the backend of a server and simulates other nodes. In about half of the
// transactions, the node seems to have missed a commit of another node, so it reloads its caches. Other nodes
// seem to be active, so the node writes some rows before it holds the writer lock.
type otherNodeCommitBackend struct{ Backend }

func (f otherNodeCommitBackend) BeginTx(t *Tx) error {
	if rand.IntN(2) == 0 {
		return f.Backend.BeginTx(t)
	}
	t.commitCount--
	t.engine.SetOtherActiveNodeCount(1)
	err := f.Backend.BeginTx(t)
	t.engine.changesByOtherNodes.anyJobMayHaveChanged = false // no other node has really committed, so no job has changed
	return err
}

// simulateOtherNodeCommits makes a node behave as if other nodes committed too; see otherNodeCommitBackend. It
// also makes the node send all its claim queries early.
func simulateOtherNodeCommits(s *Engine) {
	s.backend, s.minJobsForPrefetch = otherNodeCommitBackend{s.backend}, 1
}
