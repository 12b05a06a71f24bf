package service

import (
	"context"
	"fmt"

	"github.com/queuectl/queuectl/queue"
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

// examineUsers names the users whose jobs hold nearly as many bytes as they may.
func (s *Service) examineUsers(ctx context.Context) (list []store.Finding) {
	most := s.maxBytesUser()
	if most == 0 {
		return nil
	}
	over, err := s.store.UsersOver(ctx, most/10*9)
	if err != nil {
		return nil // what is wrong with the store is found by others
	}
	for _, uid := range over {
		n, err := s.store.UserBytes(ctx, uid)
		if err != nil {
			return list
		}
		list = append(list, store.Finding{Check: "users", Level: store.Warning,
			Message: fmt.Sprintf("the jobs of %s hold %d MiB; at %s new ones are refused", s.userName(uid), n>>20, queue.FormatSize(most)),
			Next:    "remove ended jobs (queuectl cleanup), or raise max_bytes_per_user"})
	}
	return list
}
