// Package api tests the API on the socket, its schemas, metrics, traces and tools for agents. It
// uses them as an external client does.
package api
