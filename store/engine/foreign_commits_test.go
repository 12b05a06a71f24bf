package engine

import "math/rand/v2"

// forgetful wraps the backend of a server. In about half of the transactions, the node seems to have missed a
// commit of another node, so it reloads its caches. Other nodes also seem to be active, so the node writes rows
// before it holds the writer lock.
type forgetful struct{ Backend }

func (f forgetful) BeginTx(t *Tx) error {
	if rand.IntN(2) == 0 {
		return f.Backend.BeginTx(t)
	}
	t.s.mem.commits--
	t.s.SetOtherNodes(1)
	err := f.Backend.BeginTx(t)
	t.s.foreignChanges.hasChanges = false // there was no other node's commit, so no job has changed
	return err
}

// makeForgetful makes the commits of other nodes appear to a node, as described at forgetful. It also makes the
// node send all its claim queries early.
func makeForgetful(s *Engine) {
	s.backend, s.prefetchThreshold = forgetful{s.backend}, 1
}
