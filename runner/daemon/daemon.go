// Package daemon is the runner: the process that executes commands, outlives the service, and keeps the
// result of each attempt until the service has stored it.
//
// Start with Serve. A session reads the frames of a service (session.go). START frames become waiting
// attempts, which workers execute one by one (attempt.go). Before an attempt starts, it is written to
// the running table, and before its result is sent, the result is written to the journal, so that the
// next service can find out everything even after a SIGKILL. Package rundir defines these files.
package daemon
