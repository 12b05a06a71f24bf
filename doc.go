// Package queuectl holds the import law of the program; the program itself is
// cmd/queuectl.
package queuectl
