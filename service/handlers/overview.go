package handlers

import (
	"context"
	"os"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/store"
)

// Hello implements control.API.
func (h *API) Hello(context.Context, control.HelloParams) (control.HelloResult, error) {
	return control.HelloResult{Version: h.Version, ProtocolVersions: control.VersionRange{Min: control.ProtocolVersion,
		Max: control.ProtocolVersion},
		SupportedMethods: control.MethodNames()}, nil
}

// Status implements control.API.
func (h *API) Status(ctx context.Context, _ control.NoParams) (control.Status, error) {
	// Read the number of the last event before the counts. A client that then reads all events after this one misses no
	// change.
	last, _ := h.Store.LastEventSeq()
	counts := h.Store.Counts()
	oldest, err := withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() (queue.UnixMillis, error) { return h.Store.OldestReadySince(ctx) })
	if err != nil && !h.NodeRegistry.IsStoreUnavailable(err) {
		return control.Status{}, err
	}
	st := control.Status{
		Jobs: map[string]int64{}, OldestReadySince: control.Time(oldest),
		JobsEverEnqueued: counts.JobsEverEnqueued, LastEventSeq: last,
		Storage: control.Storage{StateDir: h.Paths.StateDir, DatabaseBytes: counts.DatabaseBytes,
			OutputBytes: counts.OutputBytes},
		SettingsFile: h.Paths.SettingsFile, SocketPath: h.Paths.SocketPath,
		ServiceKind: string(h.Paths.ServiceKind()), PID: os.Getpid(), Version: h.Version,
		StartedAt: control.Time(h.StartedAt),
		Draining:  h.Pool.IsDraining(), RerankingInProgress: counts.IsRerankUnfinished,
		ThroughputPerMinute: h.Pool.ThroughputPerMinute(),
	}
	h.addQuotaUsage(ctx, &st)
	if h.Cluster != nil {
		st.Node, st.StoreLocation = h.NodeName, h.StoreLocation.String()
	}
	pausedQueues := h.QueueRules.PausedQueueNames(h.Store.Now())
	st.PausedQueues = pausedQueues[:min(len(pausedQueues), control.MaxListedPausedQueues)]
	if all := h.PauseOfAllJobs.Load(); all != nil {
		st.PausedAt, st.PausedBy = control.Time(all.SetAt), new(h.Owners.UserName(all.SetByUID))
	}
	if err == nil {
		ended, _ := h.NodeRegistry.OtherNodesThroughput(ctx)
		st.ThroughputPerMinute += ended
		st.Health = doctor.HealthText(h.FindQueueProblems(ctx))
	} else {
		st.StoreError = err.Error()
		st.Health = doctor.HealthText([]string{st.StoreError + "; the job counts may be outdated"}, true)
	}
	for _, state := range queue.States() {
		st.Jobs[state.String()] = counts.JobsByState[state]
	}
	busy := h.Pool.BusyWorkerCount()
	total := max(busy, h.Pool.WantedWorkerCount())
	st.Workers = control.WorkerSummary{Total: total, Busy: busy, Idle: total - busy}
	if h.ReadOnly {
		return offlineStatus(st), nil
	}
	return st, nil
}

// serviceNotRunningHealth is the health that the status shows if the service is not running.
const serviceNotRunningHealth = "degraded: the service is not running, so no jobs start"

// offlineStatus returns the status of a queue whose service is not running, without the values that only a running
// service knows. If all jobs have ended, the health is "ok", because no job waits for the service then.
func offlineStatus(status control.Status) control.Status {
	status.ServiceKind = ""
	status.PID, status.StartedAt, status.Workers, status.ThroughputPerMinute = 0, 0, control.WorkerSummary{}, 0
	status.Health = "ok"
	for _, s := range queue.States() {
		if !s.HasEnded() && status.Jobs[s.String()] > 0 {
			status.Health = serviceNotRunningHealth
		}
	}
	if n := status.Jobs[queue.Processing.String()]; n > 0 {
		status.Health += "; jobs shown as running were running when the service stopped"
	}
	return status
}

// maxListedUsersNearQuota is the maximum number of users that a status lists because their jobs have used most of their
// quota of bytes.
const maxListedUsersNearQuota = 20

// addQuotaUsage adds to a status how many bytes the caller's jobs use, and the quota of bytes. For an admin, it also
// adds the users whose jobs have used most of their quota.
func (h *API) addQuotaUsage(ctx context.Context, status *control.Status) {
	p := control.PeerFrom(ctx)
	status.CallerStoredBytes, status.MaxBytesPerUser = h.Store.StoredBytesOfUser(p.UID), h.UserQuota.MaxBytesPerUser()
	if !p.Right.Covers(control.RightAdmin) {
		return
	}
	near := slices.DeleteFunc(h.UserQuota.UsersNearQuota(), func(u store.UserStoredBytes) bool { return u.UID == p.UID })
	for _, u := range near[:min(len(near), maxListedUsersNearQuota)] {
		status.UsersNearQuota = append(status.UsersNearQuota, control.UserBytes{UID: u.UID, User: h.Owners.UserName(u.UID),
			StoredBytes: u.StoredBytes})
	}
}
