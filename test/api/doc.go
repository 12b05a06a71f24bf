// Package api checks from outside the API on the socket, and its schemas, metrics, traces and tools for agents.
package api
