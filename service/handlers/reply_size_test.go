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

// sixfoldText returns a text of n bytes that takes 6*n bytes in JSON.
func sixfoldText(n int) string { return strings.Repeat("\x01", n) }

// newLargestJob returns a job that takes the maximum space in a reply.
func newLargestJob(id string) queue.Job {
	j := jobNamed(id + strings.Repeat("x", 128-len(id)))
	codes := make([]int, queue.MaxExitCodes)
	for i := range codes {
		codes[i] = 1<<32 - 1
	}
	j.Error, j.Reason = sixfoldText(queue.MaxErrorBytes), queue.ReasonNotRunnable
	j.Execution = queue.Execution{
		Argv: []string{sixfoldText(queue.MaxCommandBytes), sixfoldText(queue.MaxCommandBytes),
			sixfoldText(queue.MaxCommandBytes),
			sixfoldText(queue.MaxCommandBytes)},
		Stdin: sixfoldText(queue.MaxStdinBytes), Cwd: sixfoldText(4096), User: sixfoldText(256), Shell: sixfoldText(4096),
		OutputLimit: queue.MaxOutputLimit, AsUID: new(61377),
		SpecialExitCodes: queue.SpecialExitCodes{OkCodes: codes, NoRetryCodes: codes, DeferCodes: codes},
		OnLost:           queue.OnLostRetry,
		Labels:           map[string]string{},
	}
	for i := range queue.MaxLabels {
		name := fmt.Sprint(i)
		j.Labels[name] = sixfoldText(queue.MaxLabelBytes - len(name))
	}
	return j
}

// putLargestSchedules stores one schedule for each of the jobs. Each schedule takes the maximum space in a reply.
// It returns the schedules as replies show them.
func (s *rig) putLargestSchedules(t *testing.T, ctx context.Context, jobs ...queue.Job) (schedules []any) {
	t.Helper()
	for i, j := range jobs {
		spec, err := queue.SpecOf(&j).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			one := store.Schedule{Name: fmt.Sprint(name, i), Cron: strings.Repeat("0,", 500) + "0 * * * *", TimeZone: "UTC",
				Spec: string(spec), Draft: j}
			sched, _, _ := s.Store.Schedule(ctx, one.Name)
			sched, err = s.Store.PutSchedule(ctx, store.SchedulePut{Schedule: one, ReplacedGeneration: sched.Generation})
			if err != nil {
				t.Fatal(err)
			}
			for range maxShownOccurrences {
				f := store.OccurrenceRequest{Name: sched.Name, Generation: sched.Generation, Occurrences: []queue.Millis{1},
					MaxPending:  1,
					CandidateID: func(queue.Millis, int) string { return strings.Repeat("x", 128) }}
				if _, err := s.Store.RunOccurrences(ctx, f); err != nil {
					t.Fatal(err)
				}
			}
		}
		d, err := s.ScheduleShow(ctx, control.ScheduleNameParams{Name: fmt.Sprint("a", i)})
		if err != nil || len(d.OccurrenceRecords) != maxShownOccurrences {
			t.Fatalf("%d runs, %v", len(d.OccurrenceRecords), err)
		}
		for k := range d.OccurrenceRecords {
			d.OccurrenceRecords[k].Note = queue.ClipJSON(sixfoldText(queue.MaxErrorBytes), queue.MaxErrorBytes)
		}
		schedules = append(schedules, d)
	}
	return schedules
}

// retryTimeouts repeats a read that times out, as may happen on a busy machine under the race detector.
func retryTimeouts[T any](read func() (T, error)) (result T, err error) {
	for range 30 {
		if result, err = read(); !errors.Is(err, queue.ErrUnavailable) {
			break
		}
	}
	return result, err
}

// Every reply and every notification fits in one line of the protocol, whatever is stored and requested.
func TestAnswersFit(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	s := newStoreRig(t)
	admin := asPeer(t, 0, control.RightAdmin)
	s.enqueueJobs(t, newLargestJob("first"))
	for range 20 {
		s.endJobs(t, s.claimJobs(t, 1), queue.Pending,
			queue.Attempt{Error: sixfoldText(queue.MaxErrorBytes), Worker: sixfoldText(64), Node: sixfoldText(64)})
	}
	id := newLargestJob("first").ID
	largestJob, err := s.Store.GetFull(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	largestJob.Error, largestJob.State, largestJob.WorkerID = sixfoldText(queue.MaxErrorBytes), queue.Processing,
		sixfoldText(64)
	env := largestJob
	env.Command, env.Argv, env.Env = sixfoldText(queue.MaxCommandBytes), nil, nil
	for i := range 4 {
		env.Env = append(env.Env, fmt.Sprint(i)+"="+sixfoldText(queue.MaxCommandBytes-2))
	}

	moreJobs := namedJobs("j", store.MaxPageRows)
	for i := range moreJobs {
		moreJobs[i].Command = sixfoldText(store.MaxPageBytes/6/store.MaxPageRows - 10)
	}
	moreJobs[store.MaxPageRows-1] = newLargestJob("last")
	s.enqueueJobs(t, moreJobs...)

	names := make([]string, control.MaxJobIDs)
	for i := range names {
		names[i] = strings.Repeat("x", 128)
	}
	refused := make([]control.Refusal, control.MaxJobIDs)
	for i := range refused {
		refused[i] = control.Refusal{ID: names[0], Code: queue.CodeOutcomeUnknown, Field: queue.Clip(sixfoldText(100)),
			Message: queue.ClipJSON(sixfoldText(queue.MaxErrorBytes), maxRefusalBytes)}
	}
	verdict := func() []any { return []any{control.BulkResult{DoneIDs: names}, control.BulkResult{Refusals: refused}} }
	removed := func() []any { return []any{control.RemovalCount{Count: 1 << 62, TotalJobs: 1 << 62}} }
	count := func() []any { return []any{control.WorkerCount{Workers: worker.MaxWorkers}} }
	value := control.ConfigValue{Key: sixfoldText(64), Value: sixfoldText(control.MaxSettingValueBytes),
		Origin: "environment",
		Note:   sixfoldText(queue.MaxErrorBytes)}

	queues := func() []any {
		var list control.QueueList
		for range control.MaxQueuesPage {
			list.Queues = append(list.Queues, control.QueueView{Queue: strings.Repeat("x", queue.MaxQueueName),
				Defaults: json.RawMessage(`{"labels":"` + strings.Repeat("x", control.MaxQueueDefaultsBytes) + `"}`),
				PausedBy: new(sixfoldText(256)), PauseReason: new(sixfoldText(256))})
		}
		return []any{list}
	}
	largestSchedules := sync.OnceValue(func() []any { return s.putLargestSchedules(t, admin, largestJob, env) })
	schedules := func() (all []any) {
		for _, j := range []queue.Job{largestJob, env} {
			all = append(all, s.viewSchedule(&store.Schedule{Name: sixfoldText(store.MaxScheduleNameBytes),
				Cron: sixfoldText(1024), TimeZone: sixfoldText(256), Note: sixfoldText(queue.MaxErrorBytes), Draft: j}))
		}
		return all
	}
	node := control.NodeView{Name: strings.Repeat("x", 128), State: "drained", Version: sixfoldText(256),
		Labels: map[string]string{}, Resources: map[string]int{}}
	for i := range 64 { // the settings can define at most 64 of each
		node.Labels[fmt.Sprint(i)] = strings.Repeat("x", 126)
		node.Resources[strings.Repeat("x", 126)+fmt.Sprint(i)] = 1 << 30
	}
	answers := map[string]func() []any{
		"hello": func() []any { h, _ := s.Hello(admin, control.HelloParams{}); return []any{h} },
		"whoami": func() []any {
			w := control.Whoami{User: sixfoldText(256), Group: sixfoldText(256), RunAs: sixfoldText(4096),
				JobsRunAs: sixfoldText(256), Advice: sixfoldText(8192)}
			for i := range maxListedGroups {
				w.Groups = append(w.Groups, control.GroupID{GID: 1<<32 - i, Name: sixfoldText(256)})
			}
			return []any{w}
		},
		"enqueue":       func() []any { return []any{control.EnqueueResult{ID: names[0], Seq: 1 << 62}} },
		"enqueue.batch": func() []any { return []any{control.EnqueueBatchResult{IDs: names[:queue.MaxJobsPerRequest]}} },
		"show": func() (all []any) {
			for _, j := range []queue.Job{largestJob, env} {
				d, err := s.buildDetail(admin, &j, 0)
				if err != nil || len(d.History) < 2 {
					t.Errorf("%d attempts, %v", len(d.History), err)
				}
				d.Output, d.Stderr = validUTF8Text([]byte(sixfoldText(maxShowTailBytes))),
					validUTF8Text([]byte(strings.Repeat("a\xff", maxShowTailBytes/2)))
				access.HideDetail(&d, access.VisibleAll)
				all = append(all, d)
			}
			return all
		},
		"list": func() []any {
			page, err := retryTimeouts(func() (control.JobPage, error) { return s.List(admin, control.List{}) })
			if err != nil || len(page.Jobs) == 0 {
				t.Errorf("%d jobs, %v", len(page.Jobs), err)
			}
			return []any{page}
		},
		"dlq.list": func() (all []any) {
			for cursor := new(""); cursor != nil; {
				page, err := retryTimeouts(func() (control.JobPage,
					error) {
					return s.List(admin, control.List{Cursor: *cursor})
				})
				if err != nil {
					t.Fatal(err)
				}
				all, cursor = append(all, page), page.Next
			}
			return all
		},
		"queue.list": queues, "queue.pause": queues, "queue.resume": queues, "queue.rm": queues,
		"queue.set": func() []any { return []any{queues()[0].(control.QueueList).Queues[0]} },
		"tree": func() []any {
			v := control.TreeView{}
			for range maxTreeJobs {
				v.Nodes = append(v.Nodes, control.TreeNode{ID: names[0], Seq: 1 << 62, State: "processing"})
			}
			for range maxTreeEdges {
				v.Edges = append(v.Edges, control.TreeEdge{Parent: 1 << 62, Child: 1 << 62, Condition: "completed",
					Status: "failed"})
			}
			return []any{v}
		},
		"simulate": func() []any {
			var jobs []control.Job
			for range control.MaxSimulatedJobs {
				j := newLargestJob("x")
				v := s.viewJob(&j)
				shortenTexts(&v)
				jobs = append(jobs, v)
			}
			return []any{control.SimulateResult{Jobs: jobs, Incomplete: true}}
		},
		"stats": func() (all []any) {
			var f store.AttemptStatistics
			f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned = 1<<40, 1<<40, 1<<40, 1<<40, 1<<40, 1<<40
			for k := range f.RunTimes.Counts {
				f.RunTimes.Counts[k], f.WaitTimes.Counts[k] = 1<<40, 1<<40
			}
			for _, most := range []struct {
				periods int
				buckets bool
			}{{int(store.Minute.Retention()/store.Minute.Length()) + 1, false}, {control.MaxBucketPeriods, true}} {
				v := control.Stats{Queues: make([]control.QueueStats, store.MaxStatsQueues+1),
					Periods: make([]control.PeriodStats, most.periods)}
				for i := range v.Queues {
					v.Queues[i] = control.QueueStats{Queue: strings.Repeat("x", queue.MaxQueueName),
						AttemptStatistics: viewStatistics(&f, most.buckets)}
				}
				for i := range v.Periods {
					v.Periods[i] = control.PeriodStats{StartTime: 1, AttemptStatistics: viewStatistics(&f, most.buckets)}
				}
				all = append(all, v)
			}
			return all
		},
		"why": func() []any {
			w := control.Why{ID: names[0]}
			for range reasons.MaxLinks + queue.MaxDemands + 4 {
				w.Reasons = append(w.Reasons, control.Reason{Kind: "dependency", Key: sixfoldText(128), Text: sixfoldText(512),
					Advice: sixfoldText(256), Usage: new(1 << 62), Limit: new(1 << 62)})
			}
			return []any{w}
		},
		"status": func() []any {
			list := make([]string, worker.MaxWorkers)
			for i := range list {
				list[i] = sixfoldText(500)
			}
			near := slices.Repeat([]control.UserBytes{{UID: 1 << 31, User: sixfoldText(256), Bytes: 1 << 62}},
				maxListedNearQuota)
			return []any{control.Status{QuotaUse: control.QuotaUse{NearQuota: near}, Health: doctor.HealthText(list, true),
				Storage: control.Storage{StateDir: sixfoldText(4096)}, Socket: sixfoldText(4096), Version: sixfoldText(256)}}
		},
		"screen": func() []any {
			screen, err := retryTimeouts(func() (control.Screen, error) {
				return s.Screen(admin, control.ScreenParams{Rows: store.MaxScreenRows})
			})
			if err != nil || len(screen.Dead)+len(screen.Done)+len(screen.Ready)+len(screen.HeldOrBlocked)+len(screen.Delayed)+
				len(screen.Running) == 0 {
				t.Errorf("a screen: %+v, %v", screen, err)
			}
			return []any{screen}
		},
		"wait": func() []any {
			return []any{control.JobEndNotice{Job: s.viewJob(&largestJob)},
				control.WaitResult{UnfinishedIDs: names[:control.MaxWaitIDs]}}
		},
		"logs": func() (all []any) {
			f := &logSender{api: s.API, params: control.Logs{ID: control.JobID(id)},
				sendPiece: func(p control.OutputPiece) error { all = append(all, p); return nil }}
			for _, text := range []string{sixfoldText(4 * output.MaxMemoryBytes), strings.Repeat("\xff",
				4*output.MaxMemoryBytes)} {
				if err := f.send(output.Chunk{Data: []byte(text)}); err != nil {
					t.Error(err)
				}
			}
			return append(all, control.LogsEnd{State: "processing"})
		},
		"attach": func() []any { return []any{control.AttachResult{Attempt: 1 << 30, Written: 1 << 30}} },
		"cancel": verdict, "retry": verdict, "hold": verdict, "release": verdict, "pause": verdict, "resume": verdict,
		"requeue": verdict, "kill": verdict, "edit": verdict,
		"rm": verdict, "dequeue": verdict, "dlq.retry": verdict,
		"clear": removed, "dlq.clear": removed, "cleanup": removed,
		"worker.start": count, "worker.stop": count, "worker.scale": count,
		"worker.list": func() []any {
			list := make([]worker.WorkerStatus, 2*worker.MaxWorkers)
			for i := range list {
				list[i] = worker.WorkerStatus{ID: sixfoldText(32), JobID: names[0], PID: 1 << 30, StartedAt: 1, Stale: true}
			}
			return []any{viewWorkers(list, sixfoldText(64), &control.Peer{})}
		},
		"config.list": func() []any {
			var list control.ConfigList
			for range config.Keys() {
				list.Settings = append(list.Settings, value)
			}
			list.Settings[0].Value = sixfoldText(1 << 20) // the maximum length of a settings file
			for i := range list.Settings {
				list.Settings[i].Note = "" // these settings have no note
			}
			return []any{list}
		},
		"config.get":   func() []any { v := value; v.Value = sixfoldText(1 << 20); return []any{v} },
		"config.set":   func() []any { return []any{value} },
		"config.unset": func() []any { v := value; v.Value = sixfoldText(1 << 20); return []any{v} },
		"events": func() []any {
			return []any{control.Event{ID: names[0], User: sixfoldText(256), Setting: sixfoldText(64),
				Value: sixfoldText(control.MaxSettingValueBytes), Verb: "show", Target: sixfoldText(
					8192)}, control.EventsEnd{LastSeq: 1 << 62}}
		},
		"backup": func() []any {
			return []any{control.BackupPiece{Base64: make([]byte, maxBackupPieceBytes), DoneBytes: 1 << 62, TotalBytes: 1 << 62},
				control.BackupEnd{SHA256: sixfoldText(64)}}
		},
		"doctor": func() []any {
			var d control.Diagnosis
			for range 100 { // each check reports at most ten findings
				d.Findings = append(d.Findings, control.Finding{Check: "integrity", Level: "failure", Message: sixfoldText(8192),
					Advice: sixfoldText(1024)})
			}
			return []any{control.Progress{DoneBytes: 1 << 62}, d}
		},
		"schedule.add": largestSchedules, "schedule.show": largestSchedules,
		"schedule.list": func() []any {
			largestSchedules()
			page, err := s.ScheduleList(admin, control.ScheduleList{})
			if err != nil || len(page.Schedules) == 0 || page.Next == nil {
				t.Errorf("%d schedules, %v", len(page.Schedules), err)
			}
			return []any{page}
		},
		"schedule.rm": schedules, "schedule.pause": schedules, "schedule.resume": schedules,
		"schedule.run": func() []any { return []any{control.EnqueueResult{ID: names[0], Seq: 1 << 62}} },
		"gate.list": func() []any {
			list := control.GateList{Gates: make([]control.GateView, store.MaxGatesPage), Next: sixfoldText(256)}
			for i := range list.Gates {
				list.Gates[i] = control.GateView{Key: sixfoldText(129), Kind: "resource", Limit: 1 << 30, Rate: sixfoldText(16),
					Usage: 1 << 30, Jobs: new(int64(1 << 62)), User: sixfoldText(256)}
			}
			return []any{list}
		},
		"node.list": func() []any {
			list := control.NodeList{Nodes: make([]control.NodeView, store.MaxNodesPage), Next: sixfoldText(128)}
			for i := range list.Nodes {
				list.Nodes[i] = node
			}
			return []any{list}
		},
		"node.drain": func() []any { return []any{node} }, "node.rm": func() []any { return []any{node} },
		"gate.set": func() []any {
			return []any{control.GateView{Key: sixfoldText(129), Kind: "resource", Rate: sixfoldText(16),
				User: sixfoldText(256)}}
		},
		"hook.test":    func() []any { return []any{control.EnqueueResult{ID: names[0], Seq: 1 << 62}} },
		"web.start":    func() []any { return []any{control.WebState{Listen: sixfoldText(4096)}} },
		"web.stop":     func() []any { return []any{control.WebState{}} },
		"web.open":     func() []any { return []any{control.WebLink{URL: sixfoldText(1024), Expires: 1 << 60}} },
		"drain":        func() []any { return []any{control.DrainResult{Running: 1 << 30}} },
		"reload":       func() []any { return []any{control.ReloadResult{Hidden: make([]string, len(config.Keys()))}} },
		"service.stop": func() []any { return []any{control.ServiceStopResult{PID: 1 << 30}} },
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
