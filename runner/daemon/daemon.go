// Package daemon is the runner: the process that executes commands, outlives the service, and keeps the
// result of each attempt until the service has stored it.
//
// Start with Serve and the type server. handleFrame executes the frames of a service (session.go). A Start
// frame creates a waiting attempt (waiting_attempts.go). A worker takes it (workers.go), executes it
// (execute.go) and settles it (settle.go). The phases of an attempt are listed in attempt.go, those of the
// runner in lifetime.go.
//
// The runner keeps two files. The running table lists the running attempts, and the journal contains the
// results that no service has acknowledged. The runner writes an attempt to the table before it starts the
// attempt, and a result to the journal before it sends the result. So a service can find out what happened even
// if the runner was killed. Package rundir defines these files.
//
// One mutex, server.mu, guards all state that changes. Callers of methods whose names end in Locked must hold
// it. Slow disk operations run in the diskOperationQueue, without the mutex.
package daemon
