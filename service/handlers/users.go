package handlers

import (
	"context"

	"github.com/queuectl/queuectl/control"
)

// maxListedPeerGroups is the maximum number of the peer's groups that API.Whoami lists.
const maxListedPeerGroups = 1000

// Whoami implements control.API.
func (h *API) Whoami(ctx context.Context, _ control.NoParams) (w control.WhoamiResult, err error) {
	p := control.PeerFrom(ctx)
	w = control.WhoamiResult{
		UID: p.UID, User: h.Rights.PeerName(p.UID), GID: p.GID, Group: h.UserDirectory.GroupName(p.GID),
		Groups: []control.OSGroup{}, PID: p.PID,
		Right: p.Right, IncludedRights: p.Right.IncludedRights(), RunAsSetting: h.Settings.CurrentConfig().RunAs,
		ServiceKind: string(h.Paths.ServiceKind()), SocketPath: h.Paths.SocketPath,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxListedPeerGroups)] {
		w.Groups = append(w.Groups, control.OSGroup{GID: g, Name: h.UserDirectory.GroupName(g)})
	}
	if p.Right.Covers(control.RightSubmit) {
		w.JobsRunAs = h.Guard.JobUserNameOfPeer(&p)
		c := h.Settings.CurrentConfig()
		w.MaxPendingJobs, w.MaxRunningJobs, w.MaxStoredBytes = c.MaxPendingPerUser, c.MaxRunningPerUser,
			h.UserQuota.MaxBytesPerUser()
		w.StoredBytes = h.Store.StoredBytesOfUser(p.UID)
	}
	if p.Right == control.RightNone {
		w.Advice = h.Rights.AdviceForMissingRight(control.RightSubmit, w.User)
	}
	return w, nil
}
