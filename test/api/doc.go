// Package api tests the API on the socket, its schemas, metrics, traces and the tools for AI agents, as
// external clients use them.
package api
