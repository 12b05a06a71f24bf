package settings

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// Quota bounds how many bytes each user's jobs may hold.
type Quota struct {
	Maintainer store.Maintainer // the store's maintenance operations; nil if it has none
	Store      store.Store
	Settings   *Keeper
}

// With max_bytes_per_user = "auto", the quota of a user is the smaller of MaxAutoBytes and 1/autoDiskDivisor of the
// file system.
const (
	MaxAutoBytes    = 10 << 30
	autoDiskDivisor = 5
)

// MaxBytesPerUser returns the maximum number of bytes that the jobs of one user may hold, or 0 for unlimited.
func (q *Quota) MaxBytesPerUser() int64 {
	most := q.Settings.Current().MaxBytesPerUser
	if most >= 0 {
		return most
	}
	most = MaxAutoBytes
	if q.Maintainer != nil {
		if all := q.Maintainer.DiskCapacity(); all > 0 {
			most = min(most, all/autoDiskDivisor)
		}
	}
	return most
}

// NearQuotaBytes returns how many bytes a user may hold before upkeep removes inputs and outputs of the
// user's ended jobs. It is just below 90 % of the quota, but at least 1. 0 means that the quota is
// unlimited.
func (q *Quota) NearQuotaBytes() int64 {
	most := q.MaxBytesPerUser()
	if most == 0 {
		return 0
	}
	return max(1, most-most/10-1)
}

// maxFreeQuotaTries limits how often one request makes room. A further try is needed only if other requests have
// used the room in the meantime.
const maxFreeQuotaTries = 3

// RunWithinQuota executes a request that needs bytes of a user's quota. If the quota is used up, it removes
// inputs and outputs of the user's ended jobs and repeats the request. If another user makes the request,
// RunWithinQuota removes nothing.
func (q *Quota) RunWithinQuota(ctx context.Context, uid int, request func() error) error {
	err := request()
	for range maxFreeQuotaTries {
		var full *store.QuotaError
		if !errors.As(err, &full) || control.PeerFrom(ctx).UID != uid || !q.MakeRoomInQuota(ctx, uid, full) {
			return err
		}
		err = request()
	}
	return err
}

// MakeRoomInQuota removes outputs and inputs of a user's ended jobs until a rejected request fits in the quota. It
// reports whether the request now fits. If removing all of them would not be enough, it removes nothing.
func (q *Quota) MakeRoomInQuota(ctx context.Context, uid int, full *store.QuotaError) bool {
	keep := full.Limit - full.NeededBytes
	if keep < 0 {
		return false
	}
	need := full.UsedBytes - keep
	if removable, err := q.Store.RemovableBytes(ctx, uid, need); err != nil || removable < need {
		return false
	}
	for more := true; more; {
		var err error
		if more, err = q.Store.TrimUserData(ctx, uid, keep); err != nil {
			return false
		}
	}
	return q.Store.UserBytes(uid) <= keep
}

// NearQuota returns the users whose jobs use 90 % of their quota or more, highest use first.
func (q *Quota) NearQuota() []store.UserBytes {
	if q.MaxBytesPerUser() == 0 {
		return nil
	}
	return q.Store.UsersOverBytes(q.NearQuotaBytes())
}
