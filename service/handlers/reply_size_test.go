package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/reasons"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// sixfoldJSONText returns a text of n bytes that takes 6*n bytes in JSON.
func sixfoldJSONText(textBytes int) string { return strings.Repeat("\x01", textBytes) }

// newLargestJob returns a job that takes the maximum space in a reply.
func newLargestJob(id string) queue.Job {
	j := draftWithID(id + strings.Repeat("x", 128-len(id)))
	codes := make([]int, queue.MaxExitCodes)
	for i := range codes {
		codes[i] = 1<<32 - 1
	}
	j.Error, j.Reason = sixfoldJSONText(queue.MaxErrorBytes), queue.ReasonNotRunnable
	j.ExecutionSettings = queue.ExecutionSettings{
		Argv: []string{sixfoldJSONText(queue.MaxCommandBytes), sixfoldJSONText(queue.MaxCommandBytes),
			sixfoldJSONText(queue.MaxCommandBytes), sixfoldJSONText(queue.MaxCommandBytes)},
		Stdin: sixfoldJSONText(queue.MaxStdinBytes), Cwd: sixfoldJSONText(4096), RunAsUser: sixfoldJSONText(256),
		Shell:            sixfoldJSONText(4096),
		OutputLimitBytes: queue.MaxOutputLimitBytes, RunAsUID: new(61377),
		SpecialExitCodes: queue.SpecialExitCodes{OkCodes: codes, NoRetryCodes: codes, DeferCodes: codes},
		OnLost:           queue.OnLostRetry,
		Labels:           map[string]string{},
	}
	for i := range queue.MaxLabels {
		name := fmt.Sprint(i)
		j.Labels[name] = sixfoldJSONText(queue.MaxLabelBytes - len(name))
	}
	return j
}

// putLargestSchedules stores one schedule for each of the jobs. Each schedule takes the maximum space in a reply.
// It returns the schedules as replies show them.
func (s *testAPI) putLargestSchedules(t *testing.T, ctx context.Context, jobs ...queue.Job) (schedules []any) {
	t.Helper()
	for i, j := range jobs {
		spec, err := queue.SpecOfJob(&j).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			one := store.Schedule{Name: fmt.Sprint(name, i), CronLine: strings.Repeat("0,", 500) + "0 * * * *", TimeZone: "UTC",
				SpecJSON: string(spec), JobDraft: j}
			sched, _, _ := s.Store.GetSchedule(ctx, one.Name)
			sched, err = s.Store.PutSchedule(ctx, store.SchedulePutRequest{Schedule: one, ReplacedGeneration: sched.Generation})
			if err != nil {
				t.Fatal(err)
			}
			for range maxShownPastOccurrences {
				f := store.OccurrenceRequest{ScheduleName: sched.Name, Generation: sched.Generation,
					OccurrencesToRun: []queue.UnixMillis{1}, MaxPendingJobs: 1,
					CandidateJobID: func(queue.UnixMillis, int) string { return strings.Repeat("x", 128) }}
				if _, err := s.Store.RunOccurrences(ctx, f); err != nil {
					t.Fatal(err)
				}
			}
		}
		d, err := s.ShowSchedule(ctx, control.ScheduleNameParams{Name: fmt.Sprint("a", i)})
		if err != nil || len(d.OccurrenceRecords) != maxShownPastOccurrences {
			t.Fatalf("%d runs, %v", len(d.OccurrenceRecords), err)
		}
		for k := range d.OccurrenceRecords {
			d.OccurrenceRecords[k].OutcomeNote = queue.ClipJSON(sixfoldJSONText(queue.MaxErrorBytes), queue.MaxErrorBytes)
		}
		schedules = append(schedules, d)
	}
	return schedules
}

// retryOnTimeout repeats a read that times out, as may happen on a busy machine under the race detector.
func retryOnTimeout[T any](read func() (T, error)) (result T, err error) {
	for range 30 {
		if result, err = read(); !errors.Is(err, queue.ErrUnavailable) {
			break
		}
	}
	return result, err
}

// Every reply and every notification fits in one line of the protocol, whatever is stored and requested.
func TestRepliesFitInOneProtocolLine(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	s := newSQLiteTestAPI(t)
	admin := contextAsPeer(t, 0, control.RightAdmin)
	s.enqueueJobs(t, newLargestJob("first"))
	for range 20 {
		s.endJobs(t, s.claimJobs(t, 1), queue.Pending,
			queue.Attempt{Error: sixfoldJSONText(queue.MaxErrorBytes), Worker: sixfoldJSONText(64), Node: sixfoldJSONText(64)})
	}
	id := newLargestJob("first").ID
	largestJob, err := s.Store.GetWithEnvAndStdin(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	largestJob.Error, largestJob.State, largestJob.WorkerID = sixfoldJSONText(queue.MaxErrorBytes), queue.Processing,
		sixfoldJSONText(64)
	env := largestJob
	env.Command, env.Argv, env.Env = sixfoldJSONText(queue.MaxCommandBytes), nil, nil
	for i := range 4 {
		env.Env = append(env.Env, fmt.Sprint(i)+"="+sixfoldJSONText(queue.MaxCommandBytes-2))
	}

	moreJobs := draftsWithPrefix("j", store.MaxPageRows)
	for i := range moreJobs {
		moreJobs[i].Command = sixfoldJSONText(store.MaxPageTextBytes/6/store.MaxPageRows - 10)
	}
	moreJobs[store.MaxPageRows-1] = newLargestJob("last")
	s.enqueueJobs(t, moreJobs...)

	names := make([]string, control.MaxJobIDs)
	for i := range names {
		names[i] = strings.Repeat("x", 128)
	}
	refused := make([]control.Refusal, control.MaxJobIDs)
	for i := range refused {
		refused[i] = control.Refusal{JobID: names[0], Code: queue.CodeOutcomeUnknown,
			Field:   queue.ClipForMessage(sixfoldJSONText(100)),
			Message: queue.ClipJSON(sixfoldJSONText(queue.MaxErrorBytes), maxJobErrorBytes)}
	}
	verdict := func() []any {
		return []any{control.BulkResult{ChangedJobIDs: names}, control.BulkResult{Refusals: refused}}
	}
	removed := func() []any { return []any{control.RemovalCount{RemovedJobs: 1 << 62, JobsToRemove: 1 << 62}} }
	count := func() []any { return []any{control.WorkerCount{Workers: worker.MaxWorkers}} }
	value := control.ConfigValue{SettingName: sixfoldJSONText(64), Value: sixfoldJSONText(control.MaxSettingValueBytes),
		Origin: "environment",
		Hint:   sixfoldJSONText(queue.MaxErrorBytes)}

	queues := func() []any {
		var list control.QueueList
		for range control.MaxQueuesPerPage {
			list.Queues = append(list.Queues, control.QueueView{Queue: strings.Repeat("x", queue.MaxQueueNameBytes),
				JobDefaults: json.RawMessage(`{"labels":"` + strings.Repeat("x", control.MaxQueueDefaultsBytes) + `"}`),
				PausedBy:    new(sixfoldJSONText(256)), PauseReason: new(sixfoldJSONText(256))})
		}
		return []any{list}
	}
	largestSchedules := sync.OnceValue(func() []any { return s.putLargestSchedules(t, admin, largestJob, env) })
	schedules := func() (all []any) {
		for _, j := range []queue.Job{largestJob, env} {
			all = append(all, s.newScheduleView(&store.Schedule{Name: sixfoldJSONText(store.MaxScheduleNameBytes),
				CronLine: sixfoldJSONText(1024), TimeZone: sixfoldJSONText(256),
				PauseOrDamageNote: sixfoldJSONText(queue.MaxErrorBytes), JobDraft: j}))
		}
		return all
	}
	node := control.NodeView{Name: strings.Repeat("x", 128), State: "drained", Version: sixfoldJSONText(256),
		Labels: map[string]string{}, Resources: map[string]int{}}
	for i := range 64 { // the settings can define at most 64 of each
		node.Labels[fmt.Sprint(i)] = strings.Repeat("x", 126)
		node.Resources[strings.Repeat("x", 126)+fmt.Sprint(i)] = 1 << 30
	}
	answers := map[string]func() []any{
		"hello": func() []any { h, _ := s.Hello(admin, control.HelloParams{}); return []any{h} },
		"whoami": func() []any {
			w := control.WhoamiResult{User: sixfoldJSONText(256), Group: sixfoldJSONText(256),
				RunAsSetting: sixfoldJSONText(4096),
				JobsRunAs:    sixfoldJSONText(256), Advice: sixfoldJSONText(8192)}
			for i := range maxListedPeerGroups {
				w.Groups = append(w.Groups, control.OSGroup{GID: 1<<32 - i, Name: sixfoldJSONText(256)})
			}
			return []any{w}
		},
		"enqueue":       func() []any { return []any{control.EnqueueResult{JobID: names[0], JobSeq: 1 << 62}} },
		"enqueue.batch": func() []any { return []any{control.EnqueueBatchResult{JobIDs: names[:queue.MaxJobsPerRequest]}} },
		"show": func() (all []any) {
			for _, j := range []queue.Job{largestJob, env} {
				d, err := s.buildJobDetail(admin, &j, 0)
				if err != nil || len(d.History) < 2 {
					t.Errorf("%d attempts, %v", len(d.History), err)
				}
				d.StdoutTail, d.StderrTail = validUTF8Text([]byte(sixfoldJSONText(maxShownTailBytes))),
					validUTF8Text([]byte(strings.Repeat("a\xff", maxShownTailBytes/2)))
				access.HideJobDetailParts(&d, access.VisibleAll)
				all = append(all, d)
			}
			return all
		},
		"list": func() []any {
			page, err := retryOnTimeout(func() (control.JobPage, error) { return s.ListJobs(admin, control.JobListParams{}) })
			if err != nil || len(page.Jobs) == 0 {
				t.Errorf("%d jobs, %v", len(page.Jobs), err)
			}
			return []any{page}
		},
		"dlq.list": func() (all []any) {
			for cursor := new(""); cursor != nil; {
				page, err := retryOnTimeout(func() (control.JobPage,
					error) {
					return s.ListJobs(admin, control.JobListParams{Cursor: *cursor})
				})
				if err != nil {
					t.Fatal(err)
				}
				all, cursor = append(all, page), page.NextCursor
			}
			return all
		},
		"queue.list": queues, "queue.pause": queues, "queue.resume": queues, "queue.rm": queues,
		"queue.set": func() []any { return []any{queues()[0].(control.QueueList).Queues[0]} },
		"tree": func() []any {
			v := control.DependencyTree{}
			for range maxDependencyTreeJobs {
				v.Jobs = append(v.Jobs, control.DependencyTreeJob{ID: names[0], Seq: 1 << 62, State: "processing"})
			}
			for range maxDependencyTreeEdges {
				v.Dependencies = append(v.Dependencies, control.JobDependency{ParentSeq: 1 << 62, ChildSeq: 1 << 62,
					Condition: "completed",
					Status:    "failed"})
			}
			return []any{v}
		},
		"simulate": func() []any {
			var jobs []control.Job
			for range control.MaxSimulatedJobs {
				j := newLargestJob("x")
				v := s.newJobView(&j)
				shortenJobTexts(&v)
				jobs = append(jobs, v)
			}
			return []any{control.SimulateResult{Jobs: jobs, MayBeIncomplete: true}}
		},
		"stats": func() (all []any) {
			var f store.AttemptStatistics
			f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.ReturnedToQueue = 1<<40, 1<<40, 1<<40, 1<<40, 1<<40, 1<<40
			for k := range f.RunTimes.BucketCounts {
				f.RunTimes.BucketCounts[k], f.WaitTimes.BucketCounts[k] = 1<<40, 1<<40
			}
			for _, most := range []struct {
				periods int
				buckets bool
			}{{int(store.PerMinute.PeriodRetention()/store.PerMinute.PeriodLength()) + 1, false},
				{control.MaxHistogramPeriods, true}} {
				v := control.Stats{Queues: make([]control.QueueStats, store.MaxQueuesPerStatsResult+1),
					Periods: make([]control.PeriodStats, most.periods)}
				for i := range v.Queues {
					v.Queues[i] = control.QueueStats{Queue: strings.Repeat("x", queue.MaxQueueNameBytes),
						AttemptStatistics: newStatisticsView(&f, most.buckets)}
				}
				for i := range v.Periods {
					v.Periods[i] = control.PeriodStats{StartTime: 1, AttemptStatistics: newStatisticsView(&f, most.buckets)}
				}
				all = append(all, v)
			}
			return all
		},
		"why": func() []any {
			w := control.WaitingExplanation{ID: names[0]}
			for range reasons.MaxDependencyLinks + queue.MaxDemands + 4 {
				w.Reasons = append(w.Reasons, control.WaitReason{Kind: "dependency", CauseKey: sixfoldJSONText(128),
					Text:   sixfoldJSONText(512),
					Advice: sixfoldJSONText(256), LimitUsage: new(1 << 62), Limit: new(1 << 62)})
			}
			return []any{w}
		},
		"status": func() []any {
			list := make([]string, worker.MaxWorkers)
			for i := range list {
				list[i] = sixfoldJSONText(500)
			}
			near := slices.Repeat([]control.UserBytes{{UID: 1 << 31, User: sixfoldJSONText(256), StoredBytes: 1 << 62}},
				maxListedUsersNearQuota)
			return []any{control.Status{QuotaUse: control.QuotaUse{UsersNearQuota: near}, Health: doctor.HealthText(list, true),
				Storage: control.Storage{StateDir: sixfoldJSONText(4096)}, SocketPath: sixfoldJSONText(4096),
				Version: sixfoldJSONText(256)}}
		},
		"screen": func() []any {
			screen, err := retryOnTimeout(func() (control.OverviewScreen, error) {
				return s.ReadOverviewScreen(admin, control.OverviewScreenParams{JobsPerSection: store.MaxScreenRowsPerPart})
			})
			if err != nil || len(screen.Dead)+len(screen.Done)+len(screen.Ready)+len(screen.HeldOrBlocked)+len(screen.Delayed)+
				len(screen.Running) == 0 {
				t.Errorf("a screen: %+v, %v", screen, err)
			}
			return []any{screen}
		},
		"wait": func() []any {
			return []any{control.JobEndNotice{Job: s.newJobView(&largestJob)},
				control.JobWaitResult{UnfinishedJobIDs: names[:control.MaxWaitOrFollowJobIDs]}}
		},
		"logs": func() (all []any) {
			f := &outputSender{API: s.API, params: control.JobOutputParams{ID: control.JobID(id)},
				sendPiece: func(p control.OutputPiece) error { all = append(all, p); return nil }}
			for _, text := range []string{sixfoldJSONText(4 * output.MaxMemoryBytes), strings.Repeat("\xff",
				4*output.MaxMemoryBytes)} {
				if err := f.sendChunk(output.Chunk{Data: []byte(text)}); err != nil {
					t.Error(err)
				}
			}
			return append(all, control.OutputStreamEnd{FinalJobState: "processing"})
		},
		"attach": func() []any { return []any{control.AttachTerminalResult{Attempt: 1 << 30, AcceptedBytes: 1 << 30}} },
		"cancel": verdict, "retry": verdict, "hold": verdict, "release": verdict, "pause": verdict, "resume": verdict,
		"requeue": verdict, "kill": verdict, "edit": verdict,
		"rm": verdict, "dequeue": verdict, "dlq.retry": verdict,
		"clear": removed, "dlq.clear": removed, "cleanup": removed,
		"worker.start": count, "worker.stop": count, "worker.scale": count,
		"worker.list": func() []any {
			list := make([]worker.WorkerStatus, 2*worker.MaxWorkers)
			for i := range list {
				list[i] = worker.WorkerStatus{ID: sixfoldJSONText(32), JobID: names[0], PID: 1 << 30, StartedAt: 1, Stale: true}
			}
			return []any{newWorkerListView(list, sixfoldJSONText(64), &control.Peer{})}
		},
		"config.list": func() []any {
			var list control.ConfigList
			for range config.AllSettings() {
				list.Settings = append(list.Settings, value)
			}
			list.Settings[0].Value = sixfoldJSONText(1 << 20) // the maximum length of a settings file
			for i := range list.Settings {
				list.Settings[i].Hint = "" // these settings have no note
			}
			return []any{list}
		},
		"config.get":   func() []any { v := value; v.Value = sixfoldJSONText(1 << 20); return []any{v} },
		"config.set":   func() []any { return []any{value} },
		"config.unset": func() []any { v := value; v.Value = sixfoldJSONText(1 << 20); return []any{v} },
		"events": func() []any {
			return []any{control.Event{JobID: names[0], User: sixfoldJSONText(256), SettingName: sixfoldJSONText(64),
				SettingValue: sixfoldJSONText(control.MaxSettingValueBytes), AuditCommand: "show", CommandTarget: sixfoldJSONText(
					8192)}, control.EventStreamEnd{LastEventSeq: 1 << 62}}
		},
		"backup": func() []any {
			return []any{control.BackupPiece{Content: make([]byte, maxBackupPieceBytes), CopiedBytes: 1 << 62,
				TotalBytes: 1 << 62}, control.BackupSummary{SHA256: sixfoldJSONText(64)}}
		},
		"doctor": func() []any {
			var d control.Diagnosis
			for range 100 { // each check reports at most ten findings
				d.Findings = append(d.Findings, control.Finding{CheckName: "integrity", Level: "failure",
					Message: sixfoldJSONText(8192), Advice: sixfoldJSONText(1024)})
			}
			return []any{control.DoctorProgress{CheckedBytes: 1 << 62}, d}
		},
		"schedule.add": largestSchedules, "schedule.show": largestSchedules,
		"schedule.list": func() []any {
			largestSchedules()
			page, err := s.ListSchedules(admin, control.ScheduleListParams{})
			if err != nil || len(page.Schedules) == 0 || page.Next == nil {
				t.Errorf("%d schedules, %v", len(page.Schedules), err)
			}
			return []any{page}
		},
		"schedule.rm": schedules, "schedule.pause": schedules, "schedule.resume": schedules,
		"schedule.run": func() []any { return []any{control.EnqueueResult{JobID: names[0], JobSeq: 1 << 62}} },
		"gate.list": func() []any {
			list := control.GateList{Gates: make([]control.GateView, store.MaxGatesPerPage), NextCursor: sixfoldJSONText(256)}
			for i := range list.Gates {
				list.Gates[i] = control.GateView{Key: sixfoldJSONText(129), Kind: "resource", Limit: 1 << 30,
					Rate:       sixfoldJSONText(16),
					LimitUsage: 1 << 30, UnfinishedJobs: new(int64(1 << 62)), KeyOwner: sixfoldJSONText(256)}
			}
			return []any{list}
		},
		"node.list": func() []any {
			list := control.NodeList{Nodes: make([]control.NodeView, store.MaxNodesPerPage), NextCursor: sixfoldJSONText(128)}
			for i := range list.Nodes {
				list.Nodes[i] = node
			}
			return []any{list}
		},
		"node.drain": func() []any { return []any{node} }, "node.rm": func() []any { return []any{node} },
		"gate.set": func() []any {
			return []any{control.GateView{Key: sixfoldJSONText(129), Kind: "resource", Rate: sixfoldJSONText(16),
				KeyOwner: sixfoldJSONText(256)}}
		},
		"hook.test": func() []any { return []any{control.EnqueueResult{JobID: names[0], JobSeq: 1 << 62}} },
		"web.start": func() []any { return []any{control.WebState{ListenAddress: sixfoldJSONText(4096)}} },
		"web.stop":  func() []any { return []any{control.WebState{}} },
		"web.open":  func() []any { return []any{control.WebLink{URL: sixfoldJSONText(1024), ExpiresAt: 1 << 60}} },
		"drain":     func() []any { return []any{control.DrainResult{RunningJobs: 1 << 30}} },
		"reload": func() []any {
			return []any{control.ReloadResult{OverriddenSettings: make([]string, len(config.AllSettings()))}}
		},
		"service.stop": func() []any { return []any{control.ServiceStopResult{ServicePID: 1 << 30}} },
	}
	for _, method := range control.MethodNames() {
		if answers[method] == nil {
			t.Errorf("%s: the test has no entry for its answers", method)
			continue
		}
		for _, v := range answers[method]() {
			raw, err := json.Marshal(v)
			const envelope = 1024
			if err != nil || len(raw)+envelope > control.MaxLineBytes {
				t.Errorf("%s: %T takes %d bytes of %d, %v", method, v, len(raw), control.MaxLineBytes, err)
			}
		}
	}
}
