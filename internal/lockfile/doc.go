// Package lockfile has, on Windows, files that one process at a time may write: who has one
// open has the lock, for as long as that process lives and no longer. Elsewhere flock(2) is
// used, and this package is empty.
package lockfile
