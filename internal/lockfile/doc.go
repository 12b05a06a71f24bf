// Package lockfile implements lock files on Windows. Only one process at a time can open such a file for
// writing. That process holds the lock until it closes the file or ends. On other systems the package is
// empty, because they use flock(2).
package lockfile
