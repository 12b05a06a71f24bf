package worker

import (
	"context"
	"slices"
)

// noteRunners has the store know the folders of all runners that may have leases, before
// anything is sent to one: a folder that is gone at the next start is missed then. One that
// is gone or damaged stays noted until what its runner may have had is settled.
func (p *Pool) noteRunners(ctx context.Context) error {
	p.mu.Lock()
	if !p.unsettled() {
		p.unsure = nil
	}
	dirs := slices.Clone(p.unsure)
	for _, conn := range p.clients {
		if !conn.dismissed {
			dirs = append(dirs, conn.Dir)
		}
	}
	for dir, c := range p.contacts {
		if !c.unknown {
			dirs = append(dirs, dir)
		}
	}
	p.mu.Unlock()
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	if p.noted != nil && slices.Equal(dirs, p.noted) {
		return nil
	}
	err := p.store.NoteRunners(context.WithoutCancel(ctx), dirs)
	if err == nil {
		p.noted = dirs
	}
	return err
}

// unsettled reports whether some lease may be of a runner whose folder is gone or damaged.
// The caller holds mu.
func (p *Pool) unsettled() bool {
	for _, h := range p.leases {
		if len(p.unsure) > 0 && h.conn == nil && !h.waiting && (h.dir == "" || slices.Contains(p.unsure, h.dir)) {
			return true
		}
	}
	return false
}
