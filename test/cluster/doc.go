// Package cluster checks from outside that several nodes share one queue.
package cluster
