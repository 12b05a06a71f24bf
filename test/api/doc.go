// Package api tests, as an external client, the API on the socket, its schemas, metrics, traces and tools
// for agents.
package api
