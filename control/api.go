// Package control lets clients use a running queue. It defines the API, its wire format, a server
// and a client, and determines which user is at the other end of a connection.
//
// Start with API, which the service and Client both implement. Methods is the table of methods, and
// Server.Run serves them.
package control

// API lists the methods of a running queue, by subject. The service implements it. Client implements
// it too, by sending the calls to the service. Errors are a *queue.Error or wrap one. All methods
// are safe for concurrent use.
//
// Code that needs only some of the methods takes the smallest of the interfaces below, or its own
// sum of them. See docs/decisions/0101.
type API interface {
	SessionAPI

	// Jobs.
	EnqueueAPI
	JobAPI
	ExplainAPI
	ActionAPI
	DeadLetterAPI
	OutputAPI

	// What decides when jobs run, and where.
	QueueAPI
	ScheduleAPI
	GateAPI
	WorkerAPI
	NodeAPI

	// State and history.
	StatusAPI
	StatsAPI
	EventAPI

	// The service.
	ConfigAPI
	WebAPI
	AdminAPI
}

// NoParams is the type of the parameters of a method that has none.
type NoParams struct{}
