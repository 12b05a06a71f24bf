package engine

import "math/rand/v2"

// foreignCommitBackend wraps the backend of a server. In about half of the transactions, the node seems to have
// missed a commit of another node, so it reloads its caches. Other nodes also seem to be active, so the node
// writes rows before it holds the writer lock.
type foreignCommitBackend struct{ Backend }

func (f foreignCommitBackend) BeginTx(t *Tx) error {
	if rand.IntN(2) == 0 {
		return f.Backend.BeginTx(t)
	}
	t.engine.mem.commits--
	t.engine.SetOtherNodes(1)
	err := f.Backend.BeginTx(t)
	t.engine.foreignChanges.anyJob = false // there was no other node's commit, so no job has changed
	return err
}

// simulateForeignCommits makes the commits of other nodes appear to a node, as described at
// foreignCommitBackend. It also makes the node send all its claim queries early.
func simulateForeignCommits(s *Engine) {
	s.backend, s.prefetchThreshold = foreignCommitBackend{s.backend}, 1
}
