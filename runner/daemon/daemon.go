// Package daemon is the runner: the process that executes commands, outlives the service, and keeps the
// result of each attempt until the service has stored it.
//
// Start with Serve and the type server. handleFrame executes the frames of a service (session.go). A
// Start frame creates a waiting attempt (waiting_attempts.go), which a worker takes (workers.go),
// executes (execute.go) and settles (settle.go). attempt.go lists the phases of an attempt, and
// lifetime.go those of the runner.
//
// An attempt is written to the running table before it starts, and its result to the journal before it
// is sent. So a service can find out what happened even after a SIGKILL of the runner. Package rundir
// defines these files.
//
// One mutex, server.mu, guards everything that changes. Methods whose names end in Locked need it. Disk
// operations that can take long run without it, in the diskQueue.
package daemon
