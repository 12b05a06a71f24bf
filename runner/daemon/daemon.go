// Package daemon is the runner: the process that executes commands, outlives the service, and keeps the
// result of each attempt until the service has stored it.
//
// Start with Serve and the type server. handleFrame executes the frames of a service (session.go). A
// Start frame creates a waiting attempt (waiting_attempts.go), which a worker takes (workers.go),
// executes (execute.go) and settles (settle.go). attempt.go lists the phases of an attempt, and
// lifetime.go those of the runner.
//
// The runner keeps two files: the running table lists the attempts that run, and the journal contains the
// results that no service has acknowledged. The runner writes an attempt to the table before it starts the
// attempt, and a result to the journal before it sends the result. So a service can find out what happened
// even if the runner was killed. Package rundir defines these files.
//
// One mutex, server.mu, guards everything that changes. Callers of methods whose names end in Locked must
// hold it. Disk operations that can take long run without it, in the diskQueue.
package daemon
