// Package testrig runs the built programs for the tests in the directory test, which check the promises of
// queuectl from outside. It builds the programs, starts services, runners and nodes, acts as several users,
// creates disks and sends requests to the socket of a service. It imports no package of the tested program.
// Start with harness.go.
package testrig
