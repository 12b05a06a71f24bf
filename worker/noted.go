package worker

import (
	"context"
	"slices"
)

// noteRunners has the store know the folders of all runners that may have leases, before
// anything is sent to one: a folder that is gone at the next start is missed then.
func (p *Pool) noteRunners(ctx context.Context) error {
	p.mu.Lock()
	dirs := make([]string, 0, len(p.clients)+len(p.contacts))
	for _, l := range p.clients {
		if !l.dismissed {
			dirs = append(dirs, l.Dir)
		}
	}
	for dir := range p.contacts {
		dirs = append(dirs, dir)
	}
	p.mu.Unlock()
	slices.Sort(dirs)
	if p.noted != nil && slices.Equal(dirs, p.noted) {
		return nil
	}
	err := p.store.NoteRunners(context.WithoutCancel(ctx), dirs)
	if err == nil {
		p.noted = dirs
	}
	return err
}
