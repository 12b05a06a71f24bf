package handlers

import (
	"context"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/upkeep"
)

// bootID returns the identity of the machine's current boot, or "" if the system has none.
func bootID() string {
	id, err := process.BootID()
	if err != nil {
		return ""
	}
	return id
}

// Recurring returns the functions and values with which package upkeep starts recurring jobs.
func (h *Schedules) Recurring() upkeep.RecurringJobs {
	return upkeep.RecurringJobs{
		Boot: bootID(),
		Limits: func(uid int) (owner string, most, mostUser, bytesUser int64) {
			c := h.settings.Current()
			return h.owners.OwnerName(uid), c.MaxPending, c.MaxPendingUser, h.quota.MaxBytesUser()
		},
		MakeRoom: h.quota.MakeRoom,
		End:      h.endLeased,
	}
}

// endLeased ends a leased job of a schedule and waits for its end. uid is the job's owner.
func (h *Schedules) endLeased(ctx context.Context, seq int64, uid int) error {
	if held, err := h.pool.Cancel(ctx, seq, uid); held || err != nil {
		return err
	}
	found, err := h.store.Select(ctx, store.Filter{BeforeSeq: seq + 1, Limit: 1})
	if err != nil || len(found.Refs) == 0 || found.Refs[0].Seq != seq {
		return err
	}
	request := cluster.Request{Method: "cancel", Params: control.Selection{ID: control.Name(found.Refs[0].ID)},
		States: []queue.State{queue.Processing}, EndsAttempt: true}
	ctx = asService(control.WithPeer(ctx, control.Peer{UID: uid}))
	var v control.BulkResult
	_, err = h.router.Forward(ctx, seq, request, &v)
	return exceptState(&v, err)
}
