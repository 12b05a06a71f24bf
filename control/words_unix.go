//go:build unix

package control

// whereLog says where the log of the system's service is.
const whereLog = "journalctl -u queuectl"
