package control

import (
	"context"
	"encoding/json"
	"reflect"
)

// Right is what a method asks of its caller. So far the socket lets in only the
// service's own user and root, who have every right.
type Right string

// The rights.
const (
	Read    Right = "read"
	Submit  Right = "submit"
	Operate Right = "operate"
	Admin   Right = "admin"
)

// Method is one row of the table of methods.
type Method struct {
	Name   string
	Right  Right
	Stream bool // it tells before it answers
	does   endpoint
}

// endpoint is how a method is carried out, and the types of what it takes and gives.
type endpoint struct {
	call          func(ctx context.Context, api API, params json.RawMessage, tell func(any) error) (any, error)
	params        reflect.Type
	tells, result reflect.Type // tells is nil unless it streams
}

// Methods is the table of methods.
var Methods = []Method{
	{"hello", Read, false, answer(API.Hello)},
	{"enqueue", Submit, false, answer(API.Enqueue)},
	{"enqueue.batch", Submit, false, answer(API.EnqueueBatch)},
	{"show", Read, false, answer(API.Show)},
	{"list", Read, false, answer(API.List)},
	{"status", Read, false, answer(API.Status)},
	{"wait", Read, true, stream(API.Wait)},
	{"logs", Read, true, stream(API.Logs)},
	{"cancel", Submit, false, answer(API.Cancel)},
	{"retry", Submit, false, answer(API.Retry)},
	{"hold", Submit, false, answer(API.Hold)},
	{"release", Submit, false, answer(API.Release)},
	{"requeue", Submit, false, answer(API.Requeue)},
	{"kill", Submit, false, answer(API.Kill)},
	{"edit", Submit, false, answer(API.Edit)},
	{"rm", Submit, false, answer(API.Remove)},
	{"dequeue", Submit, false, answer(API.Remove)},
	{"clear", Operate, false, answer(API.Clear)},
	{"dlq.list", Read, false, answer(API.DLQList)},
	{"dlq.retry", Submit, false, answer(API.DLQRetry)},
	{"dlq.clear", Operate, false, answer(API.DLQClear)},
	{"worker.start", Operate, false, answer(API.WorkerStart)},
	{"worker.stop", Operate, false, answer(API.WorkerStop)},
	{"worker.scale", Operate, false, answer(API.WorkerScale)},
	{"worker.list", Read, false, answer(API.WorkerList)},
	{"config.list", Read, false, answer(API.ConfigList)},
	{"config.get", Read, false, answer(API.ConfigGet)},
	{"config.set", Admin, false, answer(API.ConfigSet)},
	{"config.unset", Admin, false, answer(API.ConfigUnset)},
	{"events", Read, true, stream(API.Events)},
	{"cleanup", Admin, true, stream(API.Cleanup)},
	{"backup", Admin, true, stream(API.Backup)},
	{"doctor", Admin, true, stream(API.Doctor)},
	{"drain", Admin, false, answer(API.Drain)},
	{"reload", Admin, false, answer(API.Reload)},
	{"service.stop", Admin, false, answer(API.ServiceStop)},
}

var methodsByName = func() map[string]*Method {
	m := make(map[string]*Method, len(Methods))
	for i := range Methods {
		m[Methods[i].Name] = &Methods[i]
	}
	return m
}()

// MethodNames lists the methods' names.
func MethodNames() []string {
	names := make([]string, len(Methods))
	for i := range Methods {
		names[i] = Methods[i].Name
	}
	return names
}

func answer[P, R any](f func(API, context.Context, P) (R, error)) endpoint {
	call := func(ctx context.Context, api API, raw json.RawMessage, _ func(any) error) (any, error) {
		var p P
		if err := decodeParams(raw, &p); err != nil {
			return nil, err
		}
		return f(api, ctx, p)
	}
	return endpoint{call, reflect.TypeFor[P](), nil, reflect.TypeFor[R]()}
}

func stream[P, N, R any](f func(API, context.Context, P, func(N) error) (R, error)) endpoint {
	call := func(ctx context.Context, api API, raw json.RawMessage, tell func(any) error) (any, error) {
		var p P
		if err := decodeParams(raw, &p); err != nil {
			return nil, err
		}
		return f(api, ctx, p, func(n N) error { return tell(n) })
	}
	return endpoint{call, reflect.TypeFor[P](), reflect.TypeFor[N](), reflect.TypeFor[R]()}
}
