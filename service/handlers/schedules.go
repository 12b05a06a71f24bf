package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/schedule"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/upkeep"
)

const (
	// maxShownFutureOccurrences is how many future occurrences (planned starts) of a schedule the method schedule.show
	// returns. maxShownPastOccurrences is the maximum number of past occurrences that it returns.
	maxShownFutureOccurrences = 5
	maxShownPastOccurrences   = 20
	// maxScheduleChangeTries is the maximum number of tries to change a schedule while other requests keep changing it.
	maxScheduleChangeTries = 10
)

// ScheduleAdd implements control.API.
func (h *API) AddSchedule(ctx context.Context, p control.ScheduleAddParams) (result control.ScheduleDetail, err error) {
	p.JobSpec = *p.JobSpec.WithoutTraceVariables() // the caller's trace ends long before a job starts
	want, unenforcedLimits, err := h.checkScheduleRequest(ctx, &p)
	if err != nil {
		return result, err
	}
	existed := false
	err = retryIfScheduleChanged(func() error {
		sched, _, err := h.Store.GetSchedule(ctx, p.Name)
		if err != nil && !errors.Is(err, queue.ErrNotFound) {
			return err
		}
		if sched.Generation != 0 {
			if existed, err = h.checkMayReplaceSchedule(ctx, &sched, &want, p.ReplaceExisting); existed || err != nil {
				return err
			}
		}
		put := want
		if sched.PausedAt != 0 { // keep the pause when a schedule is replaced
			put.PausedAt, put.PausedByUID, put.PauseOrDamageNote, put.NextOccurrenceAt, put.NextDueAt = sched.PausedAt,
				sched.PausedByUID, sched.PauseOrDamageNote, 0, 0
		}
		return h.UserQuota.RunWithinQuota(ctx, put.OwnerUID, func() error {
			_, err := h.Store.PutSchedule(ctx, store.SchedulePutRequest{
				Schedule: put, ReplacedGeneration: sched.Generation, RequestedByUID: want.OwnerUID,
				MaxBytesPerUser: h.UserQuota.MaxBytesPerUser(),
			})
			return err
		})
	})
	if err != nil {
		return result, err
	}
	return h.showSchedule(ctx, p.Name, func(d *control.ScheduleDetail) {
		d.AlreadyExisted, d.UnenforcedLimits, d.Notes = existed, unenforcedLimits, h.StartAtBootNotes()
	})
}

// retryIfScheduleChanged calls change, a function that changes a schedule. If another request has changed the schedule
// since change read it, retryIfScheduleChanged repeats the call. It makes at most maxScheduleChangeTries calls.
func retryIfScheduleChanged(change func() error) (err error) {
	for range maxScheduleChangeTries {
		if err = change(); !errors.Is(err, store.ErrScheduleChanged) {
			return err
		}
	}
	return queue.Errorf(queue.CodeUnavailable, "other requests keep changing the schedule; try again")
}

// checkScheduleRequest checks a requested schedule, fills in its defaults and returns it. It also returns the names of
// the limits of its jobs that this machine does not enforce.
func (h *API) checkScheduleRequest(ctx context.Context, p *control.ScheduleAddParams) (requested store.Schedule,
	unenforcedLimits []string, err error) {
	peer := control.PeerFrom(ctx)
	r, notes, err := h.buildStoreRequest(ctx, enqueueRequest{specs: []queue.Spec{p.JobSpec},
		requireLimits: p.RequireEnforceableLimits})
	if err != nil {
		return requested, nil, control.RenameJitterInError(err)
	}
	spec, err := p.JobSpec.MarshalJSON()
	if err != nil {
		return requested, nil, err
	}
	now := h.Store.Now()
	requested = store.Schedule{
		Name: p.Name, OwnerUID: peer.UID, CronLine: strings.Join(strings.Fields(p.Cron), " "), TimeZone: p.TimeZone,
		MaxJitter: time.Duration(p.Jitter), CatchUp: store.CatchUpPolicy(p.CatchUpPolicy),
		Overlap:  store.OverlapPolicy(p.OverlapPolicy),
		SpecJSON: string(spec), JobDraft: r.Drafts[0], CreatedAt: now, LastOccurrenceAt: now, LastBootID: currentBootID(),
	}
	err = fillDefaultsAndCheckSchedule(&requested)
	return requested, notes.unenforcedLimits, err
}

// fillDefaultsAndCheckSchedule fills in defaults and computes the next occurrence. It returns an error if the cron
// line, the time zone or the jitter is invalid.
func fillDefaultsAndCheckSchedule(s *store.Schedule) error {
	s.TimeZone = cmp.Or(s.TimeZone, zone.LocalZoneName)
	s.CatchUp = cmp.Or(s.CatchUp, store.CatchUpNone)
	s.Overlap = cmp.Or(s.Overlap, store.OverlapSkip)
	cronLine, err := schedule.ParseCronLine(s.CronLine)
	if err != nil {
		return err
	}
	location, err := zone.Load(s.TimeZone)
	if err != nil {
		return queue.InvalidFieldError("tz", "%v", err)
	}
	gap := cronLine.ShortestInterval(s.LastOccurrenceAt.Time(), s.CreatedAt.Time(), location)
	s.RunsAtBoot = cronLine.RunsAtBoot()
	switch {
	case s.MaxJitter != 0 && s.RunsAtBoot:
		return queue.InvalidFieldError("jitter", "cannot be combined with @reboot; put a sleep before the command instead")
	case s.MaxJitter > 0 && gap > 0 && s.MaxJitter > gap:
		return queue.InvalidFieldError("jitter", "%s is longer than the %s between two occurrences; choose a shorter jitter",
			queue.FormatDuration(s.MaxJitter), queue.FormatDuration(gap))
	case s.RunsAtBoot && s.LastBootID == "":
		return queue.InvalidFieldError("cron",
			"@reboot is not supported on this system, because its boots have no identifier")
	}
	s.NextOccurrenceAt, s.NextDueAt = nextOccurrence(s, &cronLine, location, s.LastOccurrenceAt)
	return nil
}

// nextOccurrence returns the next occurrence of a schedule after the given time. The job of the occurrence is
// due at dueAt, which is plannedAt plus a delay of at most s.Jitter. Both times are 0 if no occurrence
// follows.
func nextOccurrence(s *store.Schedule, cronLine *schedule.CronLine, location *time.Location,
	afterTime queue.UnixMillis) (
	plannedAt, dueAt queue.UnixMillis) {
	next := cronLine.NextOccurrence(afterTime.Time(), s.CreatedAt.Time(), location)
	if next.IsZero() {
		return 0, 0
	}
	return queue.UnixMillisOf(next), queue.UnixMillisOf(next.Add(schedule.JitterDelay(s.Name, next, s.MaxJitter)))
}

// checkMayReplaceSchedule checks whether the requested schedule may replace the existing one. isEqual is true if the
// two schedules are the same, so that nothing needs to be replaced. Otherwise checkMayReplaceSchedule returns an error
// if replace is false, or if the caller lacks the right. Only admins may change the command of another user's schedule.
func (h *API) checkMayReplaceSchedule(ctx context.Context, existing, requested *store.Schedule, replace bool) (
	isEqual bool, err error) {
	peer := control.PeerFrom(ctx)
	j := jobForRightCheck(existing)
	isOwner := h.Guard.PeerOwnsJob(&peer, &j)
	differs := differingScheduleFields(existing, requested)
	switch {
	case isOwner && len(differs) == 0 && !existing.IsDamaged:
		return true, nil
	case !replace && isOwner:
		return false, &queue.Error{Code: queue.CodeExists, Field: "name",
			Message: existing.Name + " already exists with a different " + strings.Join(differs, ", ") +
				"; replace it with --replace"}
	case !replace:
		return false, &queue.Error{Code: queue.CodeExists, Field: "name",
			Message: existing.Name + " already exists and belongs to another user; choose another name"}
	}
	return false, h.Guard.CheckMayActOnObject(&peer, "schedule.add", "schedule", &j)
}

// differingScheduleFields returns the names of the fields in which two schedules differ. The fields of the schedule and
// those of its jobs are compared separately, because both have a field "jitter".
func differingScheduleFields(a, b *store.Schedule) (names []string) {
	for _, part := range []struct {
		name  string
		equal bool
	}{
		{"cron", a.CronLine == b.CronLine}, {"tz", a.TimeZone == b.TimeZone}, {"jitter", a.MaxJitter == b.MaxJitter},
		{"catch_up", a.CatchUp == b.CatchUp}, {"overlap", a.Overlap == b.Overlap},
	} {
		if !part.equal {
			names = append(names, part.name)
		}
	}
	one, other := scheduleSpecFields(a), scheduleSpecFields(b)
	all := maps.Clone(one)
	maps.Copy(all, other)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(one[name], other[name]) {
			names = append(names, name)
		}
	}
	return names
}

// scheduleSpecFields returns the fields that the user has set in the spec of the schedule's jobs.
func scheduleSpecFields(s *store.Schedule) map[string]any {
	var spec queue.Spec
	if s.SpecJSON == "" || spec.UnmarshalJSON([]byte(s.SpecJSON)) != nil {
		return map[string]any{}
	}
	return spec.GivenFields()
}

// jobForRightCheck returns a job with the owner, user and command of a schedule. What a peer may do with the schedule
// is checked with this job.
func jobForRightCheck(s *store.Schedule) queue.Job {
	j := s.JobDraft
	j.ID, j.UID = s.Name, s.OwnerUID
	return j
}

// ScheduleList implements control.API.
func (h *API) ListSchedules(ctx context.Context, p control.ScheduleListParams) (control.SchedulePage, error) {
	peer := control.PeerFrom(ctx)
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobsRead, func() (control.SchedulePage, error) {
		out := control.SchedulePage{Schedules: []control.Schedule{}}
		list, err := h.Store.ListSchedules(ctx, p.Cursor, store.MaxSchedulesPerPage)
		if err != nil {
			return out, err
		}
		for i := range list {
			out.Schedules = append(out.Schedules, h.newScheduleViewFor(&peer, &list[i]))
		}
		if n := len(list); n > 0 {
			more, err := h.Store.ListSchedules(ctx, list[n-1].Name, 1)
			if err != nil {
				return out, err
			}
			if len(more) > 0 {
				out.Next = &list[n-1].Name
			}
		}
		return out, nil
	})
}

// newScheduleView converts a schedule to its form in a reply, without its past occurrences.
func (h *API) newScheduleView(sched *store.Schedule) control.Schedule {
	j := jobForRightCheck(sched)
	user, _ := h.Guard.UserAndOwnerNames(&j)
	v := control.Schedule{
		Name: sched.Name, Cron: sched.CronLine, TimeZone: sched.TimeZone, Jitter: control.Duration(sched.MaxJitter),
		CatchUp: string(sched.CatchUp), Overlap: string(sched.Overlap),
		Paused: sched.PausedAt != 0, PausedAt: control.Time(sched.PausedAt), PauseReason: sched.PauseOrDamageNote,
		NextAt: control.Time(sched.NextOccurrenceAt), User: user, CreatedAt: control.Time(sched.CreatedAt),
		Command: queue.CommandText(sched.JobDraft.Command, sched.JobDraft.Argv), Argv: sched.JobDraft.Argv,
	}
	if sched.PausedByUID != nil {
		v.PausedBy = new(h.Owners.UserName(*sched.PausedByUID))
	}
	return v
}

// ScheduleShow implements control.API.
func (h *API) ShowSchedule(ctx context.Context, p control.ScheduleNameParams) (control.ScheduleDetail, error) {
	return h.showSchedule(ctx, p.Name, func(*control.ScheduleDetail) {})
}

// showSchedule returns the reply that shows a schedule. The callback addDetails may add details to the reply.
func (h *API) showSchedule(ctx context.Context, name string,
	addDetails func(*control.ScheduleDetail)) (control.ScheduleDetail, error) {
	peer := control.PeerFrom(ctx)
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassOneJobRead, func() (control.ScheduleDetail, error) {
		sched, runs, err := h.Store.GetSchedule(ctx, name)
		if err != nil {
			return control.ScheduleDetail{}, err
		}
		d := control.ScheduleDetail{Schedule: h.newScheduleView(&sched), NextStarts: h.nextOccurrenceTimes(&sched),
			OccurrenceRecords: []control.OccurrenceRecord{}, JobSpec: scheduleSpecFields(&sched)}
		for i := range runs[:min(len(runs), maxShownPastOccurrences)] {
			run, err := h.newOccurrenceView(ctx, &runs[i])
			if err != nil {
				return d, err
			}
			d.OccurrenceRecords = append(d.OccurrenceRecords, run)
		}
		j := jobForRightCheck(&sched)
		visibility := h.Guard.JobVisibilityFor(&peer, &j)
		if visibility == access.VisibleAll && !h.Guard.PeerOwnsJob(&peer, &j) {
			// Leave out the environment. A caller who wants to see another user's environment must show a job instead, because
			// that is recorded in the audit log.
			visibility = access.VisibleWithoutEnv
		}
		access.HideScheduleDetailParts(&d, visibility)
		addDetails(&d)
		return d, nil
	})
}

// nextOccurrenceTimes returns the times of the next occurrences of a schedule. A paused schedule has none.
func (h *API) nextOccurrenceTimes(sched *store.Schedule) []control.Time {
	list := []control.Time{}
	line, err := schedule.ParseCronLine(sched.CronLine)
	zone, err2 := zone.Load(sched.TimeZone)
	if sched.PausedAt != 0 || err != nil || err2 != nil {
		return list
	}
	for at := sched.NextOccurrenceAt; at != 0 && len(list) < maxShownFutureOccurrences; at,
		_ = nextOccurrence(sched, &line, zone, at) {
		list = append(list, control.Time(at))
	}
	return list
}

// newOccurrenceView converts a past occurrence and the state of its job to their form in a reply.
func (h *API) newOccurrenceView(ctx context.Context, r *store.OccurrenceRecord) (control.OccurrenceRecord, error) {
	v := control.OccurrenceRecord{OccurrenceAt: control.Time(r.OccurrenceAt), RecordedAt: control.Time(r.RecordedAt),
		Outcome: string(r.Outcome), OutcomeNote: r.OutcomeNote}
	if r.RequestedByUID != nil {
		v.RequestedBy = new(h.Owners.UserName(*r.RequestedByUID))
	}
	if r.JobID == "" {
		return v, nil
	}
	v.ID = &r.JobID
	j, err := h.Store.GetJob(ctx, r.JobID)
	switch {
	case errors.Is(err, queue.ErrNotFound), err == nil && j.Seq != r.JobSeq:
	case err != nil:
		return v, err
	default:
		v.State = new(j.State.String())
	}
	return v, nil
}

// changeSchedule reads a schedule, calls change to change it, and returns the changed schedule. It returns an error if
// the caller may not use the method on that schedule.
func (h *API) changeSchedule(ctx context.Context, method, name string,
	change func(sched *store.Schedule, uid int) error) (control.Schedule, error) {
	peer := control.PeerFrom(ctx)
	var sched store.Schedule
	err := retryIfScheduleChanged(func() (err error) {
		if sched, _, err = h.Store.GetSchedule(ctx, name); err != nil {
			return err
		}
		j := jobForRightCheck(&sched)
		if err = h.Guard.CheckMayActOnObject(&peer, method, "schedule", &j); err != nil {
			return err
		}
		return change(&sched, peer.UID)
	})
	if err != nil || method == "schedule.rm" {
		return h.newScheduleViewFor(&peer, &sched), err
	}
	if sched, _, err = h.Store.GetSchedule(ctx, name); err != nil {
		return control.Schedule{}, err
	}
	return h.newScheduleViewFor(&peer, &sched), nil
}

// newScheduleViewFor returns a schedule as the peer may see it.
func (h *API) newScheduleViewFor(p *control.Peer, sched *store.Schedule) control.Schedule {
	j := jobForRightCheck(sched)
	v := h.newScheduleView(sched)
	access.HideScheduleParts(&v, h.Guard.JobVisibilityFor(p, &j))
	return v
}

// ScheduleRemove implements control.API.
func (h *API) RemoveSchedule(ctx context.Context, p control.ScheduleNameParams) (control.Schedule, error) {
	return h.changeSchedule(ctx, "schedule.rm", p.Name, func(sched *store.Schedule, uid int) error {
		return h.Store.RemoveSchedule(ctx, sched.Name, sched.Generation, uid)
	})
}

// SchedulePause implements control.API.
func (h *API) PauseSchedule(ctx context.Context, p control.ScheduleNameParams) (control.Schedule, error) {
	return h.changeSchedule(ctx, "schedule.pause", p.Name, func(sched *store.Schedule, uid int) error {
		return h.Store.PauseSchedule(ctx, store.SchedulePauseRequest{ScheduleName: sched.Name, Generation: sched.Generation,
			RequestedByUID: &uid, Paused: true})
	})
}

// ScheduleResume implements control.API. Occurrences during the pause do not count as missed. So no jobs are started
// for them, even if the schedule catches up on missed occurrences.
func (h *API) ResumeSchedule(ctx context.Context, p control.ScheduleNameParams) (control.Schedule, error) {
	return h.changeSchedule(ctx, "schedule.resume", p.Name, func(sched *store.Schedule, uid int) error {
		line, err := schedule.ParseCronLine(sched.CronLine)
		location, err2 := zone.Load(sched.TimeZone)
		if err2 != nil && sched.TimeZone != zone.LocalZoneName {
			err2 = fmt.Errorf("this machine no longer has the time zone %q; choose another time zone", sched.TimeZone)
		}
		if err = errors.Join(err, err2); err != nil || sched.OwnerUID < 0 || sched.IsDamaged {
			return queue.Errorf(queue.CodeWrongState, "schedule %s cannot resume: %s", sched.Name,
				cmp.Or(sched.PauseOrDamageNote, fmt.Sprintf("%v; add the schedule again with --replace", err)))
		}
		resume := store.SchedulePauseRequest{ScheduleName: sched.Name, Generation: sched.Generation, RequestedByUID: &uid,
			LastOccurrenceAt: max(sched.LastOccurrenceAt, h.Store.Now()), LastBootID: currentBootID()}
		resume.NextOccurrenceAt, resume.NextDueAt = nextOccurrence(sched, &line, location, resume.LastOccurrenceAt)
		return h.Store.PauseSchedule(ctx, resume)
	})
}

// RunScheduleNow implements control.API.
func (h *API) RunScheduleNow(ctx context.Context, p control.ScheduleNameParams) (control.EnqueueResult, error) {
	var result control.EnqueueResult
	_, err := h.changeSchedule(ctx, "schedule.run", p.Name, func(sched *store.Schedule, uid int) error {
		c := h.Settings.CurrentConfig()
		now := h.Store.Now()
		f := store.OccurrenceRequest{
			ScheduleName: sched.Name, Generation: sched.Generation, RequestedByUID: &uid,
			OccurrencesToRun: []queue.UnixMillis{now},
			OwnerName:        h.Owners.UserNameOrEmpty(sched.OwnerUID),
			MaxPendingJobs:   c.MaxPending, MaxPendingJobsPerUser: c.MaxPendingPerUser,
			MaxBytesPerUser: h.UserQuota.MaxBytesPerUser(),
			CandidateJobID: func(occurrence queue.UnixMillis, n int) string {
				return schedule.CandidateJobID(sched.Name, occurrence.Time(), n)
			},
		}
		if sched.OwnerUID < 0 || sched.IsDamaged {
			return queue.Errorf(queue.CodeWrongState, "schedule %s cannot run: %s", sched.Name, sched.PauseOrDamageNote)
		}
		for {
			var runResult store.OccurrenceResult
			err := h.UserQuota.RunWithinQuota(ctx, sched.OwnerUID, func() (err error) {
				runResult, err = h.Store.RunOccurrences(ctx, f)
				return err
			})
			switch {
			case err != nil:
				return err
			case runResult.RequestCarriedOut:
				result = control.EnqueueResult{JobID: runResult.Records[0].JobID, JobSeq: runResult.Records[0].JobSeq}
				return nil
			case len(runResult.JobSeqsToCancel) == 0:
				return store.ErrScheduleChanged
			}
			for _, seq := range runResult.JobSeqsToCancel {
				if err := h.cancelLeasedJob(ctx, seq, uid); err != nil {
					return err
				}
			}
			select { // wait a moment, because the next result still contains a job that is being ended
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return result, err
}

// currentBootID returns the identity of the machine's current boot, or "" if the system has none.
func currentBootID() string {
	id, _ := process.BootID()
	return id
}

// RecurringJobConfig returns the parts that package upkeep needs to start the jobs of schedules.
func (h *API) RecurringJobConfig() upkeep.RecurringJobConfig {
	return upkeep.RecurringJobConfig{
		BootID: currentBootID(),
		UserLimits: func(uid int) (owner string, maxPending, maxPendingOfUser, maxBytesOfUser int64) {
			c := h.Settings.CurrentConfig()
			return h.Owners.UserNameOrEmpty(uid), c.MaxPending, c.MaxPendingPerUser, h.UserQuota.MaxBytesPerUser()
		},
		MakeRoomInQuota: h.UserQuota.MakeRoomInQuota,
		EndJob:          h.cancelLeasedJob,
	}
}

// cancelLeasedJob cancels a job of a schedule while the job is leased, and waits for its end. uid is the user in
// whose name the job is cancelled.
func (h *API) cancelLeasedJob(ctx context.Context, seq int64, uid int) error {
	if held, err := h.Pool.CancelJob(ctx, seq, uid); held || err != nil {
		return err
	}
	found, err := h.Store.ListJobRefs(ctx, store.JobFilter{BeforeSeq: seq + 1, Limit: 1})
	if err != nil || len(found.Refs) == 0 || found.Refs[0].Seq != seq {
		return err
	}
	request := cluster.Request{APIMethod: "cancel", Params: control.JobSelection{ID: control.JobID(found.Refs[0].ID)},
		AllowedStates: []queue.State{queue.Processing}, AwaitsAttemptEnd: true}
	ctx = withServiceRights(control.WithPeer(ctx, control.Peer{UID: uid}))
	var v control.BulkResult
	_, err = h.JobRouter.ForwardJobRequest(ctx, seq, request, &v)
	return firstUnexpectedError(&v, err)
}
