// Package queuectl contains tests of the whole repository, such as the import law. The programs are
// cmd/queuectl and cmd/queuectld.
package queuectl
