//go:build linux || windows

package testrig

// GatedJob returns a job that prints its pid and then runs until a file exists.
func GatedJob(gate string) string {
	return "echo up; echo pid $$; while [ ! -e " + gate + " ]; do sleep 0.02; done; echo end of $$"
}
