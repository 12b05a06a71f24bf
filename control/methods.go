package control

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
)

// Method is one row of the table of methods.
type Method struct {
	Name               string
	Right              Right // right that the caller needs
	RightForOthersJobs Right // right that the caller needs for other users' jobs, or to run jobs as another user
	SendsNotifications bool  // the method sends notifications before its answer

	readOnly bool // the method changes nothing
	// call calls the method of api. The method calls notify to send a notification.
	call                         func(ctx context.Context, api API, params any, notify func(any) error) (any, error)
	paramsType                   reflect.Type
	notificationType, resultType reflect.Type // notificationType is nil if the method sends none
}

// Methods returns the table of methods. It builds the table at the first call, so that a program that does not
// need the table starts faster.
func Methods() []Method {
	methodTable.once.Do(func() {
		methodTable.rows = buildMethods()
		methodTable.byName = make(map[string]*Method, len(methodTable.rows))
		for i := range methodTable.rows {
			methodTable.byName[methodTable.rows[i].Name] = &methodTable.rows[i]
		}
	})
	return methodTable.rows
}

var methodTable struct {
	once   sync.Once
	rows   []Method
	byName map[string]*Method
}

// findMethod returns the row of the method with this name, or nil if no method has this name.
func findMethod(name string) *Method {
	Methods()
	return methodTable.byName[name]
}

func buildMethods() []Method {
	return []Method{
		readOnlyMethod("hello", RightRead, API.Hello),
		readOnlyMethod("whoami", RightNone, API.Whoami),
		answerMethod("enqueue", RightSubmit, RightAdmin, API.Enqueue),
		answerMethod("enqueue.batch", RightSubmit, RightAdmin, API.EnqueueBatch),
		readOnlyMethod("show", RightRead, API.ShowJob),
		readOnlyMethod("list", RightRead, API.ListJobs),
		readOnlyMethod("status", RightRead, API.Status),
		readOnlyMethod("screen", RightRead, API.ReadOverviewScreen),
		streamMethod("wait", RightRead, RightRead, API.WaitForJobs),
		streamMethod("logs", RightSubmit, RightOperate, API.StreamOutput),
		answerMethod("attach", RightSubmit, RightAdmin, API.AttachTerminal),
		answerMethod("cancel", RightSubmit, RightOperate, API.CancelJobs),
		answerMethod("retry", RightSubmit, RightOperate, API.RetryJobs),
		answerMethod("hold", RightSubmit, RightOperate, API.HoldJobs),
		answerMethod("release", RightSubmit, RightOperate, API.ReleaseJobs),
		answerMethod("pause", RightSubmit, RightOperate, withPauseSelection(API.PauseJobs)),
		answerMethod("resume", RightSubmit, RightOperate, withPauseSelection(API.ResumeJobs)),
		answerMethod("requeue", RightSubmit, RightOperate, API.RequeueJobs),
		answerMethod("kill", RightSubmit, RightOperate, API.KillJobs),
		answerMethod("edit", RightSubmit, RightOperate, API.EditJobs),
		answerMethod("rm", RightSubmit, RightOperate, API.RemoveJobs),
		answerMethod("dequeue", RightSubmit, RightOperate, API.RemoveJobs),
		answerMethod("clear", RightOperate, RightOperate, API.RemoveNonRunningJobs),
		readOnlyMethod("dlq.list", RightRead, API.ListDeadJobs),
		answerMethod("dlq.retry", RightSubmit, RightOperate, API.RetryDeadJobs),
		answerMethod("dlq.clear", RightOperate, RightOperate, API.RemoveDeadJobs),
		readOnlyMethod("queue.list", RightRead, API.ListQueues),
		answerMethod("queue.set", RightOperate, RightOperate, API.ConfigureQueue),
		answerMethod("queue.pause", RightOperate, RightOperate, API.PauseQueues),
		answerMethod("queue.resume", RightOperate, RightOperate, API.ResumeQueues),
		answerMethod("queue.rm", RightOperate, RightOperate, API.RemoveQueue),
		readOnlyMethod("tree", RightRead, API.ReadDependencyTree),
		readOnlyMethod("why", RightRead, API.ExplainWaiting),
		readOnlyMethod("simulate", RightRead, API.SimulateNextStarts),
		readOnlyMethod("stats", RightRead, API.ReadStats),
		answerMethod("worker.start", RightOperate, RightOperate, API.StartWorkers),
		answerMethod("worker.stop", RightOperate, RightOperate, API.StopWorkers),
		answerMethod("worker.scale", RightOperate, RightOperate, API.ScaleWorkers),
		readOnlyMethod("worker.list", RightRead, API.ListWorkers),
		answerMethod("schedule.add", RightSubmit, RightAdmin, API.AddSchedule),
		readOnlyMethod("schedule.list", RightRead, API.ListSchedules),
		readOnlyMethod("schedule.show", RightRead, API.ShowSchedule),
		answerMethod("schedule.rm", RightSubmit, RightOperate, API.RemoveSchedule),
		answerMethod("schedule.pause", RightSubmit, RightOperate, API.PauseSchedule),
		answerMethod("schedule.resume", RightSubmit, RightOperate, API.ResumeSchedule),
		answerMethod("schedule.run", RightSubmit, RightOperate, API.RunScheduleNow),
		readOnlyMethod("gate.list", RightRead, API.ListGates),
		answerMethod("gate.set", RightOperate, RightOperate, API.SetGateRule),
		readOnlyMethod("node.list", RightRead, API.ListNodes),
		answerMethod("node.drain", RightAdmin, RightAdmin, API.SetNodeDraining),
		answerMethod("node.rm", RightAdmin, RightAdmin, API.RemoveNode),
		answerMethod("hook.test", RightOperate, RightOperate, API.EnqueueHookTest),
		answerMethod("web.start", RightAdmin, RightAdmin, API.StartWebPage),
		answerMethod("web.stop", RightAdmin, RightAdmin, API.StopWebPage),
		answerMethod("web.open", RightRead, RightRead, API.CreateWebLink),
		readOnlyMethod("config.list", RightRead, API.ListSettings),
		readOnlyMethod("config.get", RightRead, API.ReadSetting),
		answerMethod("config.set", RightAdmin, RightAdmin, API.ChangeSetting),
		answerMethod("config.unset", RightAdmin, RightAdmin, API.UnsetSetting),
		streamMethod("events", RightRead, RightRead, API.StreamEvents),
		streamMethod("cleanup", RightAdmin, RightAdmin, API.RemoveOldJobs),
		streamMethod("backup", RightAdmin, RightAdmin, API.StreamBackup),
		streamMethod("doctor", RightAdmin, RightAdmin, API.RunDoctor),
		answerMethod("drain", RightAdmin, RightAdmin, API.StartOrEndDrain),
		answerMethod("reload", RightAdmin, RightAdmin, API.ReloadSettingsFile),
		answerMethod("service.stop", RightAdmin, RightAdmin, API.StopService),
	}
}

// MethodNames returns the names of all methods.
func MethodNames() []string {
	list := Methods()
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names
}

// selectionMethod is the type of a method that acts on selected jobs and has parameters of type P.
type selectionMethod[P any] func(API, context.Context, P) (BulkResult, error)

// withPauseSelection converts a method with a parameter of type Selection to a method with a parameter of type
// PauseSelection.
func withPauseSelection(method selectionMethod[JobSelection]) selectionMethod[PauseSelection] {
	return func(api API, ctx context.Context, p PauseSelection) (BulkResult, error) {
		return method(api, ctx, p.JobSelection)
	}
}

// answerMethod returns the row of a method that sends a single answer.
func answerMethod[P, R any](name string, right, rightForOthersJobs Right,
	method func(API, context.Context, P) (R, error)) Method {
	call := func(ctx context.Context, api API, params any, _ func(any) error) (any, error) {
		return method(api, ctx, *params.(*P))
	}
	return Method{Name: name, Right: right, RightForOthersJobs: rightForOthersJobs, call: call,
		paramsType: reflect.TypeFor[P](), resultType: reflect.TypeFor[R]()}
}

// readOnlyMethod returns the row of a method that sends a single answer and changes nothing. The method needs the same
// right for the jobs of all users.
func readOnlyMethod[P, R any](name string, right Right, method func(API, context.Context, P) (R, error)) Method {
	m := answerMethod(name, right, right, method)
	m.readOnly = true
	return m
}

// streamMethod returns the row of a method that sends notifications before its answer.
func streamMethod[P, N, R any](name string, right, rightForOthersJobs Right,
	method func(API, context.Context, P, func(N) error) (R, error)) Method {
	call := func(ctx context.Context, api API, params any, notify func(any) error) (any, error) {
		return method(api, ctx, *params.(*P), func(n N) error { return notify(n) })
	}
	return Method{Name: name, Right: right, RightForOthersJobs: rightForOthersJobs, SendsNotifications: true, call: call,
		paramsType: reflect.TypeFor[P](), notificationType: reflect.TypeFor[N](), resultType: reflect.TypeFor[R]()}
}

// decodeParams parses the parameters of the method. It returns a pointer to a value of the type m.paramsType.
func (m *Method) decodeParams(paramsJSON json.RawMessage) (any, error) {
	p := reflect.New(m.paramsType).Interface()
	return p, decodeParams(paramsJSON, p)
}

// ParseParams parses the parameters of a method as the server does, and rejects unknown names. The caller must
// have checked raw with queue.CheckJSON.
func ParseParams[P any](paramsJSON json.RawMessage) (p P, err error) {
	err = decodeParams(paramsJSON, &p)
	return p, err
}

// isLongPoll reports whether a request may wait for a long time before its only answer. A long poll counts towards the
// limit for streams.
func isLongPoll(params any) bool {
	attach, ok := params.(*AttachTerminalParams)
	return ok && attach.WaitForStart
}
