// Package test checks the promises of queuectl from outside. It runs the built binary in a
// separate process group and talks to it through its socket. It imports no other package of the
// program. Start with harness_test.go.
package test
