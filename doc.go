// Package queuectl holds the import law of the program; the programs are
// cmd/queuectl and cmd/queuectld.
package queuectl
