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
	endpoint           endpoint
}

// endpoint implements a method. It also contains the types of the method's parameters and results.
type endpoint struct {
	decode func(raw json.RawMessage) (params any, err error) // parses parameters
	// call calls the method of api. The method calls notify to send a notification.
	callMethod                   func(ctx context.Context, api API, params any, notify func(any) error) (any, error)
	paramsType                   reflect.Type
	notificationType, resultType reflect.Type // notificationType is nil if the method sends none
	readOnly                     bool         // the method changes nothing
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
		{"hello", RightRead, RightRead, false, readOnlyEndpoint(API.Hello)},
		{"whoami", RightNone, RightNone, false, readOnlyEndpoint(API.Whoami)},
		{"enqueue", RightSubmit, RightAdmin, false, answerEndpoint(API.Enqueue)},
		{"enqueue.batch", RightSubmit, RightAdmin, false, answerEndpoint(API.EnqueueBatch)},
		{"show", RightRead, RightRead, false, readOnlyEndpoint(API.ShowJob)},
		{"list", RightRead, RightRead, false, readOnlyEndpoint(API.ListJobs)},
		{"status", RightRead, RightRead, false, readOnlyEndpoint(API.Status)},
		{"screen", RightRead, RightRead, false, readOnlyEndpoint(API.ReadScreen)},
		{"wait", RightRead, RightRead, true, streamEndpoint(API.WaitForJobs)},
		{"logs", RightSubmit, RightOperate, true, streamEndpoint(API.StreamOutput)},
		{"attach", RightSubmit, RightAdmin, false, answerEndpoint(API.AttachTerminal)},
		{"cancel", RightSubmit, RightOperate, false, answerEndpoint(API.CancelJobs)},
		{"retry", RightSubmit, RightOperate, false, answerEndpoint(API.RetryJobs)},
		{"hold", RightSubmit, RightOperate, false, answerEndpoint(API.HoldJobs)},
		{"release", RightSubmit, RightOperate, false, answerEndpoint(API.ReleaseJobs)},
		{"pause", RightSubmit, RightOperate, false, answerEndpoint(withPauseSelection(API.PauseJobs))},
		{"resume", RightSubmit, RightOperate, false, answerEndpoint(withPauseSelection(API.ResumeJobs))},
		{"requeue", RightSubmit, RightOperate, false, answerEndpoint(API.RequeueJobs)},
		{"kill", RightSubmit, RightOperate, false, answerEndpoint(API.KillJobs)},
		{"edit", RightSubmit, RightOperate, false, answerEndpoint(API.EditJobs)},
		{"rm", RightSubmit, RightOperate, false, answerEndpoint(API.RemoveJobs)},
		{"dequeue", RightSubmit, RightOperate, false, answerEndpoint(API.RemoveJobs)},
		{"clear", RightOperate, RightOperate, false, answerEndpoint(API.RemoveNonRunningJobs)},
		{"dlq.list", RightRead, RightRead, false, readOnlyEndpoint(API.ListDeadJobs)},
		{"dlq.retry", RightSubmit, RightOperate, false, answerEndpoint(API.RetryDeadJobs)},
		{"dlq.clear", RightOperate, RightOperate, false, answerEndpoint(API.RemoveDeadJobs)},
		{"queue.list", RightRead, RightRead, false, readOnlyEndpoint(API.QueueList)},
		{"queue.set", RightOperate, RightOperate, false, answerEndpoint(API.ConfigureQueue)},
		{"queue.pause", RightOperate, RightOperate, false, answerEndpoint(API.QueuePause)},
		{"queue.resume", RightOperate, RightOperate, false, answerEndpoint(API.QueueResume)},
		{"queue.rm", RightOperate, RightOperate, false, answerEndpoint(API.QueueRemove)},
		{"tree", RightRead, RightRead, false, readOnlyEndpoint(API.ReadDependencyTree)},
		{"why", RightRead, RightRead, false, readOnlyEndpoint(API.ExplainWaiting)},
		{"simulate", RightRead, RightRead, false, readOnlyEndpoint(API.SimulateNextStarts)},
		{"stats", RightRead, RightRead, false, readOnlyEndpoint(API.Stats)},
		{"worker.start", RightOperate, RightOperate, false, answerEndpoint(API.WorkerStart)},
		{"worker.stop", RightOperate, RightOperate, false, answerEndpoint(API.WorkerStop)},
		{"worker.scale", RightOperate, RightOperate, false, answerEndpoint(API.WorkerScale)},
		{"worker.list", RightRead, RightRead, false, readOnlyEndpoint(API.WorkerList)},
		{"schedule.add", RightSubmit, RightAdmin, false, answerEndpoint(API.ScheduleAdd)},
		{"schedule.list", RightRead, RightRead, false, readOnlyEndpoint(API.ScheduleList)},
		{"schedule.show", RightRead, RightRead, false, readOnlyEndpoint(API.ScheduleShow)},
		{"schedule.rm", RightSubmit, RightOperate, false, answerEndpoint(API.ScheduleRemove)},
		{"schedule.pause", RightSubmit, RightOperate, false, answerEndpoint(API.SchedulePause)},
		{"schedule.resume", RightSubmit, RightOperate, false, answerEndpoint(API.ScheduleResume)},
		{"schedule.run", RightSubmit, RightOperate, false, answerEndpoint(API.RunScheduleNow)},
		{"gate.list", RightRead, RightRead, false, readOnlyEndpoint(API.GateList)},
		{"gate.set", RightOperate, RightOperate, false, answerEndpoint(API.SetGateRule)},
		{"node.list", RightRead, RightRead, false, readOnlyEndpoint(API.NodeList)},
		{"node.drain", RightAdmin, RightAdmin, false, answerEndpoint(API.NodeDrain)},
		{"node.rm", RightAdmin, RightAdmin, false, answerEndpoint(API.NodeRemove)},
		{"hook.test", RightOperate, RightOperate, false, answerEndpoint(API.EnqueueHookTest)},
		{"web.start", RightAdmin, RightAdmin, false, answerEndpoint(API.WebStart)},
		{"web.stop", RightAdmin, RightAdmin, false, answerEndpoint(API.WebStop)},
		{"web.open", RightRead, RightRead, false, answerEndpoint(API.CreateWebLink)},
		{"config.list", RightRead, RightRead, false, readOnlyEndpoint(API.ConfigList)},
		{"config.get", RightRead, RightRead, false, readOnlyEndpoint(API.ConfigGet)},
		{"config.set", RightAdmin, RightAdmin, false, answerEndpoint(API.ConfigSet)},
		{"config.unset", RightAdmin, RightAdmin, false, answerEndpoint(API.ConfigUnset)},
		{"events", RightRead, RightRead, true, streamEndpoint(API.StreamEvents)},
		{"cleanup", RightAdmin, RightAdmin, true, streamEndpoint(API.RemoveOldJobs)},
		{"backup", RightAdmin, RightAdmin, true, streamEndpoint(API.StreamBackup)},
		{"doctor", RightAdmin, RightAdmin, true, streamEndpoint(API.RunDoctor)},
		{"drain", RightAdmin, RightAdmin, false, answerEndpoint(API.StartOrEndDrain)},
		{"reload", RightAdmin, RightAdmin, false, answerEndpoint(API.ReloadSettingsFile)},
		{"service.stop", RightAdmin, RightAdmin, false, answerEndpoint(API.ServiceStop)},
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
func withPauseSelection(method selectionMethod[Selection]) selectionMethod[PauseSelection] {
	return func(api API, ctx context.Context, p PauseSelection) (BulkResult, error) {
		return method(api, ctx, p.Selection)
	}
}

// answerEndpoint returns the endpoint of a method that sends a single answer.
func answerEndpoint[P, R any](method func(API, context.Context, P) (R, error)) endpoint {
	call := func(ctx context.Context, api API, params any, _ func(any) error) (any, error) {
		return method(api, ctx, *params.(*P))
	}
	return endpoint{decodeParamsOf[P], call, reflect.TypeFor[P](), nil, reflect.TypeFor[R](), false}
}

// readOnlyEndpoint returns the endpoint of a method that sends a single answer and changes nothing.
func readOnlyEndpoint[P, R any](method func(API, context.Context, P) (R, error)) endpoint {
	e := answerEndpoint(method)
	e.readOnly = true
	return e
}

// streamEndpoint returns the endpoint of a method that sends notifications before its answer.
func streamEndpoint[P, N, R any](method func(API, context.Context, P, func(N) error) (R, error)) endpoint {
	call := func(ctx context.Context, api API, params any, notify func(any) error) (any, error) {
		return method(api, ctx, *params.(*P), func(n N) error { return notify(n) })
	}
	return endpoint{decodeParamsOf[P], call, reflect.TypeFor[P](), reflect.TypeFor[N](), reflect.TypeFor[R](), false}
}

// decodeParamsOf parses the parameters of a method. It returns a *P, or nil with an error.
func decodeParamsOf[P any](paramsJSON json.RawMessage) (any, error) {
	p := new(P)
	if err := decodeParams(paramsJSON, p); err != nil {
		return nil, err
	}
	return p, nil
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
	attach, ok := params.(*AttachParams)
	return ok && attach.WaitForStart
}
