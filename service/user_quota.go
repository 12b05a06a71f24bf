package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// With max_bytes_per_user = "auto", the quota of a user is the smaller of autoBytes and 1/autoShare of the
// file system.
const (
	autoBytes = 10 << 30
	autoShare = 5
)

// maxBytesUser returns the maximum number of bytes that the jobs of one user may hold, or 0 for unlimited.
func (s *Service) maxBytesUser() int64 {
	most := s.config.Load().MaxBytesUser
	if most >= 0 {
		return most
	}
	most = autoBytes
	if s.files != nil {
		if all := s.files.Capacity(); all > 0 {
			most = min(most, all/autoShare)
		}
	}
	return most
}

// quotaThreshold returns how many bytes a user may hold before upkeep removes inputs and outputs of the
// user's ended jobs. It is just below 90 % of the quota, but at least 1. 0 means that the quota is
// unlimited.
func (s *Service) quotaThreshold() int64 {
	most := s.maxBytesUser()
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
func (s *Service) withRoom(ctx context.Context, uid int, request func() error) error {
	err := request()
	for range makeRoomTries {
		var full *store.QuotaError
		if !errors.As(err, &full) || control.PeerFrom(ctx).UID != uid || !s.makeRoom(ctx, uid, full) {
			return err
		}
		err = request()
	}
	return err
}

// makeRoom removes outputs and inputs of a user's ended jobs until a rejected request fits in the quota. It
// reports whether the request now fits. If removing all of them would not be enough, it removes nothing.
func (s *Service) makeRoom(ctx context.Context, uid int, full *store.QuotaError) bool {
	keep := full.Most - full.More
	if keep < 0 {
		return false
	}
	need := full.Used - keep
	if removable, err := s.store.RemovableBytes(ctx, uid, need); err != nil || removable < need {
		return false
	}
	for more := true; more; {
		var err error
		if more, err = s.store.TrimUser(ctx, uid, keep); err != nil {
			return false
		}
	}
	return s.store.UserBytes(uid) <= keep
}

// maxNearQuota is the maximum number of users near their quota that a status lists.
const maxNearQuota = 20

// nearQuota returns the users whose jobs use 90 % of their quota or more, highest use first.
func (s *Service) nearQuota() []store.UserBytes {
	if s.maxBytesUser() == 0 {
		return nil
	}
	return s.store.UsersOver(s.quotaThreshold())
}

// addUse adds to a status how many bytes the caller's jobs use. For an admin it also adds which users are
// near their quota.
func (s *Service) addUse(ctx context.Context, st *control.Status) {
	p := control.PeerFrom(ctx)
	st.UserBytes, st.MaxBytesUser = s.store.UserBytes(p.UID), s.maxBytesUser()
	if !p.Right.Covers(control.Admin) {
		return
	}
	near := slices.DeleteFunc(s.nearQuota(), func(u store.UserBytes) bool { return u.UID == p.UID })
	for _, u := range near[:min(len(near), maxNearQuota)] {
		st.NearQuota = append(st.NearQuota, control.UserBytes{UID: u.UID, User: s.userName(u.UID), Bytes: u.Bytes})
	}
}

// examineUsers reports the users whose jobs use nearly their whole quota.
func (s *Service) examineUsers() (list []store.Finding) {
	most := s.maxBytesUser()
	for _, u := range s.nearQuota() {
		list = append(list, store.Finding{Check: "users", Level: store.Warning,
			Message: fmt.Sprintf("the jobs of %s use %d of %d bytes; once all bytes are used, new jobs are refused", s.userName(u.UID), u.Bytes, most),
			Next:    "remove ended jobs (queuectl cleanup), or raise the setting max_bytes_per_user"})
	}
	return list
}
