package cluster

import "testing"

// If a read of the store finishes after a read that began later, its result is ignored. While all nodes are
// drained, CommandToEndDrain returns the command that ends the drain of all nodes.
func TestDrainStateIgnoresOlderRead(t *testing.T) {
	var d DrainState
	older, newer := d.beginDrainRead(), d.beginDrainRead()
	newer(true)
	older(false)
	if !d.isDrained() || d.AllNodesDrained.Load() {
		t.Errorf("drained %v, all %v; want this node alone", d.isDrained(), d.AllNodesDrained.Load())
	}
	if got, want := d.CommandToEndDrain("a"), "queuectl node drain a --off"; got != want {
		t.Errorf("a drain of this node ends with %q, want %q", got, want)
	}
	d.AllNodesDrained.Store(true)
	if got, want := d.CommandToEndDrain("a"), "queuectl drain --off"; got != want {
		t.Errorf("a drain of all nodes ends with %q, want %q", got, want)
	}
}
