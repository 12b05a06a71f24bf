// Package control lets clients use a running queue. It defines the API and its wire format, and implements a
// server and a client. The server identifies the user of each connection.
//
// Start with API, which the service and Client both implement. Methods is the table of methods, and Server.Run
// serves them.
package control

// API contains all methods of a running queue, grouped by subject. The service implements it. Client implements
// it by sending each call to the service. Every error is or wraps a *queue.Error. All methods are safe for
// concurrent use.
//
// Code that needs only some methods uses the smallest of these interfaces that has them. See
// docs/decisions/0101.
type API interface {
	SessionAPI

	// These interfaces concern jobs.
	EnqueueAPI
	JobAPI
	ExplainAPI
	ActionAPI
	DeadLetterAPI
	OutputAPI

	// These interfaces control when and where jobs run.
	QueueAPI
	ScheduleAPI
	GateAPI
	WorkerAPI
	NodeAPI

	// These interfaces return state and history.
	StatusAPI
	StatsAPI
	EventAPI

	// These interfaces concern the service itself.
	ConfigAPI
	WebAPI
	AdminAPI
}

// NoParams is the type of the parameters of a method without parameters.
type NoParams struct{}
