package handlers

import (
	"context"

	"github.com/queuectl/queuectl/control"
)

// maxListedGroups is the maximum number of the peer's groups that API.Whoami lists.
const maxListedGroups = 1000

// Whoami implements control.API.
func (h *API) Whoami(ctx context.Context, _ control.NoParams) (w control.Whoami, err error) {
	p := control.PeerFrom(ctx)
	w = control.Whoami{
		UID: p.UID, User: h.Rights.PeerName(p.UID), GID: p.GID, Group: h.Directory.GroupName(p.GID),
		Groups: []control.GroupID{}, PID: p.PID,
		Right: p.Right, Rights: p.Right.IncludedRights(), RunAs: h.Settings.Current().RunAs,
		Service: string(h.Paths.ServiceKind()), Socket: h.Paths.Socket,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxListedGroups)] {
		w.Groups = append(w.Groups, control.GroupID{GID: g, Name: h.Directory.GroupName(g)})
	}
	if p.Right.Covers(control.RightSubmit) {
		w.JobsRunAs = h.Guard.PeerJobUserName(&p)
		c := h.Settings.Current()
		w.MaxPending, w.MaxRunning, w.MaxBytes = c.MaxPendingPerUser, c.MaxRunningPerUser, h.Quota.MaxBytesPerUser()
		w.StoredBytes = h.Store.UserBytes(p.UID)
	}
	if p.Right == control.RightNone {
		w.Advice = h.Rights.RightAdvice(control.RightSubmit, w.User)
	}
	return w, nil
}
