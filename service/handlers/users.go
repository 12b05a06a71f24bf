package handlers

import (
	"context"

	"github.com/queuectl/queuectl/control"
)

// Users implements the methods about the identity of a peer.
type Users struct{ *parts }

// maxGroups is the maximum number of a peer's groups that whoami lists.
const maxGroups = 1000

// Whoami implements control.API.
func (h *Users) Whoami(ctx context.Context, _ control.Nothing) (w control.Whoami, err error) {
	p := control.PeerFrom(ctx)
	w = control.Whoami{
		UID: p.UID, User: h.Rights.PeerName(p.UID), GID: p.GID, Group: h.Directory.GroupName(p.GID),
		Groups: []control.GroupID{}, PID: p.PID,
		Right: p.Right, Rights: p.Right.Included(), RunAs: h.Settings.Current().RunAs,
		Service: string(h.Places.Kind()), Socket: h.Places.Socket,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxGroups)] {
		w.Groups = append(w.Groups, control.GroupID{GID: g, Name: h.Directory.GroupName(g)})
	}
	if p.Right.Covers(control.Submit) {
		w.JobsRunAs = h.RunAs.JobsRunAs(&p)
		c := h.Settings.Current()
		w.MaxPending, w.MaxRunning, w.MaxBytes = c.MaxPendingUser, c.MaxRunningUser, h.Quota.MaxBytesUser()
		w.Bytes = h.Store.UserBytes(p.UID)
	}
	if p.Right == control.None {
		w.Next = h.Rights.HowToGetRight(control.Submit, w.User)
	}
	return w, nil
}
