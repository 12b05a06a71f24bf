// Package pipe lets processes of one Windows machine talk over a named pipe, and tells
// each for sure whom it talks to.
package pipe
