package service

import (
	"context"
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
)

// With max_bytes_per_user = "auto" the bound is autoBytes, or 1/autoShare of the file system if that is less.
const (
	autoBytes = 10 << 30
	autoShare = 5
)

// maxBytesUser is how many bytes the jobs of one user may hold, 0 for any number.
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

// maxNearQuota is how many users near their quota a status lists.
const maxNearQuota = 20

// nearQuota lists the users whose jobs use 90 % of what they may, or more: those that use most first.
func (s *Service) nearQuota() []store.UserBytes {
	most := s.maxBytesUser()
	if most == 0 {
		return nil
	}
	return s.store.UsersOver(most - most/10 - 1)
}

// addUse adds to a status how many bytes the caller's jobs use, and for an admin which users are near their quota.
func (s *Service) addUse(ctx context.Context, st *control.Status) {
	p := control.PeerFrom(ctx)
	st.UserBytes, st.MaxBytesUser = s.store.UserBytes(p.UID), s.maxBytesUser()
	if !p.Right.Covers(control.Admin) {
		return
	}
	near := s.nearQuota()
	for _, u := range near[:min(len(near), maxNearQuota)] {
		st.NearQuota = append(st.NearQuota, control.UserBytes{UID: u.UID, User: s.userName(u.UID), Bytes: u.Bytes})
	}
}

// examineUsers names the users whose jobs use nearly as many bytes as they may.
func (s *Service) examineUsers() (list []store.Finding) {
	most := s.maxBytesUser()
	for _, u := range s.nearQuota() {
		list = append(list, store.Finding{Check: "users", Level: store.Warning,
			Message: fmt.Sprintf("the jobs of %s use %d of %d bytes; new ones are refused once these are used up", s.userName(u.UID), u.Bytes, most),
			Next:    "remove ended jobs (queuectl cleanup), or raise max_bytes_per_user"})
	}
	return list
}
