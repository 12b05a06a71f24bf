package engine

import "math/rand/v2"

// forgetful is the backend of a server. In about half of the transactions, it makes the node believe that
// another node has committed. The node then reloads its caches. It also believes that other nodes are active,
// so it writes rows before it holds the writer lock.
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

// makeForgetful makes the backend of a node forgetful. From then on, the node always sends its claim queries early.
func makeForgetful(s *Engine) {
	s.backend, s.prefetchThreshold = forgetful{s.backend}, 1
}
