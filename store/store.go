// Package store defines how jobs are stored: durably, with fenced leases, and with all times taken from the clock of
// the store.
//
// Start with Store, which combines the interfaces below. Package store/engine implements Store with a database, which
// packages store/sqlite and store/postgres open. Package store/memstore is an independent implementation in memory.
// Tests compare the engine with it.
package store

import "github.com/queuectl/queuectl/queue"

// Store keeps jobs. A method that changes something returns after the change is durable. If the method returns
// queue.ErrOutcomeUnknown, the change may or may not be durable. All methods are safe for concurrent use. They return
// queue.ErrNotFound if no job has the given id.
//
// Code that needs only some of the methods uses the smallest sufficient interface below, or a combination of several.
// See docs/decisions/0101.
type Store interface {
	Clock

	// What users request.
	Queue
	Batches
	Schedules

	// What a worker pool needs.
	Session

	// What is stored, and what happens next.
	Reader
	Forecast
	Statistics
	Events

	// What decides which jobs start, and in which order.
	Settings
	Ranking
	QueueRules
	Gates

	// Periodic duties.
	Timers
	Cleanup
	OutputFiles
	Quotas
	Owners

	// StoreFailed returns a channel that is closed when the store has failed permanently. The process must then exit.
	// Changes that were acknowledged before the failure are kept.
	StoreFailed() <-chan struct{}
	// Err returns the reason why the store has failed permanently, or nil if it has not.
	Err() error
	// Close waits for running operations to end, then closes the store. Later calls of the store's methods return
	// ErrUnavailable.
	Close() error
}

// Clock is the clock of a store.
type Clock interface {
	// Now returns the time of the store's clock. All stored times come from this clock.
	Now() queue.UnixMillis
}

// ErrNewerSchema is returned for a store that a newer queuectl has written, or whose tables lack a column that
// this version needs. The store is not changed.
var ErrNewerSchema = &queue.Error{Code: queue.CodeUnsupported, Message: "newer schema"}
