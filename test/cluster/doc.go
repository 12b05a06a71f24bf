// Package cluster checks from outside how several nodes share one queue.
package cluster
