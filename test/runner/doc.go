// Package runner checks from outside how runners start, limit, pause and end the processes of jobs, and keep
// their output.
package runner
