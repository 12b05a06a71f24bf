package handlers

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// maxNearQuota is the maximum number of users near their quota that a status lists.
const maxNearQuota = 20

// addUse adds to a status how many bytes the caller's jobs use. For an admin it also adds which users are
// near their quota.
func (h *Overview) addUse(ctx context.Context, st *control.Status) {
	p := control.PeerFrom(ctx)
	st.UserBytes, st.MaxBytesUser = h.store.UserBytes(p.UID), h.quota.MaxBytesUser()
	if !p.Right.Covers(control.Admin) {
		return
	}
	near := slices.DeleteFunc(h.quota.NearQuota(), func(u store.UserBytes) bool { return u.UID == p.UID })
	for _, u := range near[:min(len(near), maxNearQuota)] {
		st.NearQuota = append(st.NearQuota, control.UserBytes{UID: u.UID, User: h.owners.UserName(u.UID), Bytes: u.Bytes})
	}
}
