package control

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
)

// Method is one row of the table of methods.
type Method struct {
	Name        string
	Right       Right // right that the caller needs
	OthersRight Right // right that the caller needs for other users' jobs, or to run jobs as another user
	Stream      bool  // the method sends notifications before its answer
	endpoint    endpoint
}

// endpoint implements a method. It also contains the types of the method's parameters and results.
type endpoint struct {
	decode func(raw json.RawMessage) (params any, err error) // parses parameters
	// call calls the method of api. The method calls notify to send a notification.
	call                 func(ctx context.Context, api API, params any, notify func(any) error) (any, error)
	params               reflect.Type
	notification, result reflect.Type // notification is nil if the method sends none
	readOnly             bool         // the method changes nothing
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
		{"show", RightRead, RightRead, false, readOnlyEndpoint(API.Show)},
		{"list", RightRead, RightRead, false, readOnlyEndpoint(API.List)},
		{"status", RightRead, RightRead, false, readOnlyEndpoint(API.Status)},
		{"screen", RightRead, RightRead, false, readOnlyEndpoint(API.Screen)},
		{"wait", RightRead, RightRead, true, streamEndpoint(API.Wait)},
		{"logs", RightSubmit, RightOperate, true, streamEndpoint(API.Logs)},
		{"attach", RightSubmit, RightAdmin, false, answerEndpoint(API.Attach)},
		{"cancel", RightSubmit, RightOperate, false, answerEndpoint(API.Cancel)},
		{"retry", RightSubmit, RightOperate, false, answerEndpoint(API.Retry)},
		{"hold", RightSubmit, RightOperate, false, answerEndpoint(API.Hold)},
		{"release", RightSubmit, RightOperate, false, answerEndpoint(API.Release)},
		{"pause", RightSubmit, RightOperate, false, answerEndpoint(withPauseSelection(API.Pause))},
		{"resume", RightSubmit, RightOperate, false, answerEndpoint(withPauseSelection(API.Resume))},
		{"requeue", RightSubmit, RightOperate, false, answerEndpoint(API.Requeue)},
		{"kill", RightSubmit, RightOperate, false, answerEndpoint(API.Kill)},
		{"edit", RightSubmit, RightOperate, false, answerEndpoint(API.Edit)},
		{"rm", RightSubmit, RightOperate, false, answerEndpoint(API.Remove)},
		{"dequeue", RightSubmit, RightOperate, false, answerEndpoint(API.Remove)},
		{"clear", RightOperate, RightOperate, false, answerEndpoint(API.Clear)},
		{"dlq.list", RightRead, RightRead, false, readOnlyEndpoint(API.DLQList)},
		{"dlq.retry", RightSubmit, RightOperate, false, answerEndpoint(API.DLQRetry)},
		{"dlq.clear", RightOperate, RightOperate, false, answerEndpoint(API.DLQClear)},
		{"queue.list", RightRead, RightRead, false, readOnlyEndpoint(API.QueueList)},
		{"queue.set", RightOperate, RightOperate, false, answerEndpoint(API.QueueSet)},
		{"queue.pause", RightOperate, RightOperate, false, answerEndpoint(API.QueuePause)},
		{"queue.resume", RightOperate, RightOperate, false, answerEndpoint(API.QueueResume)},
		{"queue.rm", RightOperate, RightOperate, false, answerEndpoint(API.QueueRemove)},
		{"tree", RightRead, RightRead, false, readOnlyEndpoint(API.Tree)},
		{"why", RightRead, RightRead, false, readOnlyEndpoint(API.Why)},
		{"simulate", RightRead, RightRead, false, readOnlyEndpoint(API.Simulate)},
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
		{"schedule.run", RightSubmit, RightOperate, false, answerEndpoint(API.ScheduleRun)},
		{"gate.list", RightRead, RightRead, false, readOnlyEndpoint(API.GateList)},
		{"gate.set", RightOperate, RightOperate, false, answerEndpoint(API.GateSet)},
		{"node.list", RightRead, RightRead, false, readOnlyEndpoint(API.NodeList)},
		{"node.drain", RightAdmin, RightAdmin, false, answerEndpoint(API.NodeDrain)},
		{"node.rm", RightAdmin, RightAdmin, false, answerEndpoint(API.NodeRemove)},
		{"hook.test", RightOperate, RightOperate, false, answerEndpoint(API.HookTest)},
		{"web.start", RightAdmin, RightAdmin, false, answerEndpoint(API.WebStart)},
		{"web.stop", RightAdmin, RightAdmin, false, answerEndpoint(API.WebStop)},
		{"web.open", RightRead, RightRead, false, answerEndpoint(API.WebOpen)},
		{"config.list", RightRead, RightRead, false, readOnlyEndpoint(API.ConfigList)},
		{"config.get", RightRead, RightRead, false, readOnlyEndpoint(API.ConfigGet)},
		{"config.set", RightAdmin, RightAdmin, false, answerEndpoint(API.ConfigSet)},
		{"config.unset", RightAdmin, RightAdmin, false, answerEndpoint(API.ConfigUnset)},
		{"events", RightRead, RightRead, true, streamEndpoint(API.Events)},
		{"cleanup", RightAdmin, RightAdmin, true, streamEndpoint(API.Cleanup)},
		{"backup", RightAdmin, RightAdmin, true, streamEndpoint(API.Backup)},
		{"doctor", RightAdmin, RightAdmin, true, streamEndpoint(API.Doctor)},
		{"drain", RightAdmin, RightAdmin, false, answerEndpoint(API.Drain)},
		{"reload", RightAdmin, RightAdmin, false, answerEndpoint(API.Reload)},
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

// withPauseSelection converts a method that takes a Selection to one that takes a PauseSelection.
func withPauseSelection(f selectionMethod[Selection]) selectionMethod[PauseSelection] {
	return func(api API, ctx context.Context, p PauseSelection) (BulkResult, error) {
		return f(api, ctx, p.Selection)
	}
}

// answerEndpoint returns the endpoint of a method f that sends a single answer.
func answerEndpoint[P, R any](f func(API, context.Context, P) (R, error)) endpoint {
	call := func(ctx context.Context, api API, params any, _ func(any) error) (any, error) {
		return f(api, ctx, *params.(*P))
	}
	return endpoint{decode[P], call, reflect.TypeFor[P](), nil, reflect.TypeFor[R](), false}
}

// readOnlyEndpoint returns the endpoint of a method f that sends a single answer and changes nothing.
func readOnlyEndpoint[P, R any](f func(API, context.Context, P) (R, error)) endpoint {
	e := answerEndpoint(f)
	e.readOnly = true
	return e
}

// streamEndpoint returns the endpoint of a method f that sends notifications before its answer.
func streamEndpoint[P, N, R any](f func(API, context.Context, P, func(N) error) (R, error)) endpoint {
	call := func(ctx context.Context, api API, params any, notify func(any) error) (any, error) {
		return f(api, ctx, *params.(*P), func(n N) error { return notify(n) })
	}
	return endpoint{decode[P], call, reflect.TypeFor[P](), reflect.TypeFor[N](), reflect.TypeFor[R](), false}
}

// decode parses the parameters of a method. It returns a *P, or nil with an error.
func decode[P any](raw json.RawMessage) (any, error) {
	p := new(P)
	if err := decodeParams(raw, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseParams parses the parameters of a method as the server does, and rejects unknown names. The caller must
// have checked raw with queue.CheckJSON.
func ParseParams[P any](raw json.RawMessage) (p P, err error) {
	err = decodeParams(raw, &p)
	return p, err
}

// isLongPoll reports whether a request may wait for a long time before its only answer. Such a request counts
// towards the limit for streams.
func isLongPoll(params any) bool {
	attach, ok := params.(*Attach)
	return ok && attach.Wait
}
