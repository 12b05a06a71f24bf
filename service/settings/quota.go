package settings

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// UserQuota limits how many bytes the jobs of each user may use.
type UserQuota struct {
	Maintainer store.Maintainer // the store's maintenance operations; nil if it has none
	Store      store.Store
	Settings   *Keeper
}

// With max_bytes_per_user = "auto", the quota of each user is the lesser of two values: MaxAutoQuotaBytes, and the size
// of the file system divided by autoQuotaDiskDivisor.
const (
	MaxAutoQuotaBytes    = 10 << 30
	autoQuotaDiskDivisor = 5
)

// MaxBytesPerUser returns how many bytes the jobs of one user may use. 0 means unlimited.
func (q *UserQuota) MaxBytesPerUser() int64 {
	most := q.Settings.CurrentConfig().MaxBytesPerUser
	if most >= 0 {
		return most
	}
	most = MaxAutoQuotaBytes
	if q.Maintainer != nil {
		if all := q.Maintainer.DiskCapacityBytes(); all > 0 {
			most = min(most, all/autoQuotaDiskDivisor)
		}
	}
	return most
}

// NearQuotaThresholdBytes returns the number of bytes above which upkeep removes inputs and outputs of a user's ended
// jobs: just below 90 % of the quota, but at least 1. It returns 0 if the quota is unlimited.
func (q *UserQuota) NearQuotaThresholdBytes() int64 {
	most := q.MaxBytesPerUser()
	if most == 0 {
		return 0
	}
	return max(1, most-most/10-1)
}

// maxQuotaFreeingTries is the maximum number of times that one request frees space in a quota. One time is enough,
// unless other requests use the freed space first.
const maxQuotaFreeingTries = 3

// RunWithinQuota executes a request that uses bytes of the quota of the user with this uid. If the quota does not
// suffice, it removes inputs and outputs of that user's ended jobs and executes the request again. But if another user
// sent the request, it removes nothing.
func (q *UserQuota) RunWithinQuota(ctx context.Context, uid int, request func() error) error {
	err := request()
	for range maxQuotaFreeingTries {
		var quotaErr *store.QuotaError
		if !errors.As(err, &quotaErr) || control.PeerFrom(ctx).UID != uid || !q.MakeRoomInQuota(ctx, uid, quotaErr) {
			return err
		}
		err = request()
	}
	return err
}

// MakeRoomInQuota removes outputs and inputs of a user's ended jobs until a rejected request fits in the quota. It
// reports whether the request now fits. If the request would not fit even without all these outputs and inputs,
// MakeRoomInQuota removes nothing.
func (q *UserQuota) MakeRoomInQuota(ctx context.Context, uid int, quotaErr *store.QuotaError) bool {
	keep := quotaErr.LimitBytes - quotaErr.NeededBytes
	if keep < 0 {
		return false
	}
	need := quotaErr.UsedBytes - keep
	if removable, err := q.Store.RemovableUserBytes(ctx, uid, need); err != nil || removable < need {
		return false
	}
	for more := true; more; {
		var err error
		if more, err = q.Store.TrimUserData(ctx, uid, keep); err != nil {
			return false
		}
	}
	return q.Store.StoredBytesOfUser(uid) <= keep
}

// UsersNearQuota returns the users whose jobs use 90 % of their quota or more, sorted by used bytes, highest first.
func (q *UserQuota) UsersNearQuota() []store.UserStoredBytes {
	if q.MaxBytesPerUser() == 0 {
		return nil
	}
	return q.Store.UsersOverStoredBytes(q.NearQuotaThresholdBytes())
}
