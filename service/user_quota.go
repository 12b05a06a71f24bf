package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// quota bounds how many bytes each user's jobs may hold.
type quota struct {
	files    store.Maintainer // the store's maintenance operations; nil if it has none
	store    store.Store
	settings *keeper
}

// With max_bytes_per_user = "auto", the quota of a user is the smaller of autoBytes and 1/autoShare of the
// file system.
const (
	autoBytes = 10 << 30
	autoShare = 5
)

// maxBytesUser returns the maximum number of bytes that the jobs of one user may hold, or 0 for unlimited.
func (q *quota) maxBytesUser() int64 {
	most := q.settings.config.Load().MaxBytesUser
	if most >= 0 {
		return most
	}
	most = autoBytes
	if q.files != nil {
		if all := q.files.Capacity(); all > 0 {
			most = min(most, all/autoShare)
		}
	}
	return most
}

// quotaThreshold returns how many bytes a user may hold before upkeep removes inputs and outputs of the
// user's ended jobs. It is just below 90 % of the quota, but at least 1. 0 means that the quota is
// unlimited.
func (q *quota) quotaThreshold() int64 {
	most := q.maxBytesUser()
	if most == 0 {
		return 0
	}
	return max(1, most-most/10-1)
}

// makeRoomTries limits how often one request makes room. It must do so again only if other requests have
// used the room in the meantime.
const makeRoomTries = 3

// withRoom executes a request that needs bytes of a user's quota. If the quota is used up, it removes
// inputs and outputs of the user's ended jobs and repeats the request. If another user makes the request,
// withRoom removes nothing.
func (q *quota) withRoom(ctx context.Context, uid int, request func() error) error {
	err := request()
	for range makeRoomTries {
		var full *store.QuotaError
		if !errors.As(err, &full) || control.PeerFrom(ctx).UID != uid || !q.makeRoom(ctx, uid, full) {
			return err
		}
		err = request()
	}
	return err
}

// makeRoom removes outputs and inputs of a user's ended jobs until a rejected request fits in the quota. It
// reports whether the request now fits. If removing all of them would not be enough, it removes nothing.
func (q *quota) makeRoom(ctx context.Context, uid int, full *store.QuotaError) bool {
	keep := full.Most - full.More
	if keep < 0 {
		return false
	}
	need := full.Used - keep
	if removable, err := q.store.RemovableBytes(ctx, uid, need); err != nil || removable < need {
		return false
	}
	for more := true; more; {
		var err error
		if more, err = q.store.TrimUser(ctx, uid, keep); err != nil {
			return false
		}
	}
	return q.store.UserBytes(uid) <= keep
}

// maxNearQuota is the maximum number of users near their quota that a status lists.
const maxNearQuota = 20

// nearQuota returns the users whose jobs use 90 % of their quota or more, highest use first.
func (q *quota) nearQuota() []store.UserBytes {
	if q.maxBytesUser() == 0 {
		return nil
	}
	return q.store.UsersOver(q.quotaThreshold())
}

// addUse adds to a status how many bytes the caller's jobs use. For an admin it also adds which users are
// near their quota.
func (h *Overview) addUse(ctx context.Context, st *control.Status) {
	p := control.PeerFrom(ctx)
	st.UserBytes, st.MaxBytesUser = h.store.UserBytes(p.UID), h.quota.maxBytesUser()
	if !p.Right.Covers(control.Admin) {
		return
	}
	near := slices.DeleteFunc(h.quota.nearQuota(), func(u store.UserBytes) bool { return u.UID == p.UID })
	for _, u := range near[:min(len(near), maxNearQuota)] {
		st.NearQuota = append(st.NearQuota, control.UserBytes{UID: u.UID, User: h.owners.userName(u.UID), Bytes: u.Bytes})
	}
}

// examineUsers reports the users whose jobs use nearly their whole quota.
func (d *Examiner) examineUsers() (list []store.Finding) {
	most := d.quota.maxBytesUser()
	for _, u := range d.quota.nearQuota() {
		list = append(list, store.Finding{Check: "users", Level: store.Warning,
			Message: fmt.Sprintf("the jobs of %s use %d of %d bytes; once all bytes are used, new jobs are refused", d.owners.userName(u.UID), u.Bytes, most),
			Next:    "remove ended jobs (queuectl cleanup), or raise the setting max_bytes_per_user"})
	}
	return list
}
