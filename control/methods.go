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
	Stream      bool  // the method sends notifications before it answers
	endpoint    endpoint
}

// endpoint implements a method and describes the types of its parameters and results.
type endpoint struct {
	decode               func(raw json.RawMessage) (params any, err error)
	call                 func(ctx context.Context, api API, params any, notify func(any) error) (any, error)
	params               reflect.Type
	notification, result reflect.Type // notification is the type of the notifications; nil if the method sends none
	readOnly             bool         // the method changes nothing
}

// Methods returns the table of methods. The first call builds it, so that a program that never
// calls it does not spend time on it.
func Methods() []Method {
	table.once.Do(func() {
		table.rows = methods()
		table.byName = make(map[string]*Method, len(table.rows))
		for i := range table.rows {
			table.byName[table.rows[i].Name] = &table.rows[i]
		}
	})
	return table.rows
}

var table struct {
	once   sync.Once
	rows   []Method
	byName map[string]*Method
}

// methodOf returns the row of a method, nil if there is no such method.
func methodOf(name string) *Method {
	Methods()
	return table.byName[name]
}

func methods() []Method {
	return []Method{
		{"hello", Read, Read, false, reads(API.Hello)},
		{"whoami", None, None, false, reads(API.Whoami)},
		{"enqueue", Submit, Admin, false, answer(API.Enqueue)},
		{"enqueue.batch", Submit, Admin, false, answer(API.EnqueueBatch)},
		{"show", Read, Read, false, reads(API.Show)},
		{"list", Read, Read, false, reads(API.List)},
		{"status", Read, Read, false, reads(API.Status)},
		{"screen", Read, Read, false, reads(API.Screen)},
		{"wait", Read, Read, true, stream(API.Wait)},
		{"logs", Submit, Operate, true, stream(API.Logs)},
		{"attach", Submit, Admin, false, answer(API.Attach)},
		{"cancel", Submit, Operate, false, answer(API.Cancel)},
		{"retry", Submit, Operate, false, answer(API.Retry)},
		{"hold", Submit, Operate, false, answer(API.Hold)},
		{"release", Submit, Operate, false, answer(API.Release)},
		{"pause", Submit, Operate, false, answer(pause(API.Pause))},
		{"resume", Submit, Operate, false, answer(pause(API.Resume))},
		{"requeue", Submit, Operate, false, answer(API.Requeue)},
		{"kill", Submit, Operate, false, answer(API.Kill)},
		{"edit", Submit, Operate, false, answer(API.Edit)},
		{"rm", Submit, Operate, false, answer(API.Remove)},
		{"dequeue", Submit, Operate, false, answer(API.Remove)},
		{"clear", Operate, Operate, false, answer(API.Clear)},
		{"dlq.list", Read, Read, false, reads(API.DLQList)},
		{"dlq.retry", Submit, Operate, false, answer(API.DLQRetry)},
		{"dlq.clear", Operate, Operate, false, answer(API.DLQClear)},
		{"queue.list", Read, Read, false, reads(API.QueueList)},
		{"queue.set", Operate, Operate, false, answer(API.QueueSet)},
		{"queue.pause", Operate, Operate, false, answer(API.QueuePause)},
		{"queue.resume", Operate, Operate, false, answer(API.QueueResume)},
		{"queue.rm", Operate, Operate, false, answer(API.QueueRemove)},
		{"tree", Read, Read, false, reads(API.Tree)},
		{"why", Read, Read, false, reads(API.Why)},
		{"simulate", Read, Read, false, reads(API.Simulate)},
		{"stats", Read, Read, false, reads(API.Stats)},
		{"worker.start", Operate, Operate, false, answer(API.WorkerStart)},
		{"worker.stop", Operate, Operate, false, answer(API.WorkerStop)},
		{"worker.scale", Operate, Operate, false, answer(API.WorkerScale)},
		{"worker.list", Read, Read, false, reads(API.WorkerList)},
		{"schedule.add", Submit, Admin, false, answer(API.ScheduleAdd)},
		{"schedule.list", Read, Read, false, reads(API.ScheduleList)},
		{"schedule.show", Read, Read, false, reads(API.ScheduleShow)},
		{"schedule.rm", Submit, Operate, false, answer(API.ScheduleRemove)},
		{"schedule.pause", Submit, Operate, false, answer(API.SchedulePause)},
		{"schedule.resume", Submit, Operate, false, answer(API.ScheduleResume)},
		{"schedule.run", Submit, Operate, false, answer(API.ScheduleRun)},
		{"gate.list", Read, Read, false, reads(API.GateList)},
		{"gate.set", Operate, Operate, false, answer(API.GateSet)},
		{"node.list", Read, Read, false, reads(API.NodeList)},
		{"node.drain", Admin, Admin, false, answer(API.NodeDrain)},
		{"node.rm", Admin, Admin, false, answer(API.NodeRemove)},
		{"hook.test", Operate, Operate, false, answer(API.HookTest)},
		{"web.start", Admin, Admin, false, answer(API.WebStart)},
		{"web.stop", Admin, Admin, false, answer(API.WebStop)},
		{"web.open", Read, Read, false, answer(API.WebOpen)},
		{"config.list", Read, Read, false, reads(API.ConfigList)},
		{"config.get", Read, Read, false, reads(API.ConfigGet)},
		{"config.set", Admin, Admin, false, answer(API.ConfigSet)},
		{"config.unset", Admin, Admin, false, answer(API.ConfigUnset)},
		{"events", Read, Read, true, stream(API.Events)},
		{"cleanup", Admin, Admin, true, stream(API.Cleanup)},
		{"backup", Admin, Admin, true, stream(API.Backup)},
		{"doctor", Admin, Admin, true, stream(API.Doctor)},
		{"drain", Admin, Admin, false, answer(API.Drain)},
		{"reload", Admin, Admin, false, answer(API.Reload)},
		{"service.stop", Admin, Admin, false, answer(API.ServiceStop)},
	}
}

// MethodNames lists the methods' names.
func MethodNames() []string {
	list := Methods()
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names
}

// onSelection is the type of the methods that act on selected jobs.
type onSelection[P any] func(API, context.Context, P) (BulkResult, error)

// pause adapts a method that takes a Selection to one that takes a PauseSelection.
func pause(f onSelection[Selection]) onSelection[PauseSelection] {
	return func(api API, ctx context.Context, p PauseSelection) (BulkResult, error) {
		return f(api, ctx, p.Selection)
	}
}

// answer returns the endpoint of a method that sends one answer.
func answer[P, R any](f func(API, context.Context, P) (R, error)) endpoint {
	call := func(ctx context.Context, api API, params any, _ func(any) error) (any, error) {
		return f(api, ctx, *params.(*P))
	}
	return endpoint{decode[P], call, reflect.TypeFor[P](), nil, reflect.TypeFor[R](), false}
}

// reads returns the endpoint of a method that sends one answer and changes nothing.
func reads[P, R any](f func(API, context.Context, P) (R, error)) endpoint {
	e := answer(f)
	e.readOnly = true
	return e
}

// stream returns the endpoint of a method that sends notifications before its answer.
func stream[P, N, R any](f func(API, context.Context, P, func(N) error) (R, error)) endpoint {
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

// ReadParams parses the parameters of a method like the server: it rejects unknown ones.
// queue.CheckJSON must have accepted raw.
func ReadParams[P any](raw json.RawMessage) (p P, err error) {
	err = decodeParams(raw, &p)
	return p, err
}

// isLongPoll reports whether a request of a method that is not a stream may wait for a long time, like a
// stream. Such a request counts towards the limit for streams.
func isLongPoll(params any) bool {
	attach, ok := params.(*Attach)
	return ok && attach.Wait
}
