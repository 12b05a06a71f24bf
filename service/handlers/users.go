package handlers

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
)

// Users implements the methods about the identity of a peer.
type Users struct {
	places    config.Places
	store     store.Store
	directory *access.Directory
	quota     *settings.Quota
	rights    *access.Rights
	runAs     *access.RunAs
	settings  *settings.Keeper
}

// maxGroups is the maximum number of a peer's groups that whoami lists.
const maxGroups = 1000

// Whoami implements control.API.
func (h *Users) Whoami(ctx context.Context, _ control.Nothing) (w control.Whoami, err error) {
	p := control.PeerFrom(ctx)
	w = control.Whoami{
		UID: p.UID, User: h.rights.PeerName(p.UID), GID: p.GID, Group: h.directory.GroupName(p.GID),
		Groups: []control.GroupID{}, PID: p.PID,
		Right: p.Right, Rights: p.Right.Included(), RunAs: h.settings.Current().RunAs,
		Service: string(h.places.Kind()), Socket: h.places.Socket,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxGroups)] {
		w.Groups = append(w.Groups, control.GroupID{GID: g, Name: h.directory.GroupName(g)})
	}
	if p.Right.Covers(control.Submit) {
		w.JobsRunAs = h.runAs.JobsRunAs(&p)
		c := h.settings.Current()
		w.MaxPending, w.MaxRunning, w.MaxBytes = c.MaxPendingUser, c.MaxRunningUser, h.quota.MaxBytesUser()
		w.Bytes = h.store.UserBytes(p.UID)
	}
	if p.Right == control.None {
		w.Next = h.rights.HowToGetRight(control.Submit, w.User)
	}
	return w, nil
}
