// Package queuectl contains tests of the whole repository, such as the test of which package may import
// which. The programs are cmd/queuectl and cmd/queuectld.
package queuectl
